"""An applied step as the flat arrays that the model runs on, each made when it is first asked for.

Rows of one token come first, wherever the engine put them; sampled tokens still come out in the
engine's order, because the sampling rows point back. Knows nothing about tensors or padding.
Legend: T packed tokens, B rows, M blocks of the longest row.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.sampling_rows import SamplingPlaces, SamplingRows, gather_sampling_rows
from worker_svc.batch.sequence_table import SequenceTable
from worker_svc.batch.step import Int32Array, Int64Array
from worker_svc.batch.step_rows import BlockAppends, StepRows


class InputBatch:
    """One step, ready to upload: read what is needed of it before the table applies the next one.

    A decode step with lane tables on the device needs ``lanes`` and ``positions`` only; all the other
    arrays cost 60 us at 256 rows.
    """

    def __init__(self, table: SequenceTable, rows: StepRows) -> None:
        self._table = table
        self._rows = rows
        self.num_rows = len(rows.lanes)
        """Rows of the step."""
        self.num_tokens = rows.num_tokens_total
        """Tokens of all rows."""
        self.is_decode = rows.run is not None
        """Whether there are rows, and each computes one token and samples the next."""
        self.appends: BlockAppends = rows.appends
        """What the step changed in the block table, admissions apart."""

    @property
    def flavour(self) -> SamplingFlavour:
        """What it takes to sample the rows of a decode step."""
        assert self._rows.run is not None
        return self._rows.run.flavour(self._table.parameters, self._rows.starts)

    @property
    def longest_first(self) -> Int64Array:
        """(B,): the rows of a decode step by their length."""
        assert self._rows.run is not None
        return self._rows.run.longest_first

    @property
    def num_logprobs_plus_one(self) -> Int32Array:
        """(B,): log-probabilities that each row of a decode step asks for."""
        assert self.is_decode
        return self._table.parameters.num_logprobs_plus_one[self._rows.lanes]

    @cached_property
    def _order(self) -> Int64Array | None:
        """The engine's rows, those of one token first; None: as they are."""
        has_more = self._rows.num_tokens > 1
        if self.is_decode or has_more[self.num_decode_rows :].all():
            return None
        return has_more.argsort(kind="stable")

    @cached_property
    def lanes(self) -> Int64Array:
        """(B,): each row's lane."""
        return self._rows.lanes if self._order is None else self._rows.lanes[self._order]

    @cached_property
    def starts(self) -> Int64Array:
        """(B,): absolute index of each row's first token."""
        return self._rows.starts if self._order is None else self._rows.starts[self._order]

    @cached_property
    def query_lens(self) -> Int32Array:
        """(B,): tokens of the row in this step."""
        num_tokens = self._rows.num_tokens
        return (num_tokens if self._order is None else num_tokens[self._order]).astype(np.int32)

    @cached_property
    def num_decode_rows(self) -> int:
        """Rows [0, num_decode_rows) have one token each."""
        return int(np.count_nonzero(self._rows.num_tokens == 1))

    @cached_property
    def are_prompts_old(self) -> npt.NDArray[np.bool_]:
        """(B - num_decode_rows,): whether a row of more than one token has some from before this step."""
        return self.starts[self.num_decode_rows :] > 0

    @cached_property
    def cu_seqlens_q(self) -> Int32Array:
        """(B + 1,): running sum of query lengths from 0."""
        cu_seqlens_q = np.zeros(self.num_rows + 1, np.int32)
        self.query_lens.cumsum(out=cu_seqlens_q[1:])
        return cu_seqlens_q

    @cached_property
    def token_lanes(self) -> Int64Array:
        """(T,): the token's lane; its id is read from the token pool at (lane, position)."""
        return np.repeat(self.lanes, self.query_lens)

    @cached_property
    def positions(self) -> Int64Array:
        """(T,): absolute index in the request."""
        if self.is_decode:
            return self.starts
        first = self.starts - self.cu_seqlens_q[:-1]
        return np.arange(self.num_tokens) + np.repeat(first, self.query_lens)

    @cached_property
    def slot_mapping(self) -> Int64Array:
        """(T,): where the token's K and V go; negative: nowhere."""
        block_size = self._table.limits.block_size
        columns, offsets = np.divmod(self.positions, block_size)
        # int64 before the product: block_id * block_size passes 2**31 in a large pool.
        return self._table.block_table[self.token_lanes, columns].astype(np.int64) * block_size + offsets

    @cached_property
    def seq_lens(self) -> Int32Array:
        """(B,): context length after this step."""
        return (self.starts + self.query_lens).astype(np.int32)

    @cached_property
    def block_table(self) -> Int32Array:
        """(B, M): the row's blocks; what stands past its own is not to be read."""
        longest = int(self.seq_lens.max(initial=0))
        return self._table.block_table[:, : -(-longest // self._table.limits.block_size)][self.lanes]

    @cached_property
    def sampling_places(self) -> SamplingPlaces:
        """The rows that sample, in the engine's order."""
        rows = self._rows
        last_token_of_row = (self.cu_seqlens_q[1:] - 1).astype(np.int64)
        if self._order is not None:
            last_token_of_row[self._order] = last_token_of_row.copy()
        sampling = rows.samples.nonzero()[0]
        return SamplingPlaces(
            lanes=rows.lanes[sampling],
            positions=rows.starts[sampling] + rows.num_tokens[sampling],
            token_rows=last_token_of_row[sampling],
        )

    @cached_property
    def sampling_flavour(self) -> SamplingFlavour:
        """What it takes to sample them."""
        places = self.sampling_places
        return self._table.parameters.flavour_of(places.lanes, num_known=places.positions)

    @property
    def sampling_logprobs_plus_one(self) -> Int32Array:
        """Log-probabilities that each of them asks for."""
        return self._table.parameters.num_logprobs_plus_one[self.sampling_places.lanes]

    @cached_property
    def sampling(self) -> SamplingRows:
        """All that a sampler without tables of its own needs of them."""
        return gather_sampling_rows(self._table, self.sampling_places)
