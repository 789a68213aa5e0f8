"""Plans, results and hellos to the step stream's protobuf and back.

Arrays cross as bytes of little-endian int32 (``tobytes`` and ``frombuffer``): no Python loop runs
over rows or tokens. Knows nothing about streams, credits or what a plan means.
"""

from array import array

import numpy as np
import numpy.typing as npt
from stepwire.worker.v1 import worker_service_pb2 as pb

from scheduler_svc.core.plan import Admission, Logprobs, StepPlan, StepResult
from scheduler_svc.core.types import Float32Array, Int32Array, SamplingParams
from scheduler_svc.engine.limits import PROTOCOL_VERSION
from scheduler_svc.engine.values import ModelIdentity, StepTimes, WorkerFacts

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")
_MOST_TIME_NS = 86_400 * 10**9
"""A day: nothing that a result tells lasts longer."""


def int32_bytes(array: npt.NDArray[np.integer]) -> bytes:
    """Encode integers as little-endian int32."""
    return array.astype(_INT32, copy=False).tobytes()


def float32_bytes(array: npt.NDArray[np.floating]) -> bytes:
    """Encode floats as little-endian float32."""
    return array.astype(_FLOAT32, copy=False).tobytes()


def int32_array(data: bytes) -> Int32Array:
    """View bytes of little-endian int32 as a read-only array."""
    return np.frombuffer(data, _INT32).astype(np.int32, copy=False)


def float32_array(data: bytes) -> Float32Array:
    """View bytes of little-endian float32 as a read-only array."""
    return np.frombuffer(data, _FLOAT32).astype(np.float32, copy=False)


def hello_to_pb(expected: ModelIdentity, fencing_number: int) -> pb.RunStepsRequest:
    """Build the engine's first message."""
    hello = pb.EngineHello(
        protocol_version=PROTOCOL_VERSION,
        fencing_number=fencing_number,
        config_hash=expected.config_hash,
        vocab_size=expected.vocab_size,
        tokenizer_hash=expected.tokenizer_hash,
    )
    return pb.RunStepsRequest(hello=hello)


def facts_from_pb(hello: pb.WorkerHello) -> WorkerFacts:
    """Read what a worker says of itself."""
    return WorkerFacts(
        protocol_version=hello.protocol_version,
        worker_epoch=hello.worker_epoch,
        model=ModelIdentity(
            config_hash=hello.config_hash, vocab_size=hello.vocab_size, tokenizer_hash=hello.tokenizer_hash
        ),
        block_size=hello.block_size,
        num_blocks=hello.num_blocks,
        max_num_seqs=hello.max_num_seqs,
        max_num_batched_tokens=hello.max_num_batched_tokens,
        max_model_len=hello.max_model_len,
        max_steps_in_flight=hello.max_steps_in_flight,
        max_lease_steps=hello.max_lease_steps,
        device=hello.device,
        dtype=hello.dtype,
        attention_backend=hello.attention_backend,
        tp_size=hello.tp_size,
    )


def plan_to_pb(plan: StepPlan) -> pb.RunStepsRequest:
    """Encode one step, in place: a message given to another's constructor is copied, which costs as much."""
    request = pb.RunStepsRequest()
    step = request.step
    step.step_id = plan.step_id
    step.released_lanes = int32_bytes(plan.released_lanes)
    for admission in plan.admissions:
        _write_admission(step.admissions.add(), admission)
    step.append_lanes = int32_bytes(plan.append_lanes)
    step.append_block_ids = int32_bytes(plan.append_block_ids)
    step.row_lanes = int32_bytes(plan.row_lanes)
    step.row_num_tokens = int32_bytes(plan.row_num_tokens)
    step.row_samples = plan.row_samples.tobytes()
    if plan.num_steps > 1:
        step.num_steps = plan.num_steps
    if plan.takes_over:
        step.take_over = True
    return request


def _write_admission(message: pb.Admission, admission: Admission) -> None:
    message.lane = admission.lane
    message.incarnation = admission.incarnation
    message.token_ids = int32_bytes(admission.token_ids)
    message.num_prompt_tokens = admission.num_prompt_tokens
    message.num_computed_tokens = admission.num_computed_tokens
    message.block_ids = int32_bytes(admission.block_ids)
    message.max_total_tokens = admission.max_total_tokens
    write_sampling(message.sampling, admission.sampling)


def write_sampling(message: pb.LaneSampling, sampling: SamplingParams) -> None:
    """Encode how a lane's tokens are chosen into a new message."""
    message.temperature = sampling.temperature
    message.top_k = sampling.top_k
    message.top_p = sampling.top_p
    message.min_p = sampling.min_p
    message.seed = sampling.seed
    message.presence_penalty = sampling.presence_penalty
    message.frequency_penalty = sampling.frequency_penalty
    message.repetition_penalty = sampling.repetition_penalty
    if sampling.logit_bias:
        message.bias_token_ids = array("i", [key for key, _ in sampling.logit_bias]).tobytes()
        message.bias_values = array("f", [value for _, value in sampling.logit_bias]).tobytes()
    if sampling.stop_token_ids:
        message.stop_token_ids = array("i", sampling.stop_token_ids).tobytes()
    message.min_tokens = sampling.min_tokens
    message.num_logprobs_plus_one = sampling.num_logprobs_plus_one


def sampling_from_pb(sampling: pb.LaneSampling, seed: int) -> SamplingParams:
    """Read how a lane's tokens are chosen; ``seed`` is the client's or the engine's own."""
    bias_token_ids = int32_array(sampling.bias_token_ids).tolist()
    bias_values = float32_array(sampling.bias_values).tolist()
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=tuple(zip(bias_token_ids, bias_values, strict=True)),
        stop_token_ids=tuple(int32_array(sampling.stop_token_ids).tolist()),
        min_tokens=sampling.min_tokens,
        num_logprobs_plus_one=sampling.num_logprobs_plus_one,
    )


def times_from_pb(result: pb.StepResult) -> StepTimes:
    """Read what the worker measured.

    Raises:
        ValueError: if a time is longer than a day, which what is reckoned from it might not be able to tell.
    """
    for field in ("busy_time_ns", "idle_time_ns", "held_time_ns"):
        if getattr(result, field) > _MOST_TIME_NS:
            raise ValueError(f"{field} is {getattr(result, field)}, but must be at most {_MOST_TIME_NS}")
    return StepTimes(
        num_iterations=result.num_iterations,
        busy_seconds=result.busy_time_ns / 1e9,
        idle_seconds=result.idle_time_ns / 1e9,
        held_seconds=result.held_time_ns / 1e9,
    )


def result_from_pb(result: pb.StepResult) -> StepResult:
    """Read what a step sampled.

    Raises:
        ValueError: if the arrays do not fit each other.
    """
    token_ids = int32_array(result.token_ids)
    logprobs = None
    if result.logprob_counts:
        logprobs = Logprobs(
            counts=int32_array(result.logprob_counts),
            token_ids=int32_array(result.logprob_token_ids),
            values=float32_array(result.logprob_values),
        )
        num_entries = int(logprobs.counts.sum())
        if len(logprobs.counts) != len(token_ids) or (logprobs.counts < 0).any():
            raise ValueError(f"{len(logprobs.counts)} logprob counts for {len(token_ids)} tokens")
        if len(logprobs.token_ids) != num_entries or len(logprobs.values) != num_entries:
            raise ValueError(f"logprob counts add up to {num_entries}, but the entries are as many as not")
    return StepResult(
        step_id=result.step_id,
        token_ids=token_ids,
        logprobs=logprobs,
        iteration=result.iteration,
        num_iterations=result.num_iterations,
        is_last=result.is_last,
    )
