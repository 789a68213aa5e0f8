"""The only values that cross the core's border: plans out, results in, outputs out.

Knows nothing about how they travel: engine/convert.py turns them into protobuf and back.
All arrays are one-dimensional numpy arrays that nobody writes to after construction.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Gives a lane to a request, with all the worker must know of it."""

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
    row_samples: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Ragged log-probabilities: ``counts[i]`` entries for token i, the sampled one first."""

    counts: Int32Array
    token_ids: Int32Array
    values: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the worker sampled in one step: a token for each sampling row, in row order."""

    step_id: int
    token_ids: Int32Array
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """A request ended, for this reason, exactly once."""

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
