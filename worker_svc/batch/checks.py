"""The rules of the step stream, as checks that raise.

Each names field, value and limit. Knows nothing about the state of lanes: callers pass it in.
"""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from worker_svc.batch.step import Admission, BoolArray, Int32Array, Int64Array, LaneSampling
from worker_svc.errors import ProtocolError

_FEW_VALUES = 64
"""A set takes 0.6 us for 17 values, where sorting takes 3; for 256 it takes longer."""
MAX_BIASES = 1024
MAX_STOP_IDS = 128
MAX_LOGPROBS_PLUS_ONE = 21
"""What the tables of a GPU's sampler hold; more than any front end lets through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """What the worker's buffers are sized for."""

    block_size: int
    num_blocks: int
    """Blocks that lanes can hold: ids 1 .. num_blocks."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int

    @property
    def max_blocks_per_seq(self) -> int:
        """Blocks that a sequence of ``max_model_len`` tokens needs, and one to spare."""
        return -(-self.max_model_len // self.block_size) + 1


def check_range(field: str, values: Int32Array, *, low: int, high: int) -> None:
    """Raise unless every value is in [low, high]; no values are fine."""
    if len(values) == 0:
        return
    smallest, largest = int(values.min()), int(values.max())
    if smallest < low or largest > high:
        wrong = smallest if smallest < low else largest
        raise ProtocolError.of(field, wrong, f"be in [{low}, {high}]")


def check_distinct(field: str, lanes: Int32Array) -> None:
    """Raise if a lane stands in ``lanes`` more than once."""
    if has_equals(lanes):
        ordered = np.sort(lanes)
        is_repeated = ordered[1:] == ordered[:-1]
        raise ProtocolError.of(field, int(ordered[1:][is_repeated][0]), "name each lane once")


def has_equals(values: Int32Array | Int64Array) -> bool:
    """Tell whether a value stands in ``values`` more than once."""
    if len(values) <= _FEW_VALUES:
        return len(set(values.tolist())) < len(values)
    ordered = np.sort(values)
    return bool((ordered[1:] == ordered[:-1]).any())


def check_equal_length(field: str, values: Int32Array | BoolArray, *, of: str, num_expected: int) -> None:
    """Raise unless ``values`` has as many elements as the array named ``of``."""
    if len(values) != num_expected:
        raise ProtocolError.of(f"number of {field}", len(values), f"be that of {of}, {num_expected}")


def check_rows(
    is_right: BoolArray, lanes: Int64Array, *, field: str, values: Int64Array, limits: Int64Array, rule: str
) -> None:
    """Raise for the first row that is not right; ``rule`` holds "{limit}" where its limit belongs."""
    if not is_right.all():
        row = int(is_right.argmin())
        limit = rule.format(limit=int(limits[row]))
        raise ProtocolError.of(f"{field} of lane {lanes[row]}", int(values[row]), limit)


def check_admissions(admissions: tuple[Admission, ...], limits: TableLimits) -> None:
    """Raise unless each admission fits the worker's buffers and itself."""
    # What is wrong is told apart only where something is.
    if not _all_fit(admissions, limits):
        wrong = next(admission for admission in admissions if not _all_fit((admission,), limits))
        _refuse_admission(wrong, limits)


def _all_fit(admissions: tuple[Admission, ...], limits: TableLimits) -> bool:
    """Tell whether all admissions are right; looking through their ids together takes half as long."""
    token_ids, block_ids = [], []
    for admission in admissions:
        sampling = admission.sampling
        if not (_lengths_fit(admission, limits) and _samples_fit(sampling, limits)):
            return False
        token_ids += [admission.token_ids, sampling.bias_token_ids, sampling.stop_token_ids]
        block_ids.append(admission.block_ids)
    # As unsigned numbers, so that one comparison finds those below the first one, too.
    largest = np.maximum.reduce(np.concatenate(token_ids).view(np.uint32))
    largest_block = np.maximum.reduce(np.concatenate(block_ids).view(np.uint32) - 1, initial=0)
    return bool(largest < limits.vocab_size and largest_block < limits.num_blocks)


def _lengths_fit(admission: Admission, limits: TableLimits) -> bool:
    """Tell whether lane and lengths are right."""
    num_tokens, num_blocks = len(admission.token_ids), len(admission.block_ids)
    return (
        0 <= admission.num_computed_tokens < num_tokens <= admission.max_total_tokens
        and 0 <= admission.lane < limits.max_num_seqs
        and num_blocks <= limits.max_blocks_per_seq
        and 1 <= admission.num_prompt_tokens <= num_tokens
        and admission.max_total_tokens <= limits.max_model_len
    )


def _samples_fit(sampling: LaneSampling, limits: TableLimits) -> bool:
    """Tell whether sampling parameters, but for ids, are right."""
    num_biases = len(sampling.bias_token_ids)
    return (
        len(sampling.bias_values) == num_biases <= MAX_BIASES
        and len(sampling.stop_token_ids) <= MAX_STOP_IDS
        and sampling.num_logprobs_plus_one <= MAX_LOGPROBS_PLUS_ONE
        and sampling.top_k <= limits.vocab_size
    )


def _refuse_admission(admission: Admission, limits: TableLimits) -> NoReturn:
    """Raise for the first rule that the admission breaks; it breaks one."""
    lane = admission.lane
    if not 0 <= lane < limits.max_num_seqs:
        raise ProtocolError.of("admission lane", lane, f"be in [0, {limits.max_num_seqs - 1}]")
    _check_lengths(admission, limits)
    _check_sampling(admission, limits)
    check_range(f"block_ids of lane {lane}", admission.block_ids, low=1, high=limits.num_blocks)
    num_blocks, rule = len(admission.block_ids), f"be at most {limits.max_blocks_per_seq}"
    raise ProtocolError.of(f"number of block_ids of lane {lane}", num_blocks, rule)


def _check_lengths(admission: Admission, limits: TableLimits) -> None:
    num_tokens, of_lane = len(admission.token_ids), f"of lane {admission.lane}"
    for field, value, low, high in (
        ("max_total_tokens", admission.max_total_tokens, 1, limits.max_model_len),
        ("number of token_ids", num_tokens, 1, admission.max_total_tokens),
        ("num_prompt_tokens", admission.num_prompt_tokens, 1, num_tokens),
        ("num_computed_tokens", admission.num_computed_tokens, 0, num_tokens - 1),
    ):
        if not low <= value <= high:
            raise ProtocolError.of(f"{field} {of_lane}", value, f"be in [{low}, {high}]")


def _check_sampling(admission: Admission, limits: TableLimits) -> None:
    sampling, of_lane, last_id = admission.sampling, f"of lane {admission.lane}", limits.vocab_size - 1
    check_range(f"token_ids {of_lane}", admission.token_ids, low=0, high=last_id)
    check_range(f"bias_token_ids {of_lane}", sampling.bias_token_ids, low=0, high=last_id)
    check_range(f"stop_token_ids {of_lane}", sampling.stop_token_ids, low=0, high=last_id)
    for field, count, most in (
        ("number of bias_token_ids", len(sampling.bias_token_ids), MAX_BIASES),
        ("number of stop_token_ids", len(sampling.stop_token_ids), MAX_STOP_IDS),
        ("num_logprobs_plus_one", sampling.num_logprobs_plus_one, MAX_LOGPROBS_PLUS_ONE),
        ("top_k", sampling.top_k, limits.vocab_size),
    ):
        if count > most:
            raise ProtocolError.of(f"{field} {of_lane}", count, f"be at most {most}")
    num_values, num_ids = len(sampling.bias_values), len(sampling.bias_token_ids)
    if num_values != num_ids:
        raise ProtocolError.of(
            f"number of bias_values {of_lane}", num_values, f"be that of its ids, {num_ids}"
        )
