"""The engine's converters: exact bytes, round trips, and what they refuse."""

from typing import Any

import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb
from stepwire.worker.v1 import worker_service_pb2 as worker_pb

from scheduler_svc.core.plan import Admission, Logprobs, StepPlan
from scheduler_svc.core.types import FinishReason, Incarnation, Lane, SamplingParams
from scheduler_svc.engine.convert import (
    facts_from_pb,
    hello_to_pb,
    plan_to_pb,
    result_from_pb,
    sampling_from_pb,
    write_sampling,
)
from scheduler_svc.engine.convert_frontend import batch_from_pb, outputs_to_pb
from scheduler_svc.engine.endings import END_OF_REASON, REFUSALS, ended_of_refusal
from scheduler_svc.engine.values import (
    AskedAbort,
    EndedRequest,
    LiveStatus,
    ModelIdentity,
    OwnerOutputs,
    RequestEnd,
    StartedRequest,
)
from scheduler_svc.errors import DuplicateRequestError

FULL_SAMPLING = SamplingParams(
    temperature=0.5,
    top_k=40,
    top_p=0.75,
    min_p=0.125,
    seed=2**64 - 1,
    presence_penalty=-1.5,
    frequency_penalty=0.25,
    repetition_penalty=1.5,
    logit_bias=((70_000, -100.0), (3, 0.5)),
    stop_token_ids=(151_645, 2),
    min_tokens=9,
    num_logprobs_plus_one=21,
)


def _int32(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(values, np.int32)


def _sampling_message(sampling: SamplingParams) -> worker_pb.LaneSampling:
    message = worker_pb.LaneSampling()
    write_sampling(message, sampling)
    return message


def test_a_plan_becomes_little_endian_bytes() -> None:
    admission = Admission(
        lane=Lane(3),
        incarnation=Incarnation(2**40),
        # An id over 65,535 needs its third byte.
        token_ids=_int32(1, 70_000),
        num_prompt_tokens=1,
        num_computed_tokens=0,
        block_ids=_int32(9),
        max_total_tokens=50,
        sampling=FULL_SAMPLING,
        owner=1,
        handle=1,
        is_first=True,
    )
    plan = StepPlan(
        step_id=7,
        released_lanes=_int32(5),
        admissions=(admission,),
        append_lanes=_int32(1, 1),
        append_block_ids=_int32(2, 258),
        row_lanes=_int32(1, 3),
        row_num_tokens=_int32(1, 2),
        row_samples=np.array([True, False]),
    )
    step = plan_to_pb(plan).step
    assert step.step_id == 7
    assert step.released_lanes == b"\x05\0\0\0"
    assert step.append_lanes == b"\x01\0\0\0\x01\0\0\0"
    assert step.append_block_ids == b"\x02\0\0\0\x02\x01\0\0"
    assert step.row_lanes == b"\x01\0\0\0\x03\0\0\0"
    assert step.row_num_tokens == b"\x01\0\0\0\x02\0\0\0"
    assert step.row_samples == b"\x01\0"
    (sent,) = step.admissions
    assert (sent.lane, sent.incarnation) == (3, 2**40)
    assert sent.token_ids == b"\x01\0\0\0\x70\x11\x01\0"
    assert (sent.num_prompt_tokens, sent.num_computed_tokens, sent.max_total_tokens) == (1, 0, 50)
    assert sent.block_ids == b"\x09\0\0\0"
    assert sent.sampling == _sampling_message(FULL_SAMPLING)


def test_sampling_goes_there_and_back() -> None:
    message = _sampling_message(FULL_SAMPLING)
    assert message.bias_token_ids == b"\x70\x11\x01\0\x03\0\0\0"
    assert message.bias_values == np.array([-100.0, 0.5], "<f4").tobytes()
    assert message.stop_token_ids == b"\x5d\x50\x02\0\x02\0\0\0"
    assert sampling_from_pb(message, message.seed) == FULL_SAMPLING
    assert sampling_from_pb(_sampling_message(SamplingParams()), 0) == SamplingParams()


def test_a_result_with_logprobs_is_read() -> None:
    message = worker_pb.StepResult(
        step_id=4,
        num_iterations=1,
        is_last=True,
        token_ids=b"\x01\0\0\0\x70\x11\x01\0",
        logprob_counts=b"\x02\0\0\0\0\0\0\0",
        logprob_token_ids=b"\x01\0\0\0\x09\0\0\0",
        logprob_values=np.array([-0.5, -2.25], "<f4").tobytes(),
    )
    result = result_from_pb(message)
    assert result.step_id == 4
    assert result.token_ids.tolist() == [1, 70_000]
    assert result.token_ids.dtype == np.int32
    assert result.logprobs is not None
    assert result.logprobs.counts.tolist() == [2, 0]
    assert result.logprobs.token_ids.tolist() == [1, 9]
    assert result.logprobs.values.tolist() == [-0.5, -2.25]
    assert result_from_pb(worker_pb.StepResult(step_id=5)).logprobs is None


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": b"\0\0\0"},
        {"token_ids": b"\0\0\0\0", "logprob_counts": b"\0\0\0\0\0\0\0\0"},
        {"token_ids": b"\0\0\0\0", "logprob_counts": b"\xff\xff\xff\xff"},
        {"token_ids": b"\0\0\0\0", "logprob_counts": b"\x01\0\0\0"},
        {"token_ids": b"\0\0\0\0", "logprob_counts": b"\x01\0\0\0", "logprob_token_ids": b"\0\0\0\0"},
    ],
)
def test_a_result_whose_arrays_do_not_fit_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"buffer size|logprob"):
        result_from_pb(worker_pb.StepResult(step_id=1, **fields))


def test_hellos_carry_every_field() -> None:
    identity = ModelIdentity(config_hash="c", vocab_size=9, tokenizer_hash="t")
    hello = hello_to_pb(identity, 77).hello
    expected = worker_pb.EngineHello(
        protocol_version=1, fencing_number=77, config_hash="c", vocab_size=9, tokenizer_hash="t"
    )
    assert hello == expected
    fields: dict[str, Any] = {
        "protocol_version": 1,
        "worker_epoch": 2,
        "block_size": 3,
        "num_blocks": 4,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 6,
        "max_model_len": 7,
        "max_steps_in_flight": 8,
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "torch",
        "tp_size": 9,
    }
    message = worker_pb.WorkerHello(config_hash="c", vocab_size=9, tokenizer_hash="t", **fields)
    facts = facts_from_pb(message)
    assert facts.model == identity
    assert {name: getattr(facts, name) for name in fields} == fields


def test_a_front_ends_message_is_read() -> None:
    message = pb.AttachRequest(
        new_requests=[
            pb.NewRequest(
                handle=1,
                request_id="a",
                prompt_token_ids=b"\x70\x11\x01\0",
                sampling=_sampling_message(FULL_SAMPLING),
                has_seed=True,
                max_tokens=5,
                cache_salt="salt",
                timeout_ns=30,
                asked_ns=8,
            ),
            pb.NewRequest(
                handle=2,
                request_id="b",
                prompt_token_ids=b"\x01\0\0\0",
                output_token_ids=b"\x02\0\0\0",
                takes_over=True,
            ),
        ],
        end_requests=[
            pb.EndRequest(handle=3, reason=pb.END_REASON_STOP_STRING, num_output_tokens=4),
            pb.EndRequest(handle=4, reason=pb.END_REASON_DISCONNECT, num_output_tokens=4),
        ],
        aborts=[pb.AbortById(request_id="c", num_requests_before=2, asked_ns=9)],
    )
    batch = batch_from_pb(message, 6, now_ns=100, draw_seed=lambda: 123)
    assert (batch.owner, batch.arrival_ns) == (6, 100)
    assert batch.aborts == (AskedAbort(request_id="c", num_requests_before=2, asked_ns=9),)
    first, second = batch.requests
    assert (first.asked_ns, second.asked_ns) == (8, 0)
    assert first.request.prompt_token_ids.tolist() == [70_000]
    assert first.request.sampling == FULL_SAMPLING
    assert (first.request.request_id, first.request.owner, first.request.handle) == ("a", 6, 1)
    assert (first.request.max_tokens, first.request.cache_salt, first.deadline_ns) == (5, "salt", 130)
    assert (second.request.max_tokens, second.request.cache_salt, second.deadline_ns) == (None, "", None)
    assert second.request.sampling.seed == 123
    assert (first.takes_over, second.takes_over) == (False, True)
    assert first.request.token_ids.tolist() == [70_000]
    assert second.request.token_ids.tolist() == [1, 2]
    assert [(end.handle, end.reason, end.num_output_tokens) for end in batch.ends] == [
        (3, FinishReason.STOP_STRING, 4),
        (4, FinishReason.DISCONNECT, None),
    ]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.AttachRequest(new_requests=[pb.NewRequest(request_id="a")]), "handle of request 'a' is 0"),
        (pb.AttachRequest(end_requests=[pb.EndRequest(handle=8)]), "end reason of handle 8"),
        (pb.AttachRequest(new_requests=[pb.NewRequest(handle=1, prompt_token_ids=b"\0")]), "buffer size"),
    ],
)
def test_a_front_end_that_breaks_the_protocol_is_refused(message: pb.AttachRequest, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        batch_from_pb(message, 1, now_ns=0, draw_seed=lambda: 0)


def test_outputs_become_bytes() -> None:
    outputs = OwnerOutputs(
        handles=_int32(1, 2),
        token_ids=_int32(70_000, 3),
        logprobs=Logprobs(counts=_int32(1, 0), token_ids=_int32(70_000), values=np.array([-0.5], np.float32)),
        started=(StartedRequest(handle=2, num_cached_tokens=16, queue_time_ns=10**10),),
        ended=(
            EndedRequest(
                handle=1,
                end=RequestEnd.STOP,
                matched_stop_token_id=0,
                num_output_tokens=2,
                num_cached_tokens=3,
                queue_time_ns=4,
                message="m",
            ),
            EndedRequest(handle=2, end=RequestEnd.DEADLINE),
        ),
        statuses=((4, LiveStatus.WAITING_FOR_WORKER), (5, LiveStatus.RUNNING)),
    )
    assert outputs_to_pb(outputs).outputs == pb.StepOutputs(
        handles=b"\x01\0\0\0\x02\0\0\0",
        token_ids=b"\x70\x11\x01\0\x03\0\0\0",
        logprob_counts=b"\x01\0\0\0\0\0\0\0",
        logprob_token_ids=b"\x70\x11\x01\0",
        logprob_values=np.array([-0.5], "<f4").tobytes(),
        started_handles=b"\x02\0\0\0",
        started_num_cached_tokens=b"\x10\0\0\0",
        started_queue_time_ns=[10**10],
        ended=[
            pb.EndedRequest(
                handle=1,
                reason=pb.REQUEST_END_STOP,
                matched_stop_token_id=0,
                num_output_tokens=2,
                num_cached_tokens=3,
                queue_time_ns=4,
                message="m",
            ),
            pb.EndedRequest(handle=2, reason=pb.REQUEST_END_DEADLINE),
        ],
        status_handles=b"\x04\0\0\0\x05\0\0\0",
        statuses=[pb.REQUEST_STATUS_WAITING_FOR_WORKER, pb.REQUEST_STATUS_RUNNING],
    )


def test_every_reason_and_refusal_has_its_answer() -> None:
    assert set(END_OF_REASON) == set(FinishReason)
    ended = [ended_of_refusal(5, kind("why")) for kind in REFUSALS]
    assert [one.end.name for one in ended] == ["DUPLICATE_ID", "INVALID", "QUEUE_FULL", "UNAVAILABLE"]
    assert ended_of_refusal(5, DuplicateRequestError("why")).message == "why"
    for end in RequestEnd:
        told = outputs_to_pb(
            OwnerOutputs(handles=_int32(), token_ids=_int32(), ended=(EndedRequest(handle=1, end=end),))
        )
        name = pb.RequestEnd.Name(told.outputs.ended[0].reason)
        assert name == f"REQUEST_END_{end.name}"
