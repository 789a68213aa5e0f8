"""AsyncStepwireClient: every call of the generation service, for asyncio.

Knows nothing about what messages look like inside; client.py is its twin for threads.
"""

import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Protocol, Self, TypeVar, Unpack

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1.generation_service_pb2_grpc import GenerationServiceStub

from stepwire_client.aio_bulk import AsyncBulkStream
from stepwire_client.aio_calls import translate_errors
from stepwire_client.aio_stream import AsyncGenerationStream
from stepwire_client.bulk_window import DEFAULT_MAX_CONCURRENT, BulkWindow, with_request_id
from stepwire_client.channel import (
    DEFAULT_ADDRESS,
    DEFAULT_MAX_MESSAGE_BYTES,
    channel_options,
    check_resume_seconds,
    check_timeout,
)
from stepwire_client.decode import decode_model_info, decode_server_state, decode_tokenized
from stepwire_client.encode import encode_detokenize, encode_request, encode_tokenize
from stepwire_client.requests import GenerationRequest, Prompt, RequestOptions
from stepwire_client.results import Completion, ModelInfo, ServerState, Tokenized
from stepwire_client.resume import Patience
from stepwire_client.security import Metadata, Tls, open_aio_channel, token_metadata

RequestT_contra = TypeVar("RequestT_contra", contravariant=True)
ResponseT_co = TypeVar("ResponseT_co", covariant=True)


class AsyncUnaryMethod(Protocol[RequestT_contra, ResponseT_co]):
    """A method of the stub that answers once."""

    def __call__(
        self, request: RequestT_contra, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> Awaitable[ResponseT_co]:
        """Send the request; await the answer."""


class AsyncStepwireClient:
    """One connection to a Stepwire server. Close it, or use it in ``async with``.

    It belongs to the event loop that it was made in.
    ``timeout_seconds`` of each call is its deadline, which the server keeps too; None means none.
    All calls raise StepwireClientError.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        resume_seconds: float | None = None,
        tls: Tls | None = None,
        token: str | None = None,
    ) -> None:
        """Prepare a connection, which the first call makes.

        Args:
            address: HOST:PORT of the server.
            max_message_bytes: the largest message, each way.
            resume_seconds: how long a generation whose server went away is tried again, from where
                it was, without new output; 0: never; None: until the deadline of the call, and
                without one for 60 s.
            tls: how the server is known; None: no TLS.
            token: tells whose calls these are, where the server asks for that; None or empty: no token.

        Raises:
            InvalidRequest: if ``resume_seconds`` is no length of time, or a file cannot be read.
        """
        self._resume_seconds = check_resume_seconds(resume_seconds)
        self._metadata = token_metadata(token)
        self._channel = open_aio_channel(address, tls, options=channel_options(max_message_bytes))
        self._stub = GenerationServiceStub(self._channel)

    def generate(
        self, prompt: Prompt, *, timeout_seconds: float | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncGenerationStream:
        """Start one generation and stream its output.

        Args:
            prompt: text, token ids, or a conversation for the model's chat template.
            timeout_seconds: the deadline of the whole generation.
            options: fields of SamplingParams, StopParams, OutputParams and GenerationRequest.

        Raises:
            InvalidRequest: if an option cannot be sent; all else is raised by the stream.
        """
        request = encode_request(with_request_id(GenerationRequest.of(prompt, **options)))
        return AsyncGenerationStream(self._start_generate, request, self._patience(timeout_seconds))

    async def complete(
        self, prompt: Prompt, *, timeout_seconds: float | None = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """Generate and wait for the end; arguments as of generate()."""
        async with self.generate(prompt, timeout_seconds=timeout_seconds, **options) as stream:
            return await stream.completion()

    def generate_many(
        self,
        requests: Iterable[GenerationRequest],
        *,
        max_concurrent: int = DEFAULT_MAX_CONCURRENT,
        timeout_seconds: float | None = None,
    ) -> AsyncBulkStream:
        """Run many generations over one stream and yield (request id, event) as they come.

        Args:
            requests: taken from the iterable only as earlier ones end, so there may be very many.
            max_concurrent: how many are open at a time.
            timeout_seconds: the deadline of all of them together.

        Raises:
            InvalidRequest: if the deadline or ``max_concurrent`` cannot be.
        """
        window = BulkWindow(requests, max_concurrent, self._patience(timeout_seconds))
        return AsyncBulkStream(self._start_generate_many, window)

    async def abort(self, request_id: str, *, timeout_seconds: float | None = None) -> None:
        """End a running request by its id; an unknown or ended id is no error."""
        await self._call(self._stub.Abort, service_pb.AbortRequest(request_id=request_id), timeout_seconds)

    async def model_info(self, *, timeout_seconds: float | None = None) -> ModelInfo:
        """Tell which model is served and its limits."""
        request = service_pb.GetModelInfoRequest()
        return decode_model_info(await self._call(self._stub.GetModelInfo, request, timeout_seconds))

    async def server_state(self, *, timeout_seconds: float | None = None) -> ServerState:
        """Tell queues, KV cache usage and workers."""
        request = service_pb.GetServerStateRequest()
        return decode_server_state(await self._call(self._stub.GetServerState, request, timeout_seconds))

    async def tokenize(
        self,
        prompt: Prompt,
        *,
        template_arguments: Mapping[str, object] | None = None,
        add_generation_prompt: bool | None = None,
        timeout_seconds: float | None = None,
    ) -> Tokenized:
        """Turn text or a conversation into token ids exactly as generate() would."""
        request = GenerationRequest(
            prompt=prompt, template_arguments=template_arguments, add_generation_prompt=add_generation_prompt
        )
        return decode_tokenized(
            await self._call(self._stub.Tokenize, encode_tokenize(request), timeout_seconds)
        )

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        timeout_seconds: float | None = None,
    ) -> str:
        """Turn token ids into text."""
        request = encode_detokenize(token_ids, skip_special_tokens=skip_special_tokens)
        return (await self._call(self._stub.Detokenize, request, timeout_seconds)).text

    def _start_generate(
        self, request: service_pb.GenerateRequest, timeout: float | None
    ) -> "grpc.aio.UnaryStreamCall[service_pb.GenerateRequest, service_pb.GenerateResponse]":
        return self._stub.Generate(request, timeout=timeout, metadata=self._metadata)

    def _start_generate_many(
        self, timeout: float | None
    ) -> "grpc.aio.StreamStreamCall[service_pb.GenerateManyRequest, service_pb.GenerateManyResponse]":
        return self._stub.GenerateMany(timeout=timeout, metadata=self._metadata)

    async def _call(
        self,
        method: AsyncUnaryMethod[RequestT_contra, ResponseT_co],
        request: RequestT_contra,
        timeout_seconds: float | None,
    ) -> ResponseT_co:
        timeout = check_timeout(timeout_seconds)
        with translate_errors():
            return await method(request, timeout=timeout, metadata=self._metadata)

    def _patience(self, timeout_seconds: float | None) -> Patience:
        return Patience(
            now_seconds=time.monotonic(),
            timeout_seconds=check_timeout(timeout_seconds),
            resume_seconds=self._resume_seconds,
        )

    async def close(self) -> None:
        """Close the connection; streams that are still open are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
