"""What front ends send and are told, to and from protobuf.

Knows nothing about streams, nor about what becomes of a request.
"""

from collections.abc import Callable

import numpy as np
from google.protobuf.duration_pb2 import Duration
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.v1 import generation_service_pb2 as public_pb

from scheduler_svc.core.plan import CoreState
from scheduler_svc.core.types import FinishReason, Request
from scheduler_svc.engine.convert import float32_bytes, int32_array, int32_bytes, sampling_from_pb
from scheduler_svc.engine.limits import PROTOCOL_VERSION
from scheduler_svc.engine.quotas import Claim
from scheduler_svc.engine.values import (
    ArrivedRequest,
    AskedAbort,
    AskedEnd,
    EndedRequest,
    EngineInfo,
    EngineState,
    FrontendBatch,
    LiveStatus,
    OwnerOutputs,
    RequestEnd,
    StartedRequest,
    WorkerStatus,
)

_MAX_HANDLE = 2**31 - 1
"""Handles travel back as int32."""

_REASON_OF_PB: dict[pb.EndReason, FinishReason] = {
    pb.END_REASON_STOP_STRING: FinishReason.STOP_STRING,
    pb.END_REASON_ABORT: FinishReason.ABORT,
    pb.END_REASON_DISCONNECT: FinishReason.DISCONNECT,
    pb.END_REASON_SLOW_CONSUMER: FinishReason.SLOW_CONSUMER,
}
_END_TO_PB: dict[RequestEnd, pb.RequestEnd] = {
    RequestEnd.STOP: pb.REQUEST_END_STOP,
    RequestEnd.LENGTH: pb.REQUEST_END_LENGTH,
    RequestEnd.ABORT: pb.REQUEST_END_ABORT,
    RequestEnd.DEADLINE: pb.REQUEST_END_DEADLINE,
    RequestEnd.INVALID: pb.REQUEST_END_INVALID,
    RequestEnd.DUPLICATE_ID: pb.REQUEST_END_DUPLICATE_ID,
    RequestEnd.QUEUE_FULL: pb.REQUEST_END_QUEUE_FULL,
    RequestEnd.UNAVAILABLE: pb.REQUEST_END_UNAVAILABLE,
    RequestEnd.INTERNAL: pb.REQUEST_END_INTERNAL,
}
_STATUS_TO_PB: dict[LiveStatus, pb.RequestStatus] = {
    LiveStatus.WAITING_FOR_WORKER: pb.REQUEST_STATUS_WAITING_FOR_WORKER,
    LiveStatus.RUNNING: pb.REQUEST_STATUS_RUNNING,
}
_GROUP_COUNTS = (
    "num_waiting",
    "num_running",
    "num_preempted",
    "num_blocks",
    "num_free_blocks",
    "num_cached_blocks",
)
_TOTALS = (
    "num_prompt_tokens_total",
    "num_cached_tokens_total",
    "num_output_tokens_total",
    "num_finished_total",
    "num_preemptions_total",
)


def batch_from_pb(
    message: pb.AttachRequest, owner: int, *, now_ns: int, draw_seed: Callable[[], int]
) -> FrontendBatch:
    """Read one message of a front end.

    Args:
        message: what came.
        owner: the engine's number of the front end's stream.
        now_ns: time of arrival, on the engine's monotonic clock.
        draw_seed: gives a seed to a request that brings none.

    Raises:
        ValueError: if the message breaks the protocol.
    """
    return FrontendBatch(
        owner=owner,
        arrival_ns=now_ns,
        requests=tuple(
            _arrived_from_pb(new, owner, now_ns=now_ns, draw_seed=draw_seed) for new in message.new_requests
        ),
        ends=tuple(_asked_end_from_pb(end) for end in message.end_requests),
        aborts=tuple(
            AskedAbort(
                request_id=abort.request_id,
                num_requests_before=abort.num_requests_before,
                asked_ns=abort.asked_ns,
            )
            for abort in message.aborts
        ),
    )


def _arrived_from_pb(
    new: pb.NewRequest, owner: int, *, now_ns: int, draw_seed: Callable[[], int]
) -> ArrivedRequest:
    if not 1 <= new.handle <= _MAX_HANDLE:
        limit = f"be in [1, {_MAX_HANDLE}]"
        raise ValueError(f"handle of request {new.request_id!r} is {new.handle}, but must {limit}")
    request = Request(
        request_id=new.request_id,
        prompt_token_ids=int32_array(new.prompt_token_ids),
        sampling=sampling_from_pb(new.sampling, new.sampling.seed if new.has_seed else draw_seed()),
        max_tokens=new.max_tokens or None,
        cache_salt=new.cache_salt,
        owner=owner,
        handle=new.handle,
        known_output_token_ids=int32_array(new.output_token_ids),
    )
    deadline_ns = now_ns + new.timeout_ns if new.timeout_ns else None
    return ArrivedRequest(
        request=request,
        deadline_ns=deadline_ns,
        takes_over=new.takes_over,
        claim=_claim_from_pb(new),
        traceparent=new.traceparent,
        asked_ns=new.asked_ns,
    )


def _claim_from_pb(new: pb.NewRequest) -> Claim | None:
    if not new.HasField("quota"):
        return None
    return Claim(
        tenant=new.quota.tenant,
        num_tokens=len(new.prompt_token_ids) // 4 + new.max_tokens,
        max_num_requests=new.quota.max_num_requests,
        max_num_tokens=new.quota.max_num_tokens,
    )


def _asked_end_from_pb(end: pb.EndRequest) -> AskedEnd:
    if end.reason not in _REASON_OF_PB:
        raise ValueError(f"end reason of handle {end.handle} is {end.reason}, which is none")
    reason = _REASON_OF_PB[end.reason]
    num_output_tokens = end.num_output_tokens if reason is FinishReason.STOP_STRING else None
    return AskedEnd(handle=end.handle, reason=reason, num_output_tokens=num_output_tokens)


def outputs_to_pb(outputs: OwnerOutputs) -> pb.AttachResponse:
    """Encode what one front end is told of a step."""
    message = pb.StepOutputs(handles=int32_bytes(outputs.handles), token_ids=int32_bytes(outputs.token_ids))
    if outputs.logprobs is not None:
        message.logprob_counts = int32_bytes(outputs.logprobs.counts)
        message.logprob_token_ids = int32_bytes(outputs.logprobs.token_ids)
        message.logprob_values = float32_bytes(outputs.logprobs.values)
    if outputs.started:
        _add_started(message, outputs.started)
    if outputs.statuses:
        message.status_handles = int32_bytes(np.array([handle for handle, _ in outputs.statuses], np.int64))
        message.statuses.extend(_STATUS_TO_PB[status] for _, status in outputs.statuses)
    message.ended.extend(_ended_to_pb(ended) for ended in outputs.ended)
    return pb.AttachResponse(outputs=message)


def _add_started(message: pb.StepOutputs, started: tuple[StartedRequest, ...]) -> None:
    message.started_handles = int32_bytes(np.array([one.handle for one in started], np.int64))
    message.started_num_cached_tokens = int32_bytes(
        np.array([one.num_cached_tokens for one in started], np.int64)
    )
    message.started_queue_time_ns.extend(one.queue_time_ns for one in started)


def _ended_to_pb(ended: EndedRequest) -> pb.EndedRequest:
    return pb.EndedRequest(
        handle=ended.handle,
        reason=_END_TO_PB[ended.end],
        matched_stop_token_id=ended.matched_stop_token_id,
        num_output_tokens=ended.num_output_tokens,
        num_cached_tokens=ended.num_cached_tokens,
        queue_time_ns=ended.queue_time_ns,
        message=ended.message,
    )


def info_to_pb(info: EngineInfo) -> pb.AttachResponse:
    """Encode the engine's readiness and limits."""
    message = pb.EngineInfo(
        protocol_version=PROTOCOL_VERSION,
        is_ready=info.is_ready,
        reason=info.reason,
        max_model_len=info.max_model_len,
        max_pool_tokens=info.max_pool_tokens,
        groups=[
            pb.WorkerGroupInfo(address=group.address, is_serving=group.is_serving, reason=group.reason)
            for group in info.groups
        ],
        num_unknown_groups=info.num_unknown_groups,
    )
    return pb.AttachResponse(info=message)


def state_to_pb(state: EngineState) -> pb.GetEngineStateResponse:
    """Encode the engine's counts."""
    message = public_pb.GetServerStateResponse(
        workers=[_worker_to_pb(worker) for worker in state.workers],
        uptime=Duration(seconds=state.uptime_ns // 10**9, nanos=state.uptime_ns % 10**9),
    )
    if state.core is not None:
        _add_counts(message, state.core)
        for name in _TOTALS:
            setattr(message, name, getattr(state.core, name))
    return pb.GetEngineStateResponse(state=message)


def _worker_to_pb(worker: WorkerStatus) -> public_pb.WorkerState:
    message = public_pb.WorkerState(
        address=worker.info.address,
        is_serving=worker.info.is_serving,
        reason=worker.info.reason,
        num_steps_in_flight=worker.num_steps_in_flight,
        num_steps=worker.num_steps,
        num_epochs_lost=worker.num_epochs_lost,
        device_idle_ratio=worker.device_idle_ratio,
        decode_time_ns=worker.decode_time_ns,
        round_trip_time_ns=worker.round_trip_time_ns,
        max_num_seqs=worker.max_num_seqs,
    )
    if worker.facts is not None:
        message.worker_epoch = worker.facts.worker_epoch
        message.device = worker.facts.device
        message.dtype = worker.facts.dtype
        message.block_size = worker.facts.block_size
        message.attention_backend = worker.facts.attention_backend
    if worker.core is not None:
        _add_counts(message, worker.core)
    return message


def _add_counts(message: public_pb.WorkerState | public_pb.GetServerStateResponse, core: CoreState) -> None:
    for name in _GROUP_COUNTS:
        setattr(message, name, getattr(core, name))
    num_held = core.num_blocks - core.num_free_blocks - core.num_cached_blocks
    message.kv_cache_usage_ratio = num_held / core.num_blocks
