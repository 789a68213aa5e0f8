"""What the sampler needs of each sampling row, gathered from the lanes.

Penalties, biases and masks are listed only for the rows that use them. Knows nothing about logits
or random numbers. All arrays of one class have the same length.
"""

from dataclasses import dataclass

import numpy as np

from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import Float32Array, Int32Array, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyRows:
    """The rows with penalties; their histories are in the token pool."""

    rows: Int64Array
    """Index among the sampling rows."""
    lanes: Int64Array
    num_known: Int64Array
    """Tokens of prompt and output so far."""
    num_prompt: Int64Array
    presence: Float32Array
    frequency: Float32Array
    repetition: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntries:
    """Values for single logits, by (row among the sampling rows, token id)."""

    rows: Int64Array
    token_ids: Int64Array
    values: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlaces:
    """Where the sampling rows of one step are, in the engine's row order."""

    lanes: Int64Array
    positions: Int64Array
    """Absolute position of the token to sample."""
    token_rows: Int64Array
    """Where the row's last token stands among the packed tokens of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """The sampling rows of one step, in the engine's row order: places, and parameters of each."""

    lanes: Int64Array
    positions: Int64Array
    token_rows: Int64Array
    temperature: Float32Array
    top_k: Int32Array
    top_p: Float32Array
    min_p: Float32Array
    seed: Int64Array
    """The bits of the unsigned seed."""
    num_logprobs_plus_one: Int32Array
    flavour: SamplingFlavour
    """What the most demanding row takes."""
    penalties: PenaltyRows | None
    biases: TokenEntries | None
    masks: TokenEntries | None
    """Stop ids that may not be sampled yet; the values are all -inf."""

    @property
    def is_plain_greedy(self) -> bool:
        """Whether every token is the argmax of the raw logits."""
        is_raw = self.penalties is None and self.biases is None and self.masks is None
        return is_raw and not self.temperature.any()


def gather_sampling_rows(table: SequenceTable, places: SamplingPlaces) -> SamplingRows:
    """Gather the parameters of the lanes that sample at these places."""
    parameters, lanes, positions = table.parameters, places.lanes, places.positions
    return SamplingRows(
        lanes=lanes,
        positions=positions,
        token_rows=places.token_rows,
        temperature=parameters.temperature[lanes],
        top_k=parameters.top_k[lanes],
        top_p=parameters.top_p[lanes],
        min_p=parameters.min_p[lanes],
        seed=parameters.seed[lanes].view(np.int64),
        num_logprobs_plus_one=parameters.num_logprobs_plus_one[lanes],
        flavour=parameters.flavour_of(lanes, num_known=positions),
        penalties=_penalties(table, lanes, positions),
        biases=_biases(table, lanes),
        masks=_masks(table, lanes, positions),
    )


def _penalties(table: SequenceTable, lanes: Int64Array, positions: Int64Array) -> PenaltyRows | None:
    rows = np.flatnonzero(table.parameters.has_penalties[lanes])
    if len(rows) == 0:
        return None
    lanes = lanes[rows]
    return PenaltyRows(
        rows=rows,
        lanes=lanes,
        num_known=positions[rows],
        num_prompt=table.num_prompt[lanes],
        presence=table.parameters.presence_penalty[lanes],
        frequency=table.parameters.frequency_penalty[lanes],
        repetition=table.parameters.repetition_penalty[lanes],
    )


def _biases(table: SequenceTable, lanes: Int64Array) -> TokenEntries | None:
    rows = np.flatnonzero(table.parameters.has_bias[lanes])
    if len(rows) == 0:
        return None
    ids = [table.parameters.bias_token_ids[lane] for lane in lanes[rows]]
    values = [table.parameters.bias_values[lane] for lane in lanes[rows]]
    return _entries(rows, ids, np.concatenate(values))


def _masks(table: SequenceTable, lanes: Int64Array, positions: Int64Array) -> TokenEntries | None:
    if not table.parameters.has_masks[lanes].any():
        return None
    num_output = positions - table.num_prompt[lanes]
    is_early = num_output < table.parameters.min_tokens[lanes]
    rows = np.flatnonzero(table.parameters.has_masks[lanes] & is_early)
    if len(rows) == 0:
        return None
    ids = [table.parameters.stop_token_ids[lane] for lane in lanes[rows]]
    return _entries(rows, ids, np.full(sum(map(len, ids)), -np.inf, np.float32))


def _entries(rows: Int64Array, token_ids: list[Int32Array], values: Float32Array) -> TokenEntries:
    return TokenEntries(
        rows=np.repeat(rows, [len(ids) for ids in token_ids]),
        token_ids=np.concatenate(token_ids).astype(np.int64),
        values=values,
    )
