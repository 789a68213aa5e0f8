"""One step as plain values: what the engine sends, and what the worker sampled.

Mirrors stepwire.worker.v1 in numpy. Knows nothing about protobuf: rpc/convert.py translates.
Arrays are one-dimensional and nobody writes to them after construction.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


class LaneSampling(NamedTuple):
    """How the tokens of one lane are sampled; ranges as in stepwire.worker.v1.LaneSampling.

    A named tuple, as Admission is: each request needs one, and a frozen dataclass takes twice as long.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_token_ids: Int32Array
    bias_values: Float32Array
    stop_token_ids: Int32Array
    min_tokens: int
    num_logprobs_plus_one: int


class Admission(NamedTuple):
    """Gives a lane to a request, with all that is known of it."""

    lane: int
    incarnation: int
    token_ids: Int32Array
    """The prompt, and the output of earlier incarnations."""
    num_prompt_tokens: int
    num_computed_tokens: int
    """Tokens whose KV the cache already holds; fewer than there are tokens."""
    block_ids: Int32Array
    max_total_tokens: int
    sampling: LaneSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step. Applied in this order: releases, admissions, block appends, rows."""

    step_id: int
    released_lanes: Int32Array
    admissions: tuple[Admission, ...]
    append_lanes: Int32Array
    append_block_ids: Int32Array
    row_lanes: Int32Array
    row_num_tokens: Int32Array
    """In a lease: the most iterations that the row takes part in."""
    row_samples: BoolArray
    num_steps: int = 1
    """Above 1: a lease of so many iterations, whose rows are all decodes."""
    takes_over: bool = False
    """Leases before this step end at their next boundary."""
    serialized: bytes = b""
    """As the engine sent it, where other ranks need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Ragged log-probabilities: ``counts[i]`` entries for token i, the sampled one first."""

    counts: Int32Array
    token_ids: Int32Array
    values: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """One token for each sampling row, in row order."""

    token_ids: Int32Array
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step, or one iteration of a lease, sampled, and how long it took."""

    step_id: int
    sampled: SampledTokens
    """In a lease, -1 for a row that had ended before."""
    step_time_ns: int
    iteration: int = 0
    num_iterations: int = 1
    """0 where there is only to tell that a lease ended before its ``iteration``."""
    is_last: bool = True
    busy_time_ns: int = 0
    """How long the device computed it."""
    idle_time_ns: int = 0
    """How long the device had nothing to do before that, while lanes were held."""
