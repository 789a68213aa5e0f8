"""What the device knows of every lane: tokens, blocks, sampling parameters.

Changed by each step's deltas, in the order of the device's queue, so that steps under way still read
what was true for them. Knows nothing about lengths: callers say which positions they mean.
Legend: L lanes, P positions, M blocks a table, W int32 words.
"""

from collections.abc import Iterator

import torch

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.padding import TableShape
from worker_svc.batch.step import Admission
from worker_svc.batch.step_rows import BlockAppends
from worker_svc.runner.cell_writer import CellWrite, CellWriter, row_write


class DeviceTables:
    """Token pool and block table, a row a lane."""

    def __init__(self, limits: TableLimits, writer: CellWriter, *, device: torch.device) -> None:
        num_lanes, num_columns = limits.max_num_seqs, limits.max_blocks_per_seq
        num_positions = limits.max_model_len + 1
        # Zeros, because a row that was never written may be read, though never used.
        self.tokens_W = torch.zeros(num_lanes * num_positions + 1, dtype=torch.int32, device=device)
        """All cells of the token pool, and a spare one behind them."""
        self.token_pool_LP = self.tokens_W[:-1].view(num_lanes, num_positions)
        # One row more, for the appends of padding.
        cells_W = torch.zeros((num_lanes + 1) * num_columns, dtype=torch.int32, device=device)
        self.block_cells_W = cells_W
        """All cells of the block table, and the spare ones behind it."""
        self.block_table_LM = cells_W[: num_lanes * num_columns].view(num_lanes, num_columns)
        self.shape = TableShape(num_columns=num_columns, spare_cell=num_lanes * num_columns)
        self._writer = writer

    def list_writes(self, admissions: tuple[Admission, ...]) -> Iterator[CellWrite]:
        """Yield what puts the known tokens and the blocks of newly admitted lanes there."""
        tokens_W, num_positions = self.tokens_W, self.token_pool_LP.shape[1]
        for admission in admissions:
            lane = admission.lane
            yield row_write(tokens_W, admission.token_ids, first=lane * num_positions)
            yield row_write(self.block_cells_W, admission.block_ids, first=lane * self.shape.num_columns)

    def append(self, appends: BlockAppends) -> None:
        """Write appended blocks; a decode step's go with its other inputs instead."""
        if len(appends):
            cells = appends.lanes * self.shape.num_columns + appends.columns
            self._writer.write([CellWrite(table_W=self.block_cells_W, cells=cells, values=appends.block_ids)])
