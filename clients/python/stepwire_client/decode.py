"""Protobuf to results.

Knows nothing about channels or streams.
"""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb

from stepwire_client.errors import Internal, StepwireClientError, error_of_number
from stepwire_client.results import (
    Delta,
    FinalOutput,
    FinishReason,
    ModelInfo,
    PositionLogprobs,
    ServerState,
    Timings,
    Tokenized,
    TokenLogprob,
    Usage,
    WorkerState,
)

FINISH_REASON_OF_NUMBER: dict[int, FinishReason] = {
    types_pb.FINISH_REASON_STOP: FinishReason.STOP,
    types_pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    types_pb.FINISH_REASON_ABORT: FinishReason.ABORT,
    types_pb.FINISH_REASON_ERROR: FinishReason.ERROR,
}
"""Every reason that a server may send."""


def decode_event(
    message: service_pb.GenerateResponse | service_pb.GenerateManyResponse,
) -> Delta | FinalOutput | StepwireClientError | None:
    """Turn one message of a stream into what it tells; None: nothing for a caller, or of a newer protocol.

    Raises:
        Internal: if the end has a reason that this client does not know.
    """
    kind = message.WhichOneof("event")
    if kind == "delta":
        return _decode_delta(message.delta)
    if kind == "final":
        return _decode_final(message.final)
    if kind == "error" and isinstance(message, service_pb.GenerateManyResponse):
        return error_of_number(
            message.error.code,
            message.error.message,
            retry_after_ms=message.error.retry_after_ms,
            is_resumable=message.error.is_resumable,
        )
    return None


def decode_model_info(message: service_pb.GetModelInfoResponse) -> ModelInfo:
    """Turn the answer of GetModelInfo into a value."""
    return ModelInfo(
        model_name=message.model_name,
        architecture=message.architecture,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        eos_token_ids=tuple(message.eos_token_ids),
        has_chat_template=message.has_chat_template,
        server_version=message.server_version,
    )


def decode_server_state(message: service_pb.GetServerStateResponse) -> ServerState:
    """Turn the answer of GetServerState into a value."""
    return ServerState(
        num_waiting=message.num_waiting,
        num_running=message.num_running,
        num_preempted=message.num_preempted,
        num_blocks=message.num_blocks,
        num_free_blocks=message.num_free_blocks,
        num_cached_blocks=message.num_cached_blocks,
        kv_cache_usage_ratio=message.kv_cache_usage_ratio,
        num_prompt_tokens_total=message.num_prompt_tokens_total,
        num_cached_tokens_total=message.num_cached_tokens_total,
        num_output_tokens_total=message.num_output_tokens_total,
        num_finished_total=message.num_finished_total,
        num_preemptions_total=message.num_preemptions_total,
        workers=tuple(_decode_worker(worker) for worker in message.workers),
        uptime_seconds=_seconds(message.uptime),
    )


def decode_tokenized(message: service_pb.TokenizeResponse) -> Tokenized:
    """Turn the answer of Tokenize into a value."""
    return Tokenized(token_ids=tuple(message.token_ids), text=message.text)


def _decode_delta(message: types_pb.OutputDelta) -> Delta:
    return Delta(
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=tuple(_decode_position(position) for position in message.logprobs),
    )


def _decode_position(message: types_pb.PositionLogprobs) -> PositionLogprobs:
    top = tuple(_decode_token_logprob(item) for item in message.top)
    return PositionLogprobs(sampled=_decode_token_logprob(message.sampled), top=top)


def _decode_token_logprob(message: types_pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(token_id=message.token_id, logprob=message.logprob)


def _decode_final(message: types_pb.FinalOutput) -> FinalOutput:
    reason = FINISH_REASON_OF_NUMBER.get(message.finish_reason)
    if reason is None:
        raise Internal(f"the server sent the unknown finish reason {message.finish_reason}")
    matched = message.WhichOneof("matched_stop")
    return FinalOutput(
        finish_reason=reason,
        matched_stop=None if matched is None else getattr(message, matched),
        usage=Usage(
            num_prompt_tokens=message.usage.num_prompt_tokens,
            num_output_tokens=message.usage.num_output_tokens,
            num_cached_tokens=message.usage.num_cached_tokens,
        ),
        timings=Timings(
            queue_seconds=_optional_seconds(message.timings, "queue"),
            first_token_seconds=_optional_seconds(message.timings, "first_token"),
            total_seconds=_optional_seconds(message.timings, "total"),
        ),
    )


def _decode_worker(message: service_pb.WorkerState) -> WorkerState:
    return WorkerState(
        address=message.address,
        is_serving=message.is_serving,
        reason=message.reason,
        worker_epoch=message.worker_epoch,
        device=message.device,
        attention_backend=message.attention_backend,
        num_steps_in_flight=message.num_steps_in_flight,
        num_steps=message.num_steps,
        num_waiting=message.num_waiting,
        num_running=message.num_running,
        num_preempted=message.num_preempted,
        num_blocks=message.num_blocks,
        num_free_blocks=message.num_free_blocks,
        num_cached_blocks=message.num_cached_blocks,
        kv_cache_usage_ratio=message.kv_cache_usage_ratio,
        num_epochs_lost=message.num_epochs_lost,
        device_idle_ratio=message.device_idle_ratio,
        decode_seconds=message.decode_time_ns / 1e9,
        round_trip_seconds=message.round_trip_time_ns / 1e9,
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _optional_seconds(message: Message, name: str) -> float | None:
    return _seconds(getattr(message, name)) if message.HasField(name) else None
