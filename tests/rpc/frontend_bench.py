"""A front end in this process between a real client channel and a fake engine that tests script.

Knows nothing about any test. The model folder is a tokenizer and a config: no weights are needed.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.engine.v1 import engine_service_pb2_grpc
from stepwire.v1 import generation_service_pb2
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from scheduler_svc.config import SchedulerConfig
from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.server import Frontend
from scheduler_svc.frontend.streams import MAX_PENDING
from scheduler_svc.frontend.watch import Watch

LIMIT_SECONDS = 10.0
"""Every wait of a test ends after this long, with an error."""

EOS_TOKEN_ID = 256
VOCAB_SIZE = 260
CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}[{{ name | default('assistant') }}]{% endif %}"
)
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": EOS_TOKEN_ID,
}


def write_model_folder(folder: Path) -> Path:
    """Write a folder whose tokens 0..255 are the bytes themselves and whose EOS is 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    vocab = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    settings = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


class FakeEngine(engine_service_pb2_grpc.EngineServiceServicer):
    """Tells what front ends sent and sends them what a test says."""

    def __init__(self) -> None:
        self.info = pb.EngineInfo(protocol_version=1, is_ready=True, max_model_len=128, max_pool_tokens=96)
        self.state = generation_service_pb2.GetServerStateResponse(num_running=3)
        self.hellos: list[pb.FrontendHello] = []
        self.new_requests: asyncio.Queue[pb.NewRequest] = asyncio.Queue()
        self.ends: asyncio.Queue[pb.EndRequest] = asyncio.Queue()
        self.aborted_ids: asyncio.Queue[str] = asyncio.Queue()
        self._outgoing: asyncio.Queue[pb.AttachResponse | None] = asyncio.Queue()
        self._server = grpc.aio.server()

    async def start(self, socket_path: str) -> None:
        """Serve on a unix socket."""
        engine_service_pb2_grpc.add_EngineServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{socket_path}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop serving."""
        await self._server.stop(None)

    async def Attach(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.AttachRequest], context: Any
    ) -> None:
        """Serve one front end until the test breaks the stream."""
        await context.write(pb.AttachResponse(info=self.info))
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            while (message := await self._outgoing.get()) is not None:
                await context.write(message)
        finally:
            reader.cancel()
        await context.abort(grpc.StatusCode.ABORTED, "the test broke the stream")

    async def GetEngineState(  # noqa: N802
        self, request: pb.GetEngineStateRequest, context: Any
    ) -> pb.GetEngineStateResponse:
        """Tell the scripted state."""
        del request, context
        return pb.GetEngineStateResponse(state=self.state)

    async def WatchPrefixCaches(  # type: ignore[override]  # noqa: N802
        self, request: pb.WatchPrefixCachesRequest, context: Any
    ) -> None:
        """Refuse: a real engine's caches are watched in tests of their own."""
        del request
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this engine is a fake")

    async def FlushPrefixCaches(  # noqa: N802
        self, request: pb.FlushPrefixCachesRequest, context: Any
    ) -> pb.FlushPrefixCachesResponse:
        """Refuse likewise."""
        del request
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this engine is a fake")
        raise AssertionError

    async def _read(self, messages: AsyncIterator[pb.AttachRequest]) -> None:
        async for message in messages:
            if message.HasField("hello"):
                self.hellos.append(message.hello)
            for new_request in message.new_requests:
                self.new_requests.put_nowait(new_request)
            for end in message.end_requests:
                self.ends.put_nowait(end)
            for abort in message.aborts:
                self.aborted_ids.put_nowait(abort.request_id)

    async def next_request(self) -> pb.NewRequest:
        """Wait for a new request."""
        return await asyncio.wait_for(self.new_requests.get(), LIMIT_SECONDS)

    async def next_end(self) -> pb.EndRequest:
        """Wait for a front end to end a request."""
        return await asyncio.wait_for(self.ends.get(), LIMIT_SECONDS)

    async def next_abort(self) -> str:
        """Wait for an abort by id."""
        return await asyncio.wait_for(self.aborted_ids.get(), LIMIT_SECONDS)

    def start_request(self, handle: int, *, num_cached_tokens: int = 0, queue_time_ns: int = 0) -> None:
        """Tell a request's first step."""
        self._send(
            started_handles=np.array([handle], "<i4").tobytes(),
            started_num_cached_tokens=np.array([num_cached_tokens], "<i4").tobytes(),
            started_queue_time_ns=[queue_time_ns],
        )

    def send_tokens(self, tokens: list[tuple[int, int]], **logprobs: bytes) -> None:
        """Send one step of (handle, token id)."""
        self._send(
            handles=np.array([handle for handle, _ in tokens], "<i4").tobytes(),
            token_ids=np.array([token_id for _, token_id in tokens], "<i4").tobytes(),
            **logprobs,
        )

    def send_text(self, handle: int, text: str) -> None:
        """Send each byte of ``text`` as a token, all in one step."""
        self.send_tokens([(handle, byte) for byte in text.encode()])

    def tell_statuses(self, status_of: dict[int, int]) -> None:
        """Tell the status of requests, by handle."""
        handles = np.array(list(status_of), "<i4").tobytes()
        self._send(status_handles=handles, statuses=list(status_of.values()))

    def end(self, handle: int, reason: int, **fields: Any) -> None:
        """Tell that a request ended."""
        self._send(ended=[pb.EndedRequest(handle=handle, reason=reason, **fields)])  # type: ignore[arg-type]

    def tell_info(self, info: pb.EngineInfo) -> None:
        """Tell another state."""
        self._outgoing.put_nowait(pb.AttachResponse(info=info))

    def break_stream(self) -> None:
        """End the front end's stream with an error."""
        self._outgoing.put_nowait(None)

    def _send(self, **fields: Any) -> None:
        self._outgoing.put_nowait(pb.AttachResponse(outputs=pb.StepOutputs(**fields)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendBench:
    """A running front end with a client's stub before it and a fake engine behind it."""

    engine: FakeEngine
    address: str
    channel: grpc.aio.Channel
    stub: Any
    stop: asyncio.Event
    serving: asyncio.Task[None]


@asynccontextmanager
async def running_frontend(
    folder: Path,
    tmp_path: Path,
    *,
    max_pending: int = MAX_PENDING,
    watch: Watch | None = None,
    **options: Any,
) -> AsyncIterator[FrontendBench]:
    """Run a front end of ``folder``; ``options`` are those of SchedulerConfig."""
    engine = FakeEngine()
    socket_path = str(tmp_path / "engine.sock")
    await engine.start(socket_path)
    config = SchedulerConfig(model=str(folder), port=0, **options)
    frontend = Frontend(
        config,
        ServedModel.load(config),
        frontend_index=4,
        socket_path=socket_path,
        max_pending=max_pending,
        watch=watch,
    )
    stop = asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(frontend.serve(stop, port.set_result))
    address = f"127.0.0.1:{await asyncio.wait_for(port, LIMIT_SECONDS)}"
    async with grpc.aio.insecure_channel(address) as channel:
        stub = GenerationServiceStub(channel)
        try:
            yield FrontendBench(
                engine=engine, address=address, channel=channel, stub=stub, stop=stop, serving=serving
            )
        finally:
            stop.set()
            await asyncio.wait_for(serving, LIMIT_SECONDS)
            await engine.stop()
