"""vllm.grpc.engine.VllmEngine, which smg and other gateways call: a translation onto our own requests.

A request goes the same way as one of GenerationService (generate.py). Knows nothing about how requests
run; errors leave as exceptions, which interceptors.py turns into statuses.
"""

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NoReturn

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from scheduler_svc.errors import EventsGoneError, InvalidRequestError, UnsupportedError
from scheduler_svc.frontend import vllm_cache_convert, vllm_convert, vllm_info_convert
from scheduler_svc.frontend.caller import calling_tenant
from scheduler_svc.frontend.client_gone import cancelled_where_client_is_gone
from scheduler_svc.frontend.engine_link import EngineLink
from scheduler_svc.frontend.generate import Generator
from scheduler_svc.frontend.request_check import check_aborted_id
from scheduler_svc.frontend.server_version import server_version
from scheduler_svc.frontend.token_rate import TokenRate
from scheduler_svc.frontend.tokenizer_archive import TokenizerArchives
from scheduler_svc.frontend.values import Told

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["VllmEngine"].full_name

_MAX_ABORTED_IDS = 1024
_CHUNK_BYTES = 64 * 1024

Context = grpc.aio.ServicerContext[Any, Any]


def _refusing(method: str, reason: str) -> Callable[..., Awaitable[NoReturn]]:
    """Make a method that refuses every call."""

    async def refuse(*_: object) -> NoReturn:
        raise UnsupportedError(f"{SERVICE_NAME}/{method} is not supported: {reason}")

    return refuse


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """The service that gateways call."""

    def __init__(self, generator: Generator, link: EngineLink) -> None:
        self._generator = generator
        self._model = generator.model
        self._link = link
        self._archives = TokenizerArchives(generator.model.folder)
        self._token_rate = TokenRate()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # noqa: N802
        """Run one request; tell chunks and an end where ``stream`` is set, else all of it at the end."""
        answer = vllm_convert.Answer(is_stream=request.stream)

        async def write(told: Told) -> None:
            message = answer.take(told)
            if message is not None:
                with cancelled_where_client_is_gone():
                    await context.write(message)

        try:
            self._generator.check_counts(vllm_convert.count_entries(request))
            asked = vllm_convert.read_request(request)
            await self._generator.run(asked, write=write, seconds_left=context.time_remaining)
        except InvalidRequestError as error:
            raise vllm_convert.with_their_names(error) from error

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:  # noqa: ARG002, N802
        """End running requests by their ids; unknown and ended ones are no error."""
        num_ids = len(request.request_ids)
        if num_ids > _MAX_ABORTED_IDS:
            limit = f"be at most {_MAX_ABORTED_IDS}"
            raise InvalidRequestError.of("number of entries in request_ids", num_ids, limit)
        for index, request_id in enumerate(request.request_ids):
            check_aborted_id(f"request_ids[{index}]", request_id)
        for request_id in request.request_ids:
            self._generator.abort(request_id)
        return pb.AbortResponse()

    async def HealthCheck(  # noqa: N802
        self,
        request: pb.HealthCheckRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> pb.HealthCheckResponse:
        """Tell whether requests can run now."""
        return vllm_info_convert.write_health(self._generator.engine_facts)

    async def GetModelInfo(  # noqa: N802
        self,
        request: pb.GetModelInfoRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> pb.GetModelInfoResponse:
        """Tell which model is served and its limits."""
        return vllm_info_convert.write_model_info(self._model, self._generator.engine_facts)

    async def GetServerInfo(  # noqa: N802
        self,
        request: pb.GetServerInfoRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> pb.GetServerInfoResponse:
        """Tell what the workers run with."""
        return vllm_info_convert.write_server_info(await self._link.get_state(), self._generator.engine_facts)

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:  # noqa: ARG002, N802
        """Tell queues, KV cache and throughput; there is one rank."""
        if request.dp_rank:
            limit = "be unset or 0: all worker groups together are rank 0"
            raise InvalidRequestError.of("dp_rank", request.dp_rank, limit)
        state = await self._link.get_state()
        uptime_seconds = state.uptime.ToNanoseconds() / 1e9
        return vllm_info_convert.write_loads(
            state,
            tokens_per_second=self._token_rate.update(uptime_seconds, state.num_output_tokens_total),
            now=datetime.now(UTC),
            version=server_version(),
        )

    async def GetTokenizer(  # noqa: N802
        self,
        request: common_pb2.GetTokenizerRequest,  # noqa: ARG002
        context: Context,
    ) -> None:
        """Send the tokenizer's files as a zip file in chunks, the last with its fingerprint."""
        archive = await self._archives.get()
        for start in range(0, len(archive.data), _CHUNK_BYTES):
            data = archive.data[start : start + _CHUNK_BYTES]
            is_last = start + _CHUNK_BYTES >= len(archive.data)
            with cancelled_where_client_is_gone():
                await context.write(
                    common_pb2.GetTokenizerChunk(data=data, sha256=archive.sha256 if is_last else "")
                )

    async def SubscribeKvEvents(  # noqa: N802
        self, request: common_pb2.SubscribeKvEventsRequest, context: Context
    ) -> None:
        """Tell what the prefix caches gain and lose from now on."""
        if request.start_sequence_number:
            raise EventsGoneError(
                f"start_sequence_number is {request.start_sequence_number}, but must be 0: no events are kept"
            )
        stream = vllm_cache_convert.EventStream(calling_tenant())
        async with aclosing(self._link.prefix_caches.watch()) as messages:
            async for message in messages:
                with cancelled_where_client_is_gone():
                    await context.write(stream.write_batch(message, now_seconds=time.time()))

    async def FlushCache(  # noqa: N802
        self,
        request: common_pb2.FlushCacheRequest,
        context: Context,  # noqa: ARG002
    ) -> common_pb2.FlushCacheResponse:
        """Make the prefix caches forget all, once no request lives."""
        timeout_seconds = vllm_cache_convert.read_flush_timeout(request)
        num_live = await self._link.prefix_caches.flush(timeout_seconds)
        return vllm_cache_convert.write_flushed(num_live)

    Embed = _refusing("Embed", "only generation is served")
    StartProfile = _refusing("StartProfile", "there is no profiler")
    StopProfile = _refusing("StopProfile", "there is no profiler")
