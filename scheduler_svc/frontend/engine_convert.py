"""Between the front end's own values and the engine's protobuf messages.

Knows nothing about clients' messages (convert.py) or about how messages travel (engine_link.py).
"""

from itertools import pairwise

import numpy as np
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.worker.v1 import worker_service_pb2

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import (
    DeadlineError,
    DuplicateRequestError,
    InternalError,
    InvalidRequestError,
    QueueFullError,
    StepwireError,
    WorkerUnavailableError,
)
from scheduler_svc.frontend.tenants import Tenant
from scheduler_svc.frontend.values import (
    AskedSampling,
    CheckedRequest,
    Ended,
    EngineFacts,
    RequestStatus,
    TokenLogprobs,
)

_END_REASONS = {
    FinishReason.STOP_STRING: pb.END_REASON_STOP_STRING,
    FinishReason.ABORT: pb.END_REASON_ABORT,
    FinishReason.DISCONNECT: pb.END_REASON_DISCONNECT,
    FinishReason.SLOW_CONSUMER: pb.END_REASON_SLOW_CONSUMER,
}
_ERRORS: dict[int, type[StepwireError]] = {
    pb.REQUEST_END_DEADLINE: DeadlineError,
    pb.REQUEST_END_INVALID: InvalidRequestError,
    pb.REQUEST_END_DUPLICATE_ID: DuplicateRequestError,
    pb.REQUEST_END_QUEUE_FULL: QueueFullError,
    pb.REQUEST_END_UNAVAILABLE: WorkerUnavailableError,
    pb.REQUEST_END_INTERNAL: InternalError,
}
_STATUSES: dict[int, RequestStatus] = {
    pb.REQUEST_STATUS_WAITING_FOR_WORKER: RequestStatus.WAITING_FOR_WORKER,
    pb.REQUEST_STATUS_RUNNING: RequestStatus.RUNNING,
}
_DEFAULT_MESSAGES: dict[int, str] = {
    pb.REQUEST_END_DEADLINE: "the client's deadline passed",
    pb.REQUEST_END_INVALID: "the engine refused the request",
    pb.REQUEST_END_DUPLICATE_ID: "the request id is in use",
    pb.REQUEST_END_QUEUE_FULL: "too many requests wait",
    pb.REQUEST_END_UNAVAILABLE: "no worker can serve the request",
    pb.REQUEST_END_INTERNAL: "the engine failed",
}


def write_new_request(
    checked: CheckedRequest, *, handle: int, timeout_ns: int, asked_ns: int
) -> pb.NewRequest:
    """Write a request for the engine that a client asked for then; ``timeout_ns`` of 0 is no deadline."""
    asked, tenant = checked.asked, checked.tenant
    num_logprobs = asked.output.num_logprobs
    sampling = _write_sampling(asked.sampling)
    if checked.stop_token_ids:
        sampling.stop_token_ids = np.array(checked.stop_token_ids, "<i4").tobytes()
    sampling.min_tokens = asked.stop.min_tokens
    sampling.num_logprobs_plus_one = 0 if num_logprobs is None else num_logprobs + 1
    return pb.NewRequest(
        handle=handle,
        asked_ns=asked_ns,
        request_id=tenant.scoped_request_id(checked.request_id),
        prompt_token_ids=checked.prompt_token_ids.astype("<i4", copy=False).tobytes(),
        sampling=sampling,
        has_seed=asked.sampling.seed is not None,
        # Where tokens are counted, the most there can be must be told.
        max_tokens=checked.max_output_tokens if tenant.has_quota else asked.stop.max_tokens or 0,
        cache_salt=tenant.scoped_cache_salt(asked.cache_salt),
        timeout_ns=timeout_ns,
        output_token_ids=b"" if asked.resume is None else asked.resume.token_ids.astype("<i4").tobytes(),
        takes_over=asked.resume is not None,
        quota=_write_quota(tenant) if tenant.has_quota else None,
        traceparent=checked.traceparent,
    )


def _write_quota(tenant: Tenant) -> pb.TenantQuota:
    return pb.TenantQuota(
        tenant=tenant.name, max_num_requests=tenant.max_num_requests, max_num_tokens=tenant.max_num_tokens
    )


def write_end(handle: int, reason: FinishReason, *, num_output_tokens: int = 0) -> pb.EndRequest:
    """Write that the front end ends a request."""
    return pb.EndRequest(handle=handle, reason=_END_REASONS[reason], num_output_tokens=num_output_tokens)


def read_facts(message: pb.EngineInfo) -> EngineFacts:
    """Read what the engine tells of itself."""
    return EngineFacts(
        is_ready=message.is_ready,
        reason=message.reason,
        max_model_len=message.max_model_len,
        max_pool_tokens=message.max_pool_tokens,
        num_unknown_groups=message.num_unknown_groups,
        serving_workers=frozenset(group.address for group in message.groups if group.is_serving),
    )


def read_ended(message: pb.EndedRequest) -> Ended | StepwireError:
    """Read how a request ended: an ordinary end, or the error that its client gets."""
    kind = _ERRORS.get(message.reason)
    if kind is not None:
        return kind(message.message or _DEFAULT_MESSAGES[message.reason])
    has_stop_token = message.HasField("matched_stop_token_id")
    match message.reason:
        case pb.REQUEST_END_STOP:
            reason = FinishReason.STOP_TOKEN
        case pb.REQUEST_END_LENGTH:
            reason = FinishReason.LENGTH
        case pb.REQUEST_END_ABORT:
            reason = FinishReason.ABORT
        case _:
            return InternalError(f"the engine ended the request for the unknown reason {message.reason}")
    return Ended(
        reason=reason,
        matched_stop_token_id=message.matched_stop_token_id if has_stop_token else None,
        num_cached_tokens=message.num_cached_tokens,
        queue_time_ns=message.queue_time_ns,
    )


def read_started(outputs: pb.StepOutputs) -> list[tuple[int, int, int]]:
    """Read (handle, num_cached_tokens, queue_time_ns) of each request whose first step this was."""
    return list(
        zip(
            np.frombuffer(outputs.started_handles, "<i4").tolist(),
            np.frombuffer(outputs.started_num_cached_tokens, "<i4").tolist(),
            outputs.started_queue_time_ns,
            strict=True,
        )
    )


def read_statuses(outputs: pb.StepOutputs) -> list[tuple[int, RequestStatus]]:
    """Read (handle, status) of each request whose status is told; one that is new to us is left out."""
    handles: list[int] = np.frombuffer(outputs.status_handles, "<i4").tolist()
    return [
        (handle, _STATUSES[status])
        for handle, status in zip(handles, outputs.statuses, strict=True)
        if status in _STATUSES
    ]


def read_tokens(outputs: pb.StepOutputs) -> list[tuple[int, int]]:
    """Read (handle, token id) of each token of a step."""
    handles: list[int] = np.frombuffer(outputs.handles, "<i4").tolist()
    token_ids: list[int] = np.frombuffer(outputs.token_ids, "<i4").tolist()
    return list(zip(handles, token_ids, strict=True))


def read_logprobs(outputs: pb.StepOutputs) -> list[TokenLogprobs | None]:
    """Read the log-probabilities of each token of a step; None where they were not asked for."""
    counts = np.frombuffer(outputs.logprob_counts, "<i4")
    starts = np.concatenate(([0], np.cumsum(counts))).tolist()
    token_ids = np.frombuffer(outputs.logprob_token_ids, "<i4").tolist()
    values = np.frombuffer(outputs.logprob_values, "<f4").tolist()
    return [
        TokenLogprobs(token_ids=tuple(token_ids[start:end]), values=tuple(values[start:end]))
        if end > start
        else None
        for start, end in pairwise(starts)
    ]


def _write_sampling(sampling: AskedSampling) -> worker_service_pb2.LaneSampling:
    message = worker_service_pb2.LaneSampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed or 0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
    )
    if sampling.logit_bias:
        message.bias_token_ids = np.array([token_id for token_id, _ in sampling.logit_bias], "<i4").tobytes()
        message.bias_values = np.array([bias for _, bias in sampling.logit_bias], "<f4").tobytes()
    return message
