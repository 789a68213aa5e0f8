"""A worker made of dicts and lists that takes every StepPlan literally and trusts nothing in it.

A slot's "KV" is the salt and all tokens up to its position, so that reading what was never written, or
what belongs to another prefix or tenant, is seen at once. Knows nothing about the scheduler core's
insides: all it is given are plans and whose salt a handle has.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler_svc.core.plan import Admission, StepPlan
from scheduler_svc.core.types import CoreLimits, SamplingParams

STOP_IDS = (7, 65_543)
VOCABULARY = (1, 2, 65_537, 0, 7, 131_072, 65_543, 1)
"""Equal in their low 16 bits where they can be, so that ids cut short would mix prefixes up; with 0 in
it, because that is what a token that is not known yet looks like."""

KvContent = tuple[str, tuple[int, ...]]


def next_token(token_ids: Sequence[int], num_output_tokens: int, sampling: SamplingParams) -> int:
    """Sample the token after ``token_ids``: a pure function of them and the seed."""
    masked = sampling.stop_token_ids if num_output_tokens < sampling.min_tokens else ()
    candidates = [token for token in VOCABULARY if token not in masked]
    return candidates[zlib.crc32(repr((sampling.seed, *token_ids)).encode()) % len(candidates)]


def run_alone(prompt_token_ids: Sequence[int], max_tokens: int, sampling: SamplingParams) -> list[int]:
    """Generate what a request must get, whatever runs beside it: up to a stop token, which counts."""
    token_ids, output = list(prompt_token_ids), list[int]()
    while len(output) < max_tokens and not (output and output[-1] in sampling.stop_token_ids):
        output.append(next_token(token_ids + output, len(output), sampling))
    return output


@dataclass(slots=True, kw_only=True)
class NaiveLane:
    """What the worker knows of one admitted request."""

    salt: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_admitted_tokens: int
    num_computed_tokens: int
    block_table: list[int]
    max_total_tokens: int
    sampling: SamplingParams

    @property
    def has_stopped(self) -> bool:
        """Whether its last token is a stop id that it sampled."""
        has_output = len(self.token_ids) > self.num_prompt_tokens
        return has_output and self.token_ids[-1] in self.sampling.stop_token_ids

    def kv_content(self, position: int) -> KvContent:
        """Tell what the slot of ``position`` must hold."""
        return self.salt, tuple(self.token_ids[: position + 1])


class NaiveWorker:
    """One worker epoch: asserts that each step keeps the contract, and samples."""

    def __init__(self, limits: CoreLimits, salt_of: Callable[[int], str]) -> None:
        self.limits = limits
        self.salt_of = salt_of
        self.lanes: dict[int, NaiveLane] = {}
        self.kv: dict[int, KvContent] = {}
        self.num_steps = 0
        self.incarnations: set[int] = set()

    def apply(self, plan: StepPlan) -> None:
        """Carry out what comes before a plan's rows: releases, admissions, block appends."""
        self.num_steps += 1
        assert plan.step_id == self.num_steps, f"step {plan.step_id} comes after {self.num_steps - 1}"
        for lane in plan.released_lanes.tolist():
            assert self.lanes.pop(lane, None), f"lane {lane} is released, but not held"
        for admission in plan.admissions:
            self._admit(admission)
        for lane, block_id in zip(plan.append_lanes.tolist(), plan.append_block_ids.tolist(), strict=True):
            self._append_block(lane, block_id)
        if plan.num_steps > 1:
            self._check_lease(plan)

    def run_step(self, plan: StepPlan) -> list[int]:
        """Run the rows of a plan that is no lease."""
        sampled = self._run_rows(plan)
        for lane in self.lanes:
            self._check_kv(lane)
        return sampled

    def _check_lease(self, plan: StepPlan) -> None:
        row_lanes, row_num_tokens = plan.row_lanes.tolist(), plan.row_num_tokens.tolist()
        assert len(set(row_lanes)) == len(row_lanes) <= self.limits.max_num_seqs, "too many rows of a lease"
        assert plan.row_samples.all(), "a row of a lease does not sample"
        assert not plan.admissions, "a lease admits"
        assert plan.num_steps == max(row_num_tokens), "no row takes part in a lease's last iteration"
        for lane_id, num_tokens in zip(row_lanes, row_num_tokens, strict=True):
            lane = self.lanes[lane_id]
            assert num_tokens >= 1, "an empty row"
            assert lane.num_computed_tokens == len(lane.token_ids) - 1, "a row of a lease is no decode"
            assert len(lane.token_ids) + num_tokens <= lane.max_total_tokens, "a grant past the length limit"
            self._slot(lane, lane.num_computed_tokens + num_tokens - 1)

    def has_live_row(self, plan: StepPlan, iteration: int) -> bool:
        """Tell whether this iteration of a lease would compute anything."""
        return any(is_live for _, is_live in self._lease_rows(plan, iteration))

    def run_iteration(self, plan: StepPlan, iteration: int) -> list[int]:
        """Run one iteration of a lease; -1 stands for a row that has ended."""
        written: dict[int, KvContent] = {}
        sampled = []
        for lane, is_live in self._lease_rows(plan, iteration):
            if is_live:
                self._write_row(lane, 1, written)
            sampled.append(self._sample(lane) if is_live else -1)
        self.kv.update(written)
        for lane_id in self.lanes:
            self._check_kv(lane_id)
        return sampled

    def _lease_rows(self, plan: StepPlan, iteration: int) -> list[tuple[NaiveLane, bool]]:
        """List a lease's rows and whether each takes part in this iteration."""
        rows = zip(plan.row_lanes.tolist(), plan.row_num_tokens.tolist(), strict=True)
        lanes = [(self.lanes[lane_id], num_tokens) for lane_id, num_tokens in rows]
        return [(lane, iteration < num_tokens and not lane.has_stopped) for lane, num_tokens in lanes]

    def _admit(self, admission: Admission) -> None:
        lane, num_tokens = admission.lane, len(admission.token_ids)
        assert 0 <= lane < self.limits.max_num_seqs, f"lane {lane} is out of range"
        assert lane not in self.lanes, f"lane {lane} is given away, but not released"
        assert admission.incarnation not in self.incarnations, "an incarnation came twice"
        assert 0 <= admission.num_computed_tokens < num_tokens, "nothing is left to compute"
        assert 0 < admission.num_prompt_tokens <= num_tokens < admission.max_total_tokens
        assert admission.max_total_tokens <= self.limits.max_model_len
        self.incarnations.add(admission.incarnation)
        self.lanes[lane] = NaiveLane(
            salt=self.salt_of(admission.handle),
            token_ids=admission.token_ids.tolist(),
            num_prompt_tokens=admission.num_prompt_tokens,
            num_admitted_tokens=num_tokens,
            num_computed_tokens=admission.num_computed_tokens,
            block_table=[],
            max_total_tokens=admission.max_total_tokens,
            sampling=admission.sampling,
        )
        for block_id in admission.block_ids.tolist():
            self._append_block(lane, block_id)
        self._check_kv(lane)

    def _append_block(self, lane: int, block_id: int) -> None:
        table = self.lanes[lane].block_table
        assert 1 <= block_id <= self.limits.num_blocks, f"block {block_id} is out of range"
        assert block_id not in table, f"lane {lane} gets block {block_id} twice"
        table.append(block_id)
        most = -(-self.limits.max_model_len // self.limits.block_size)
        assert len(table) <= most, f"lane {lane} holds more blocks than max_model_len needs"

    def _slot(self, lane: NaiveLane, position: int) -> int:
        block, offset = divmod(position, self.limits.block_size)
        assert block < len(lane.block_table), f"position {position} has no block"
        return lane.block_table[block] * self.limits.block_size + offset

    def _check_kv(self, lane_id: int) -> None:
        lane = self.lanes[lane_id]
        for position in range(lane.num_computed_tokens):
            found = self.kv.get(self._slot(lane, position))
            assert found == lane.kv_content(position), (
                f"lane {lane_id} reads {found} at {position}, but needs {lane.kv_content(position)}"
            )

    def _run_rows(self, plan: StepPlan) -> list[int]:
        row_lanes, row_num_tokens = plan.row_lanes.tolist(), plan.row_num_tokens.tolist()
        assert len(set(row_lanes)) == len(row_lanes) <= self.limits.max_num_seqs, "too many rows of a step"
        assert sum(row_num_tokens) <= self.limits.max_num_batched_tokens, "too many tokens of a step"
        written: dict[int, KvContent] = {}
        sampled, has_chunk = [], False
        for lane_id, num_tokens, samples in zip(
            row_lanes, row_num_tokens, plan.row_samples.tolist(), strict=True
        ):
            lane = self.lanes[lane_id]
            is_decode = lane.num_computed_tokens >= lane.num_admitted_tokens
            assert not (is_decode and has_chunk), "a decode row comes after a chunk"
            has_chunk |= num_tokens > 1 or not samples
            self._write_row(lane, num_tokens, written)
            assert samples == (lane.num_computed_tokens == len(lane.token_ids)), "a row samples wrongly"
            if samples:
                sampled.append(self._sample(lane))
        self.kv.update(written)
        return sampled

    def _write_row(self, lane: NaiveLane, num_tokens: int, written: dict[int, KvContent]) -> None:
        start, end = lane.num_computed_tokens, lane.num_computed_tokens + num_tokens
        assert num_tokens >= 1, "an empty row"
        assert end <= len(lane.token_ids), "a row computes tokens that nobody knows"
        for position in range(start, end):
            slot = self._slot(lane, position)
            assert slot not in written, f"slot {slot} is written twice in a step"
            written[slot] = lane.kv_content(position)
        lane.num_computed_tokens = end

    def _sample(self, lane: NaiveLane) -> int:
        assert len(lane.token_ids) < lane.max_total_tokens, "a row is wasted past the length limit"
        num_output_tokens = len(lane.token_ids) - lane.num_prompt_tokens
        lane.token_ids.append(next_token(lane.token_ids, num_output_tokens, lane.sampling))
        return lane.token_ids[-1]
