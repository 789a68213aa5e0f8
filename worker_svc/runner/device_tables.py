"""What the device knows of every lane: tokens, blocks, sampling parameters.

Changed by each step's deltas, in the order of the device's queue, so that steps under way still read
what was true for them. Knows nothing about lengths: callers say which positions they mean.
Legend: L lanes, P positions, M blocks a table, W int32 words.
"""

import torch

from worker_svc.batch.checks import TableLimits
from worker_svc.batch.padding import TableShape
from worker_svc.batch.step import Admission
from worker_svc.batch.step_rows import BlockAppends
from worker_svc.runner.row_writer import RowWrite, RowWriter


class DeviceTables:
    """Token pool and block table, a row a lane."""

    def __init__(self, limits: TableLimits, writer: RowWriter, *, device: torch.device) -> None:
        num_lanes, num_columns = limits.max_num_seqs, limits.max_blocks_per_seq
        # Zeros, because a row that was never written may be read, though never used.
        self.token_pool_LP = torch.zeros(
            (num_lanes, limits.max_model_len + 1), dtype=torch.int32, device=device
        )
        # One row more, for the appends of padding.
        cells_W = torch.zeros((num_lanes + 1) * num_columns, dtype=torch.int32, device=device)
        self.block_cells_W = cells_W
        """All cells of the block table, and the spare ones behind it."""
        self.block_table_LM = cells_W[: num_lanes * num_columns].view(num_lanes, num_columns)
        self.shape = TableShape(num_columns=num_columns, spare_cell=num_lanes * num_columns)
        self._writer = writer

    def admit(self, admissions: tuple[Admission, ...]) -> None:
        """Write the known tokens and the blocks of newly admitted lanes."""
        writes = []
        for admission in admissions:
            lane = admission.lane
            writes.append(RowWrite(row=self.token_pool_LP[lane], values=admission.token_ids))
            writes.append(RowWrite(row=self.block_table_LM[lane], values=admission.block_ids))
        self._writer.write(writes)

    def append(self, appends: BlockAppends) -> None:
        """Write appended blocks; a decode step's go with its other inputs instead."""
        cells = appends.lanes * self.shape.num_columns + appends.columns
        self._writer.write(
            RowWrite(row=self.block_cells_W[cell:], values=appends.block_ids[index : index + 1])
            for index, cell in enumerate(cells.tolist())
        )
