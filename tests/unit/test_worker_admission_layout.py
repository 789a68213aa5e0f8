"""The arrays of newly admitted lanes, against values worked out by hand."""

from dataclasses import replace

import numpy as np

from tests.worker_steps import admission, int32
from worker_svc.batch.admission_layout import (
    NO_ADMISSIONS,
    AdmissionShape,
    LaneTables,
    exact_admissions,
    most_admissions,
    padded_admissions,
    write_admissions,
)
from worker_svc.batch.checks import TableLimits

LIMITS = TableLimits(
    block_size=4, num_blocks=8, max_num_seqs=48, max_num_batched_tokens=64, max_model_len=40, vocab_size=32
)
TABLES = LaneTables(num_positions=10, spare_token=99, num_columns=4, spare_block=77, spare_word=55)
TWO = (
    admission(2, token_ids=int32([5, 6, 7]), block_ids=int32([3, 9])),
    admission(0, token_ids=int32([1]), block_ids=int32([4])),
)


def arrays_of(shape: AdmissionShape) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    return {name: np.full(size, -9, np.int32) for name, size in shape.sizes.items()}


def test_lanes_get_their_tokens_blocks_and_parameters_and_the_rest_goes_to_spare_cells() -> None:
    arrays = arrays_of(AdmissionShape(num_tokens=6, num_blocks=4, num_words=3))
    parameters = (np.array([12, 15]), int32([8, -8]))
    write_admissions(arrays, TWO, tables=TABLES, parameters=parameters)
    assert arrays["token_cells"].view(np.int64).tolist() == [20, 21, 22, 0, 99, 99]
    assert arrays["token_values"][:4].tolist() == [5, 6, 7, 1]
    assert arrays["block_cells"].view(np.int64).tolist() == [8, 9, 0, 77]
    assert arrays["block_values"][:3].tolist() == [3, 9, 4]
    assert arrays["parameter_cells"].view(np.int64).tolist() == [12, 15, 55]
    assert arrays["parameter_values"][:2].tolist() == [8, -8]


def test_without_admissions_all_goes_to_spare_cells() -> None:
    arrays = arrays_of(AdmissionShape(num_tokens=2, num_blocks=1, num_words=1))
    write_admissions(arrays, (), tables=TABLES, parameters=(np.empty(0, np.int64), int32([])))
    assert arrays["token_cells"].view(np.int64).tolist() == [99, 99]
    assert arrays["block_cells"].view(np.int64).tolist() == [77]
    assert arrays["parameter_cells"].view(np.int64).tolist() == [55]


def test_what_a_step_has_room_for() -> None:
    room = padded_admissions(16, LIMITS, words_per_lane=14)
    assert room == AdmissionShape(num_tokens=16, num_blocks=36, num_words=448)
    exact = exact_admissions(TWO, words_per_lane=14)
    assert exact == AdmissionShape(num_tokens=4, num_blocks=3, num_words=28)
    assert room.holds(exact)
    assert room.holds(NO_ADMISSIONS)
    for name in ("num_tokens", "num_blocks", "num_words"):
        assert not room.holds(
            AdmissionShape(**{**{"num_tokens": 0, "num_blocks": 0, "num_words": 0}, name: 449})
        )


def test_a_step_of_the_most_tokens_has_room_for_a_prompt_that_goes_on_in_the_next_one() -> None:
    room = padded_admissions(64, LIMITS, words_per_lane=14)
    assert room == AdmissionShape(num_tokens=64 + 40, num_blocks=26 + 32, num_words=448)
    most = most_admissions(LIMITS, words_per_lane=14)
    assert most == AdmissionShape(num_tokens=64 + 40, num_blocks=26 + 48, num_words=48 * 14)
    few_tokens = replace(LIMITS, max_num_seqs=8, max_num_batched_tokens=16)
    most = most_admissions(few_tokens, words_per_lane=14)
    assert most == AdmissionShape(num_tokens=16 + 16, num_blocks=8 + 32, num_words=448)
