"""Steps as large as the limits allow, made up, so that their memory can be measured before any request.

They come as an engine's would, through a sequence table of their own. Knows nothing about devices.
"""

from collections.abc import Iterator

import numpy as np

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import Admission, Int32Array, LaneSampling, Step

_NO_INT32 = np.empty(0, np.int32)
_NUM_STEPS = 3


def warm_up_steps(limits: TableLimits) -> Iterator[Step]:
    """Yield a prefill of as many tokens as a step can have, then decodes of as many rows.

    All rows' blocks are block 1: what they compute means nothing. Where requests are too short for
    three steps, there are none.
    """
    if limits.max_model_len <= _NUM_STEPS:
        return
    prompt_lens = _prompt_lens(limits)
    num_rest = limits.max_num_seqs - len(prompt_lens)
    yield _step(1, _admissions(0, prompt_lens, limits=limits))
    yield _step(2, _admissions(len(prompt_lens), [1] * num_rest, limits=limits))
    yield _step(3, (), num_rows=limits.max_num_seqs)


def _prompt_lens(limits: TableLimits) -> list[int]:
    """Cut the largest step into as few prompts as can be; each leaves room for the steps' tokens."""
    longest = limits.max_model_len - _NUM_STEPS
    num_left, lens = limits.max_num_batched_tokens, list[int]()
    while num_left and len(lens) < limits.max_num_seqs:
        lens.append(min(num_left, longest))
        num_left -= lens[-1]
    return lens


def _admissions(first_lane: int, prompt_lens: list[int], *, limits: TableLimits) -> tuple[Admission, ...]:
    return tuple(
        _admission(lane, num_tokens, limits) for lane, num_tokens in enumerate(prompt_lens, start=first_lane)
    )


def _step(step_id: int, admissions: tuple[Admission, ...], *, num_rows: int = 0) -> Step:
    """Make a step whose rows are whole admitted prompts, or the first lanes' next tokens."""
    lanes = [admission.lane for admission in admissions] or list(range(num_rows))
    num_tokens = [len(admission.token_ids) for admission in admissions] or [1] * num_rows
    return Step(
        step_id=step_id,
        released_lanes=_NO_INT32,
        admissions=admissions,
        append_lanes=_NO_INT32,
        append_block_ids=_NO_INT32,
        row_lanes=np.array(lanes, np.int32),
        row_num_tokens=np.array(num_tokens, np.int32),
        row_samples=np.ones(len(lanes), np.bool_),
    )


def _admission(lane: int, num_tokens: int, limits: TableLimits) -> Admission:
    return Admission(
        lane=lane,
        incarnation=0,
        token_ids=np.zeros(num_tokens, np.int32),
        num_prompt_tokens=num_tokens,
        num_computed_tokens=0,
        block_ids=_block_ids(limits),
        max_total_tokens=limits.max_model_len,
        sampling=LaneSampling(
            temperature=1.0,
            top_k=2,
            top_p=0.5,
            min_p=0.0,
            seed=0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            # One that changes nothing much, but takes the sampler's longest way.
            repetition_penalty=1.5,
            bias_token_ids=_NO_INT32,
            bias_values=np.empty(0, np.float32),
            stop_token_ids=_NO_INT32,
            min_tokens=0,
            num_logprobs_plus_one=1,
        ),
    )


def _block_ids(limits: TableLimits) -> Int32Array:
    return np.ones(-(-limits.max_model_len // limits.block_size), np.int32)
