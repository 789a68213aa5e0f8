"""Fan-out: each owner gets its own tokens and log-probabilities, in the step's order."""

import numpy as np

from scheduler_svc.core.plan import Logprobs, StepOutputs
from scheduler_svc.core.types import Int32Array
from scheduler_svc.engine.fanout import tokens_by_owner


def _int32(*values: int) -> Int32Array:
    return np.array(values, np.int32)


def test_tokens_are_split_by_owner_in_order() -> None:
    outputs = StepOutputs(
        owners=_int32(2, 1, 2, 1),
        handles=np.array([10, 11, 12, 13]),
        token_ids=_int32(100, 101, 102, 103),
        logprobs=Logprobs(
            counts=_int32(0, 2, 1, 0),
            token_ids=_int32(101, 7, 102),
            values=np.array([-1.0, -2.0, -3.0], np.float32),
        ),
        finished=(),
    )
    split = tokens_by_owner(outputs)
    assert sorted(split) == [1, 2]
    assert (split[1].handles.tolist(), split[1].token_ids.tolist()) == ([11, 13], [101, 103])
    assert (split[2].handles.tolist(), split[2].token_ids.tolist()) == ([10, 12], [100, 102])
    first, second = split[1].logprobs, split[2].logprobs
    assert first is not None
    assert second is not None
    assert [first.counts.tolist(), first.token_ids.tolist(), first.values.tolist()] == [
        [2, 0],
        [101, 7],
        [-1, -2],
    ]
    assert [second.counts.tolist(), second.token_ids.tolist(), second.values.tolist()] == [
        [0, 1],
        [102],
        [-3],
    ]


def test_one_owner_gets_everything_as_it_is() -> None:
    outputs = StepOutputs(
        owners=_int32(4, 4),
        handles=np.array([2**31 - 1, 1]),
        token_ids=_int32(5, 6),
        logprobs=None,
        finished=(),
    )
    split = tokens_by_owner(outputs)
    assert list(split) == [4]
    assert split[4].handles.tolist() == [2**31 - 1, 1]
    assert split[4].handles.dtype == np.int32
    assert split[4].token_ids is outputs.token_ids


def test_an_owner_without_log_probabilities_gets_none() -> None:
    outputs = StepOutputs(
        owners=_int32(1, 2),
        handles=np.array([1, 1]),
        token_ids=_int32(5, 6),
        logprobs=Logprobs(counts=_int32(0, 1), token_ids=_int32(6), values=np.array([-1.0], np.float32)),
        finished=(),
    )
    assert tokens_by_owner(outputs)[1].logprobs is None


def test_a_step_without_tokens_tells_nobody() -> None:
    outputs = StepOutputs(
        owners=_int32(), handles=np.zeros(0, np.int64), token_ids=_int32(), logprobs=None, finished=()
    )
    assert tokens_by_owner(outputs) == {}
