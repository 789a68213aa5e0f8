"""The only values that cross the core's border: plans out, results in, outputs out.

Knows nothing about how they travel: engine/convert.py turns them into protobuf and back.
All arrays are one-dimensional numpy arrays that nobody writes to after construction.
"""

from dataclasses import dataclass
from typing import NamedTuple

from scheduler_svc.core.types import (
    BoolArray,
    FinishReason,
    Float32Array,
    Incarnation,
    Int32Array,
    Int64Array,
    Lane,
    SamplingParams,
)


class Admission(NamedTuple):
    """Gives a lane to a request, with all the worker must know of it.

    A named tuple, since each request needs one, and a frozen dataclass takes twice as long to build.
    """

    lane: Lane
    incarnation: Incarnation
    token_ids: Int32Array
    """All tokens known: the prompt and the output of earlier incarnations."""
    num_prompt_tokens: int
    num_computed_tokens: int
    """Tokens found in the prefix cache; fewer than there are tokens."""
    block_ids: Int32Array
    """Blocks held from the start, cached ones first; enough for this step's row."""
    max_total_tokens: int
    sampling: SamplingParams
    owner: int
    handle: int
    is_first: bool
    """The request's first admission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step for the worker: releases, then admissions, then block appends, then rows."""

    step_id: int
    """1 for an epoch's first step; grows by one."""
    released_lanes: Int32Array
    admissions: tuple[Admission, ...]
    append_lanes: Int32Array
    append_block_ids: Int32Array
    row_lanes: Int32Array
    """Decode rows first; may be empty when there are only releases to tell."""
    row_num_tokens: Int32Array
    """In a lease: the most iterations that the row takes part in."""
    row_samples: BoolArray
    num_steps: int = 1
    """Above 1: a lease of so many iterations, whose rows are all decodes."""
    takes_over: bool = False
    """Leases before this step end at their next boundary; else it waits for their end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Ragged log-probabilities: ``counts[i]`` entries for token i, the sampled one first."""

    counts: Int32Array
    token_ids: Int32Array
    values: Float32Array

    def part(self, tokens: slice) -> "Logprobs":
        """Give the entries of some tokens that stand next to each other."""
        counts = self.counts[tokens]
        start = int(self.counts[: tokens.start].sum())
        entries = slice(start, start + int(counts.sum()))
        return Logprobs(counts=counts, token_ids=self.token_ids[entries], values=self.values[entries])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the worker sampled in one step, or one iteration of a lease: a token for each sampling row."""

    step_id: int
    token_ids: Int32Array
    """In row order; in a lease, -1 for a row that had ended before."""
    logprobs: Logprobs | None = None
    iteration: int = 0
    num_iterations: int = 1
    """0 where there is only to tell that a lease ended before its ``iteration``; above 1 where joined
    on the way: the core folds the parts."""
    is_last: bool = True
    """Whether the step is over; a lease may be, early."""

    def parts(self) -> "tuple[StepResult, ...]":
        """Split a result of several iterations; one of fewer is its own part."""
        if self.num_iterations <= 1:
            return (self,)
        num_rows = len(self.token_ids) // self.num_iterations
        return tuple(self._part(index, num_rows) for index in range(self.num_iterations))

    def _part(self, index: int, num_rows: int) -> "StepResult":
        rows = slice(index * num_rows, (index + 1) * num_rows)
        return StepResult(
            step_id=self.step_id,
            token_ids=self.token_ids[rows],
            logprobs=None if self.logprobs is None else self.logprobs.part(rows),
            iteration=self.iteration + index,
            is_last=self.is_last and index == self.num_iterations - 1,
        )


class FinishedRequest(NamedTuple):
    """A request ended, for this reason, exactly once; a named tuple as Admission is."""

    request_id: str
    owner: int
    handle: int
    reason: FinishReason
    matched_stop_token_id: int | None
    num_output_tokens: int
    num_prefix_hit_tokens: int
    message: str = ""
    """For reasons that are errors: names field, value and limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutputs:
    """What one folded step tells the owners: token i belongs to ``handles[i]`` of ``owners[i]``."""

    owners: Int32Array
    handles: Int64Array
    token_ids: Int32Array
    logprobs: Logprobs | None
    finished: tuple[FinishedRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreState:
    """Counts for people and metrics."""

    num_waiting: int
    num_running: int
    num_preempted: int
    num_blocks: int
    num_free_blocks: int
    """Free and holding nothing of use."""
    num_cached_blocks: int
    """Free, but the prefix cache can still serve them."""
    num_steps_in_flight: int
    num_prompt_tokens_total: int
    num_cached_tokens_total: int
    num_output_tokens_total: int
    num_finished_total: int
    num_preemptions_total: int
