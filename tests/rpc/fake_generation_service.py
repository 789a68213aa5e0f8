"""A generation service that tests script: what clients see of a server, without a model.

Knows nothing about the scheduler service: only the public contract.
"""
# Method names and arguments are the generated base class's.
# ruff: noqa: N802, ARG002

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc
from google.protobuf.duration_pb2 import Duration
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire.v1.generation_service_pb2_grpc import (
    GenerationServiceServicer,
)

FINAL = types_pb.FinalOutput(
    finish_reason=types_pb.FINISH_REASON_STOP,
    matched_stop_token_id=2,
    usage=types_pb.Usage(num_prompt_tokens=5, num_output_tokens=3, num_cached_tokens=4),
    timings=types_pb.Timings(
        queue=Duration(nanos=500_000_000),
        first_token=Duration(seconds=1),
        total=Duration(seconds=2, nanos=250_000_000),
    ),
)
STATE = service_pb.GetServerStateResponse(
    num_waiting=1,
    num_running=2,
    num_preempted=3,
    num_blocks=100,
    num_free_blocks=40,
    num_cached_blocks=35,
    kv_cache_usage_ratio=0.25,
    num_prompt_tokens_total=1000,
    num_cached_tokens_total=600,
    num_output_tokens_total=2000,
    num_finished_total=7,
    num_preemptions_total=8,
    workers=[
        service_pb.WorkerState(
            address="127.0.0.1:50061",
            is_serving=True,
            worker_epoch=9,
            device="cpu",
            attention_backend="torch",
            num_steps_in_flight=2,
            num_steps=1234,
            num_waiting=1,
            num_running=2,
            num_preempted=3,
            num_blocks=100,
            num_free_blocks=40,
            num_cached_blocks=35,
            kv_cache_usage_ratio=0.25,
            num_epochs_lost=4,
            device_idle_ratio=0.125,
            decode_time_ns=4_000_000,
            round_trip_time_ns=500_000,
        ),
        service_pb.WorkerState(address="127.0.0.1:50062", reason="connection refused"),
    ],
    uptime=Duration(seconds=3723),
)
MODEL_INFO = service_pb.GetModelInfoResponse(
    model_name="tiny",
    architecture="Qwen3ForCausalLM",
    vocab_size=320,
    max_model_len=512,
    eos_token_ids=[2, 7],
    has_chat_template=True,
    server_version="0.1.0",
)


@dataclass(slots=True)
class FakeGenerationService(GenerationServiceServicer):
    """Answers as its fields say, and keeps what it was asked."""

    deltas: list[types_pb.OutputDelta] = field(
        default_factory=lambda: [
            types_pb.OutputDelta(text="The ", token_ids=[11]),
            types_pb.OutputDelta(text="", token_ids=[12]),
            types_pb.OutputDelta(text="capital", token_ids=[13]),
        ]
    )
    final: types_pb.FinalOutput | None = field(default_factory=lambda: FINAL)
    error: tuple[grpc.StatusCode, str] | None = None
    """The status of every call; of Generate after its deltas, in place of the final message."""
    errors_of_generate: list[tuple[grpc.StatusCode, str] | None] = field(default_factory=list)
    """The status of each call of Generate, in order, before its deltas; None lets it pass."""
    is_endless: bool = False
    """Generate goes silent after its deltas, until its client leaves."""
    model_info: service_pb.GetModelInfoResponse = field(default_factory=lambda: MODEL_INFO)
    requests: list[service_pb.GenerateRequest] = field(default_factory=list)
    aborted_ids: list[str] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    """What each call of Generate and GenerateMany told of its caller; empty: nothing."""
    has_left: threading.Event = field(default_factory=threading.Event)
    """Set when a call of Generate or GenerateMany has ended, however it did."""

    def Generate(
        self, request: service_pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[service_pb.GenerateResponse]:
        self.requests.append(request)
        self._note_caller(context)
        has_left = threading.Event()
        context.add_callback(has_left.set)
        context.add_callback(self.has_left.set)
        error = self.errors_of_generate.pop(0) if self.errors_of_generate else None
        if error is not None:
            context.abort(*error)
        for delta in self.deltas:
            yield service_pb.GenerateResponse(request_id=request.request_id, delta=delta)
        if self.is_endless:
            has_left.wait(timeout=30)
            return
        self._fail(context)
        if self.final is not None:
            yield service_pb.GenerateResponse(request_id=request.request_id, final=self.final)

    def GenerateMany(
        self, request_iterator: Iterator[service_pb.GenerateManyRequest], context: grpc.ServicerContext
    ) -> Iterator[service_pb.GenerateManyResponse]:
        context.add_callback(self.has_left.set)
        self._note_caller(context)
        for action in request_iterator:
            self._fail(context)  # not before: a write to a call that has ended loses its status
            request = action.generate
            self.requests.append(request)
            if request.text == "bad":
                error = service_pb.RequestError(code=3, message="text is 'bad', but must be good")
                yield service_pb.GenerateManyResponse(request_id=request.request_id, error=error)
                continue
            for delta in self.deltas:
                yield service_pb.GenerateManyResponse(request_id=request.request_id, delta=delta)
            yield service_pb.GenerateManyResponse(request_id=request.request_id, final=self.final)

    def Abort(
        self, request: service_pb.AbortRequest, context: grpc.ServicerContext
    ) -> service_pb.AbortResponse:
        self._fail(context)
        self.aborted_ids.append(request.request_id)
        return service_pb.AbortResponse()

    def GetModelInfo(
        self, request: service_pb.GetModelInfoRequest, context: grpc.ServicerContext
    ) -> service_pb.GetModelInfoResponse:
        self._fail(context)
        return self.model_info

    def GetServerState(
        self, request: service_pb.GetServerStateRequest, context: grpc.ServicerContext
    ) -> service_pb.GetServerStateResponse:
        self._fail(context)
        return STATE

    def Tokenize(
        self, request: service_pb.TokenizeRequest, context: grpc.ServicerContext
    ) -> service_pb.TokenizeResponse:
        text = request.text or "|".join(f"{item.role}:{item.content}" for item in request.chat.messages)
        return service_pb.TokenizeResponse(token_ids=list(text.encode()), text=text)

    def Detokenize(
        self, request: service_pb.DetokenizeRequest, context: grpc.ServicerContext
    ) -> service_pb.DetokenizeResponse:
        text = bytes(request.token_ids).decode()
        return service_pb.DetokenizeResponse(text=text.strip("|") if request.skip_special_tokens else text)

    def _note_caller(self, context: grpc.ServicerContext) -> None:
        told = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        self.authorizations.append(told.get("authorization", ""))

    def _fail(self, context: grpc.ServicerContext) -> None:
        if self.error is not None:
            # As with a server's own status: without an id it is one of gRPC's.
            context.set_trailing_metadata((("x-request-id", "call"),))
            context.abort(*self.error)
