"""Conversion of the worker's messages, round trips included."""

import numpy as np
import pytest
from stepwire.worker.v1 import worker_service_pb2 as pb

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import Logprobs, SampledTokens, StepResult
from worker_svc.errors import ProtocolError
from worker_svc.rpc.convert import result_to_proto, step_from_proto, worker_hello
from worker_svc.runner.worker_info import WorkerInfo


def int32_bytes(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little", signed=True) for value in values)


FULL_STEP = pb.Step(
    step_id=2**63,
    released_lanes=int32_bytes(3, 1),
    admissions=[
        pb.Admission(
            lane=1,
            incarnation=2**62,
            token_ids=int32_bytes(70_000, 0, 151_935),
            num_prompt_tokens=2,
            num_computed_tokens=1,
            block_ids=int32_bytes(5, 2**31 - 1),
            max_total_tokens=9,
            sampling=pb.LaneSampling(
                temperature=0.5,
                top_k=40,
                top_p=0.25,
                min_p=0.125,
                seed=2**64 - 1,
                presence_penalty=-2.0,
                frequency_penalty=2.0,
                repetition_penalty=1.5,
                bias_token_ids=int32_bytes(8, 9),
                bias_values=np.array([1.5, -100.0], "<f4").tobytes(),
                stop_token_ids=int32_bytes(2),
                min_tokens=4,
                num_logprobs_plus_one=21,
            ),
        )
    ],
    append_lanes=int32_bytes(0, 0),
    append_block_ids=int32_bytes(7, 8),
    row_lanes=int32_bytes(0, 1),
    row_num_tokens=int32_bytes(1, 2),
    row_samples=b"\x01\x00",
)


def test_a_step_arrives_whole() -> None:
    step = step_from_proto(pb.Step.FromString(FULL_STEP.SerializeToString()))
    assert step.step_id == 2**63
    assert step.released_lanes.tolist() == [3, 1]
    assert step.append_lanes.tolist() == [0, 0]
    assert step.append_block_ids.tolist() == [7, 8]
    assert step.row_lanes.tolist() == [0, 1]
    assert step.row_num_tokens.tolist() == [1, 2]
    assert step.row_samples.tolist() == [True, False]
    assert step.row_lanes.dtype == np.int32
    assert step.row_samples.dtype == np.bool_


def test_an_admission_arrives_whole() -> None:
    (admission,) = step_from_proto(FULL_STEP).admissions
    assert (admission.lane, admission.incarnation) == (1, 2**62)
    assert admission.token_ids.tolist() == [70_000, 0, 151_935]
    assert (admission.num_prompt_tokens, admission.num_computed_tokens) == (2, 1)
    assert admission.block_ids.tolist() == [5, 2**31 - 1]
    assert admission.max_total_tokens == 9
    sampling = admission.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 40, 0.25, 0.125)
    assert sampling.seed == 2**64 - 1
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        -2,
        2,
        1.5,
    )
    assert sampling.bias_token_ids.tolist() == [8, 9]
    assert sampling.bias_values.tolist() == [1.5, -100.0]
    assert sampling.stop_token_ids.tolist() == [2]
    assert (sampling.min_tokens, sampling.num_logprobs_plus_one) == (4, 21)


def test_an_empty_step_gives_empty_arrays() -> None:
    step = step_from_proto(pb.Step(step_id=1))
    arrays = (
        step.released_lanes,
        step.append_lanes,
        step.append_block_ids,
        step.row_lanes,
        step.row_num_tokens,
    )
    assert [len(array) for array in (*arrays, step.row_samples)] == [0] * 6
    assert step.admissions == ()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (pb.Step(row_lanes=b"\0\0\0"), "size of row_lanes in bytes is 3, but must be a multiple of 4"),
        (pb.Step(row_samples=b"\1\2"), "row_samples is 2, but must be 0 or 1 for each row"),
        (
            pb.Step(admissions=[pb.Admission(token_ids=b"\0")]),
            "size of token_ids in bytes is 1, but must be a multiple of 4",
        ),
        (
            pb.Step(admissions=[pb.Admission(sampling=pb.LaneSampling(bias_values=b"\0\0"))]),
            "size of bias_values in bytes is 2, but must be a multiple of 4",
        ),
    ],
)
def test_bytes_that_are_no_array_are_refused(message: pb.Step, error: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        step_from_proto(message)
    assert str(caught.value) == error


def test_a_result_leaves_whole() -> None:
    logprobs = Logprobs(
        counts=np.array([2, 0, 1], np.int32),
        token_ids=np.array([70_000, 5, 6], np.int32),
        values=np.array([-0.5, -0.25, -4.0], np.float32),
    )
    sampled = SampledTokens(token_ids=np.array([70_000, 3, 6], np.int32), logprobs=logprobs)
    message = result_to_proto(StepResult(step_id=9, sampled=sampled, step_time_ns=123_456))
    assert message == pb.StepResult(
        step_id=9,
        token_ids=int32_bytes(70_000, 3, 6),
        logprob_counts=int32_bytes(2, 0, 1),
        logprob_token_ids=int32_bytes(70_000, 5, 6),
        logprob_values=np.array([-0.5, -0.25, -4.0], "<f4").tobytes(),
        step_time_ns=123_456,
        num_iterations=1,
        is_last=True,
    )


def test_a_result_without_logprobs_leaves_them_out() -> None:
    sampled = SampledTokens(token_ids=np.array([1], np.int32))
    message = result_to_proto(StepResult(step_id=1, sampled=sampled, step_time_ns=1))
    assert message == pb.StepResult(
        step_id=1, token_ids=int32_bytes(1), step_time_ns=1, num_iterations=1, is_last=True
    )


def test_the_hello_tells_every_limit() -> None:
    info = WorkerInfo(
        config_hash="c",
        tokenizer_hash="t",
        limits=TableLimits(
            block_size=16,
            num_blocks=100,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=512,
            vocab_size=320,
        ),
        max_steps_in_flight=4,
        device="cpu",
        dtype="float32",
        attention_backend="torch",
        tp_size=1,
        versions={"torch": "2.13.0"},
    )
    assert worker_hello(info, 77) == pb.WorkerHello(
        protocol_version=1,
        worker_epoch=77,
        config_hash="c",
        vocab_size=320,
        tokenizer_hash="t",
        block_size=16,
        num_blocks=100,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=512,
        max_steps_in_flight=4,
        device="cpu",
        dtype="float32",
        attention_backend="torch",
        tp_size=1,
        versions={"torch": "2.13.0"},
        max_lease_steps=64,
    )
