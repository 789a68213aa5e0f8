"""GenerationService: check, call, reply.

Knows nothing about how requests run; errors leave as exceptions, which interceptors.py turns into
statuses.
"""

from collections.abc import AsyncIterator
from typing import Any

import grpc
from stepwire.v1 import generation_service_pb2 as pb
from stepwire.v1 import generation_service_pb2_grpc

from scheduler_svc.frontend import convert
from scheduler_svc.frontend.client_gone import cancelled_where_client_is_gone
from scheduler_svc.frontend.engine_link import EngineLink
from scheduler_svc.frontend.generate import Generator
from scheduler_svc.frontend.generate_many import ManyGenerations
from scheduler_svc.frontend.request_check import check_aborted_id
from scheduler_svc.frontend.server_version import server_version
from scheduler_svc.frontend.values import Told

Context = grpc.aio.ServicerContext[Any, Any]


class GenerationServicer(generation_service_pb2_grpc.GenerationServiceServicer):
    """The service that clients call."""

    def __init__(self, generator: Generator, link: EngineLink, *, max_open_on_stream: int) -> None:
        """Serve ``generator``; a stream of GenerateMany has ``max_open_on_stream`` requests open at most."""
        self._generator = generator
        self._model = generator.model
        self._link = link
        self._max_open_on_stream = max_open_on_stream

    # The generated types know async generators only; grpc.aio also takes coroutines that write.
    async def Generate(  # type: ignore[override]  # noqa: N802
        self, request: pb.GenerateRequest, context: Context
    ) -> None:
        """Run one request and stream its output."""

        async def write(told: Told) -> None:
            with cancelled_where_client_is_gone():
                await context.write(convert.write_response(told))

        self._generator.check_counts(convert.count_entries(request))
        await self._generator.run(
            convert.read_request(request), write=write, seconds_left=context.time_remaining
        )

    async def GenerateMany(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.GenerateManyRequest], context: Context
    ) -> None:
        """Run many requests multiplexed on one stream."""

        async def write(response: pb.GenerateManyResponse) -> None:
            with cancelled_where_client_is_gone():
                await context.write(response)

        many = ManyGenerations(
            self._generator,
            write=write,
            seconds_left=context.time_remaining,
            max_open=self._max_open_on_stream,
        )
        await many.run(request_iterator)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:  # noqa: ARG002, N802
        """End a running request by its id."""
        check_aborted_id("request_id", request.request_id)
        self._generator.abort(request.request_id)
        return pb.AbortResponse()

    async def GetModelInfo(  # noqa: N802
        self,
        request: pb.GetModelInfoRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> pb.GetModelInfoResponse:
        """Tell which model is served and its limits."""
        limits = self._model.limits(self._generator.engine_facts)
        return pb.GetModelInfoResponse(
            model_name=self._model.name,
            architecture=self._model.config.architecture,
            vocab_size=limits.vocab_size,
            max_model_len=limits.max_model_len,
            eos_token_ids=limits.eos_token_ids,
            has_chat_template=self._model.chat_template is not None,
            server_version=server_version(),
        )

    async def GetServerState(  # noqa: N802
        self,
        request: pb.GetServerStateRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> pb.GetServerStateResponse:
        """Tell queues, KV cache usage and workers."""
        return await self._link.get_state()

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:  # noqa: ARG002, N802
        """Turn text or chat messages into token ids exactly as Generate would."""
        self._generator.check_counts(convert.count_tokenize_entries(request))
        text, token_ids = await self._model.read_prompt(convert.read_tokenize_prompt(request))
        return pb.TokenizeResponse(token_ids=token_ids.tolist(), text=text)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:  # noqa: ARG002, N802
        """Turn token ids into text."""
        text = await self._model.detokenize(
            request.token_ids, skips_special_tokens=request.skip_special_tokens
        )
        return pb.DetokenizeResponse(text=text)
