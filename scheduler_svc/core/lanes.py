"""The running requests as a structure of arrays, a row a lane.

Steady-state bookkeeping touches all lanes with a few numpy operations: 256 rows cost tens of
microseconds a step, where an object a row costs hundreds (benchmarks/scheduler_core.py). Whole columns
are compared and added, free lanes included: picking 1,024 entries by index costs five times as much.
Knows nothing about queues, plans or the pool. The counts are those of the picture in core/types.py.
"""

import numpy as np

from scheduler_svc.core.types import (
    BlockId,
    BoolArray,
    Int32Array,
    Int64Array,
    Lane,
    Request,
)

NUM_STOP_COLUMNS = 8
"""Stop ids compared for all rows at once; the rare request with more is looked at by itself."""

NO_TOKEN = -2
"""Stands for a lane without a new token; equals no token id, nor an unused place of ``stop_ids``."""


class LaneTable:
    """Arrays indexed by lane; a free lane has incarnation 0 and ``max_total`` 0, so that it never runs."""

    def __init__(self, num_lanes: int, max_model_len: int) -> None:
        def zeros() -> Int64Array:
            return np.zeros(num_lanes, np.int64)

        self.incarnation = zeros()
        self.num_known = zeros()
        """Tokens whose identity is known or will be once the rows in flight are folded."""
        self.num_folded = zeros()
        """Tokens known now: prompt and folded output."""
        self.num_scheduled = zeros()
        """Tokens whose KV was planned (num_scheduled_tokens_total)."""
        self.num_computed = zeros()
        """Tokens whose KV is folded (num_computed_tokens)."""
        self.max_total = zeros()
        self.num_slots = zeros()
        """Tokens that the lane's blocks have room for."""
        self.num_registered = [0] * num_lanes
        """Blocks of the table that were offered to the prefix cache."""
        self.num_rows_in_flight = zeros()
        self.stops_from = zeros()
        """A stop id ends the request from this position on (prompt + min_tokens)."""
        self.owner: Int32Array = np.zeros(num_lanes, np.int32)
        self.handle = zeros()
        self.runs_ahead: BoolArray = np.ones(num_lanes, np.bool_)
        self.has_many_stops: BoolArray = np.zeros(num_lanes, np.bool_)
        self.stop_ids: Int32Array = np.full((NUM_STOP_COLUMNS, num_lanes), -1, np.int32)
        """Column by column, because a reduction over a short last axis costs 12 us for 256 rows, not 3."""
        # Until a request asks for the rare thing, no step pays for it: 4 to 25 us at 256 rows each.
        self.num_stop_columns = 0
        """Columns of ``stop_ids`` that any lane has used."""
        self.some_have_many_stops = False
        self.some_do_not_run_ahead = False
        self.requests: list[Request | None] = [None] * num_lanes
        self.token_ids: Int32Array = np.zeros((num_lanes, max_model_len), np.int32)
        """Each request's known tokens. The system gives memory to the pages in use only; appending
        256 tokens costs 4 us here and 25 us in a list a request."""
        # Constants: to copy them costs a quarter of making them.
        self.ones: Int32Array = np.ones(num_lanes, np.int32)
        self.no_tokens: Int32Array = np.full(num_lanes, NO_TOKEN, np.int32)
        self._row_starts: Int64Array = np.arange(num_lanes, dtype=np.int64) * max_model_len
        self.block_ids: list[list[BlockId]] = [[] for _ in range(num_lanes)]
        # Lowest lanes first, so that a lightly used worker touches few rows of its tables.
        self._free_lanes = [Lane(i) for i in range(num_lanes - 1, -1, -1)]

    @property
    def has_free_lane(self) -> bool:
        """Whether one more request can run."""
        return bool(self._free_lanes)

    @property
    def num_running(self) -> int:
        """Lanes in use."""
        return len(self.requests) - len(self._free_lanes)

    @property
    def admission_order(self) -> Int64Array:
        """The lanes in use, earliest admitted first."""
        return self.in_admission_order(self.incarnation.nonzero()[0])

    def in_admission_order(self, lanes: Int64Array) -> Int64Array:
        """Sort lanes in use, earliest admitted first."""
        ordered: Int64Array = lanes[self.incarnation[lanes].argsort()]
        return ordered

    def request(self, lane: int) -> Request:
        """Give the request that holds this lane."""
        request = self.requests[lane]
        assert request is not None, f"lane {lane} is free"
        return request

    def occupy(
        self, request: Request, table: list[BlockId], *, num_cached_tokens: int, block_size: int
    ) -> Lane:
        """Give a free lane to a request whose incarnation is set.

        Args:
            request: the request.
            table: its blocks, those with its cached tokens first.
            num_cached_tokens: tokens whose KV is there, a number of whole blocks.
            block_size: tokens a block holds.
        """
        lane = self._free_lanes.pop()
        num_tokens = request.num_tokens
        self.incarnation[lane] = request.incarnation
        self.num_known[lane] = self.num_folded[lane] = num_tokens
        self.token_ids[lane, :num_tokens] = request.token_ids
        self.num_scheduled[lane] = self.num_computed[lane] = num_cached_tokens
        self.max_total[lane] = request.max_total_tokens
        self.num_slots[lane] = len(table) * block_size
        self.num_registered[lane] = num_cached_tokens // block_size
        self.num_rows_in_flight[lane] = 0
        self.stops_from[lane] = request.num_prompt_tokens + request.sampling.min_tokens
        self.owner[lane] = request.owner
        self.handle[lane] = request.handle
        self.runs_ahead[lane] = request.runs_ahead
        if not request.runs_ahead:
            self.some_do_not_run_ahead = True
        self._set_stop_ids(lane, request.sampling.stop_token_ids)
        self.requests[lane] = request
        self.block_ids[lane] = table
        return lane

    def vacate(self, lane: Lane) -> list[BlockId]:
        """Free a lane, hand its tokens back to the request, and return the block table it held."""
        self.request(lane).token_ids = self.token_ids[lane, : self.num_folded[lane]].copy()
        block_ids, self.block_ids[lane] = self.block_ids[lane], []
        self.requests[lane] = None
        self.incarnation[lane] = self.max_total[lane] = 0
        self._free_lanes.append(lane)
        return block_ids

    def write_tokens(self, lanes: Int64Array, token_ids: Int32Array) -> None:
        """Write each lane's next token, at ``num_folded``, which the caller counts up."""
        places = (self._row_starts + self.num_folded)[lanes]
        # One index costs half of what two do.
        self.token_ids.reshape(-1)[places] = token_ids

    def grow(self, lane: int, block_ids: list[BlockId], *, block_size: int) -> None:
        """Append blocks to a lane's table."""
        self.block_ids[lane].extend(block_ids)
        self.num_slots[lane] += len(block_ids) * block_size

    def _set_stop_ids(self, lane: Lane, stop_ids: tuple[int, ...]) -> None:
        self.num_stop_columns = max(self.num_stop_columns, min(len(stop_ids), NUM_STOP_COLUMNS))
        for column in range(self.num_stop_columns):
            self.stop_ids[column, lane] = stop_ids[column] if column < len(stop_ids) else -1
        self.has_many_stops[lane] = has_many = len(stop_ids) > NUM_STOP_COLUMNS
        if has_many:
            self.some_have_many_stops = True
