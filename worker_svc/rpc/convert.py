"""Protobuf to plain values and back.

Arrays are views of the message's bytes: int32 or float32, little-endian. Checks that bytes are whole
arrays and nothing else: what the values mean is for the sequence table to check.
"""

import numpy as np
from stepwire.worker.v1 import worker_service_pb2 as pb

from worker_svc.batch.lease import MAX_LEASE_STEPS
from worker_svc.batch.step import (
    Admission,
    BoolArray,
    Float32Array,
    Int32Array,
    LaneSampling,
    Step,
    StepResult,
)
from worker_svc.errors import ProtocolError
from worker_svc.runner.worker_info import WorkerInfo

PROTOCOL_VERSION = 1
_NO_INT32 = np.empty(0, np.int32)


def worker_hello(info: WorkerInfo, worker_epoch: int) -> pb.WorkerHello:
    """Build the worker's hello for one stream."""
    return pb.WorkerHello(
        protocol_version=PROTOCOL_VERSION,
        worker_epoch=worker_epoch,
        config_hash=info.config_hash,
        vocab_size=info.limits.vocab_size,
        tokenizer_hash=info.tokenizer_hash,
        block_size=info.limits.block_size,
        num_blocks=info.limits.num_blocks,
        max_num_seqs=info.limits.max_num_seqs,
        max_num_batched_tokens=info.limits.max_num_batched_tokens,
        max_model_len=info.limits.max_model_len,
        max_steps_in_flight=info.max_steps_in_flight,
        device=info.device,
        dtype=info.dtype,
        attention_backend=info.attention_backend,
        tp_size=info.tp_size,
        versions=info.versions,
        max_lease_steps=MAX_LEASE_STEPS,
    )


def step_from_bytes(data: bytes) -> Step:
    """Read a step that another rank was sent."""
    return step_from_proto(pb.Step.FromString(data))


def step_from_proto(message: pb.Step, *, keeps_bytes: bool = False) -> Step:
    """Read a step.

    Args:
        message: As the engine sent it.
        keeps_bytes: Whether other ranks need it, too.

    Raises:
        ProtocolError: if the bytes of a field are no whole array, or it has no iteration.
    """
    num_steps = message.num_steps if message.HasField("num_steps") else 1
    if num_steps < 1:
        raise ProtocolError.of("num_steps", num_steps, "be at least 1")
    return Step(
        step_id=message.step_id,
        released_lanes=_int32("released_lanes", message.released_lanes),
        admissions=tuple(map(_admission_from_proto, message.admissions)),
        append_lanes=_int32("append_lanes", message.append_lanes),
        append_block_ids=_int32("append_block_ids", message.append_block_ids),
        row_lanes=_int32("row_lanes", message.row_lanes),
        row_num_tokens=_int32("row_num_tokens", message.row_num_tokens),
        row_samples=_bool("row_samples", message.row_samples),
        num_steps=num_steps,
        takes_over=message.take_over,
        serialized=message.SerializeToString() if keeps_bytes else b"",
    )


def result_to_proto(result: StepResult) -> pb.StepResult:
    """Write a result."""
    message = pb.StepResult(
        step_id=result.step_id,
        token_ids=result.sampled.token_ids.astype("<i4", copy=False).tobytes(),
        step_time_ns=result.step_time_ns,
        iteration=result.iteration,
        num_iterations=result.num_iterations,
        is_last=result.is_last,
        busy_time_ns=result.busy_time_ns,
        idle_time_ns=result.idle_time_ns,
    )
    if (logprobs := result.sampled.logprobs) is not None:
        message.logprob_counts = logprobs.counts.astype("<i4", copy=False).tobytes()
        message.logprob_token_ids = logprobs.token_ids.astype("<i4", copy=False).tobytes()
        message.logprob_values = logprobs.values.astype("<f4", copy=False).tobytes()
    return message


def join_results(earlier: pb.StepResult, later: pb.StepResult) -> None:
    """Add what the next iterations of the same lease told to ``earlier``."""
    if earlier.logprob_counts or later.logprob_counts:
        # Empty where no row asked, which is true of neither alone: a row's end ends its entries.
        for result in (earlier, later):
            result.logprob_counts = result.logprob_counts or bytes(len(result.token_ids))
    for field in ("token_ids", "logprob_counts", "logprob_token_ids", "logprob_values"):
        setattr(earlier, field, getattr(earlier, field) + getattr(later, field))
    for field in ("step_time_ns", "num_iterations", "busy_time_ns", "idle_time_ns"):
        setattr(earlier, field, getattr(earlier, field) + getattr(later, field))
    earlier.is_last = later.is_last
    earlier.held_time_ns = later.held_time_ns


def _admission_from_proto(message: pb.Admission) -> Admission:
    return Admission(
        lane=message.lane,
        incarnation=message.incarnation,
        token_ids=_int32("token_ids", message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        block_ids=_int32("block_ids", message.block_ids),
        max_total_tokens=message.max_total_tokens,
        sampling=_sampling_from_proto(message.sampling),
    )


def _sampling_from_proto(message: pb.LaneSampling) -> LaneSampling:
    return LaneSampling(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        seed=message.seed,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        bias_token_ids=_int32("bias_token_ids", message.bias_token_ids),
        bias_values=_float32("bias_values", message.bias_values),
        stop_token_ids=_int32("stop_token_ids", message.stop_token_ids),
        min_tokens=message.min_tokens,
        num_logprobs_plus_one=message.num_logprobs_plus_one,
    )


def _int32(field: str, data: bytes) -> Int32Array:
    if not data:
        return _NO_INT32
    _check_whole(field, data)
    return np.frombuffer(data, "<i4")


def _float32(field: str, data: bytes) -> Float32Array:
    _check_whole(field, data)
    return np.frombuffer(data, "<f4")


def _bool(field: str, data: bytes) -> BoolArray:
    # Steps of decodes, which most are, have only ones.
    if data.count(1) < len(data) and max(data) > 1:
        raise ProtocolError.of(field, max(data), "be 0 or 1 for each row")
    return np.frombuffer(data, np.bool_)


def _check_whole(field: str, data: bytes) -> None:
    if len(data) % 4:
        raise ProtocolError.of(f"size of {field} in bytes", len(data), "be a multiple of 4")
