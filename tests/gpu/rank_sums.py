"""Sums of random messages between torchrun's ranks, which fall behind each other at random.

    torchrun --nproc-per-node 2 -m tests.gpu.rank_sums

Integers, which bfloat16 adds exactly: every rank compares every sum, and fails where one is wrong. Messages
are launched once, then captured and replayed; then rows of which each rank sums up its own. Holds no tests.
"""

import random
import time

import torch

from benchmarks.join_torchrun import join_torchrun
from model.cut_residual import CutResidual
from model.row_cut import LEAST_ROWS
from tests.ending_ranks import end_with_parent
from tests.rank_progress import RankProgress
from worker_svc.runner.cuda_graphs import CudaGraphs
from worker_svc.tp.symmetric_ranks import ALIGNMENT_BYTES, MAILBOX_BYTES, SymmetricRanks, Way

NUM_GRAPHS, NUM_MESSAGES, NUM_REPLAYS = 6, 60, 20
MOST_CYCLES, MOST_ROW_CYCLES = 20_000, 1_000_000
MOST_SECONDS = 0.003
NUM_STEPS, NUM_ADDED = 20, 10
MOST_ROWS, HIDDEN = LEAST_ROWS + 4000, 4096
SIZES_BYTES = (16, 2 << 10, 8 << 10, 100_000, 512 << 10, 2 << 20)
"""The most; and some more than the mailbox holds."""


class Messages:
    """The messages of one graph, as one rank has them."""

    def __init__(self, seed: int, ranks: SymmetricRanks, device: torch.device) -> None:
        """Draw them: sizes that all ranks share, delays of this one."""
        self._ranks = ranks
        shared, own = random.Random(seed), random.Random(f"{seed}/{ranks.rank}")
        generator = torch.Generator(device).manual_seed(seed)
        self._sources, self._sums, self._delays = [], [], list[int]()
        for _ in range(NUM_MESSAGES):
            most_lines = shared.choice((*SIZES_BYTES, 5 * MAILBOX_BYTES[ranks.size] // 4)) // ALIGNMENT_BYTES
            dtype = shared.choice((torch.bfloat16, torch.float32))
            num_numbers = shared.randint(1, most_lines) * ALIGNMENT_BYTES // dtype.itemsize
            shape = (ranks.size, num_numbers)
            numbers = torch.randint(-8, 9, shape, generator=generator, device=device).to(dtype)
            self._sources.append(numbers[ranks.rank].clone())
            # Summed twice, the second time what all ranks have the same; then a sum is added to that.
            self._sums.append(numbers.sum(0) * (ranks.size + 1))
            self._delays.append(own.randint(0, MOST_CYCLES) if own.random() < 0.3 else 0)
        self._out = [torch.empty_like(source) for source in self._sources]
        self._bare = [torch.empty_like(source) for source in self._sources]

    def launch(self, _: str) -> None:
        """Sum each, behind the kernel that writes it."""
        for source, out, bare, cycles in zip(self._sources, self._out, self._bare, self._delays, strict=True):
            if cycles:
                torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            torch.mul(source, 1, out=out)
            self._ranks.all_reduce_by(Way.PUSHED, out)
            self._ranks.all_reduce_by(Way.PUSHED, out)
            torch.mul(source, 1, out=bare)
            self._ranks.add_sum(bare, out)

    def check(self) -> None:
        """Compare all sums, and forget them."""
        for index, (out, total) in enumerate(zip(self._out, self._sums, strict=True)):
            assert torch.equal(out, total), f"message {index}, {out.nbytes} bytes of {out.dtype}"
            out.zero_()


class Rows:
    """Steps whose rows are cut: to a residual all ranks' numbers are added again and again."""

    def __init__(self, ranks: SymmetricRanks, device: torch.device) -> None:
        """Map the largest step's residual."""
        self._ranks, self._device = ranks, device
        like = torch.empty(0, dtype=torch.bfloat16, device=device)
        shared = ranks.share_rows(MOST_ROWS, HIDDEN, like=like)
        assert shared is not None, "steps of so many rows are not cut"
        self._shared = shared

    def check(self, seed: int) -> None:
        """Run one step, of a size that all ranks share, and compare what each sum left."""
        shared, own, ranks = random.Random(seed), random.Random(f"{seed}/{self._ranks.rank}"), self._ranks
        num_rows = shared.randint(LEAST_ROWS, MOST_ROWS)
        generator = torch.Generator(self._device).manual_seed(seed)
        shape = (ranks.size, num_rows, HIDDEN)
        numbers = torch.randint(-8, 9, shape, generator=generator, device=self._device).bfloat16()
        residual, bare = self._shared.rows_TE[:num_rows], torch.empty_like(numbers[0])
        residual.zero_()
        cut = CutResidual.of(self._shared, num_rows, ranks)
        assert cut is not None

        def make_part(rows: slice) -> torch.Tensor:
            _delay(own)
            return torch.mul(numbers[ranks.rank, rows], 1, out=bare[rows])

        seen = []
        for _ in range(NUM_ADDED):
            cut.add(make_part)
            seen.append(torch.empty_like(residual))
            for rows in cut.arriving():
                _delay(own)
                seen[-1][rows] = residual[rows]
        for index, sums in enumerate(seen):
            assert torch.equal(sums, numbers.sum(0) * (index + 1)), (
                f"step {seed}, {num_rows} rows, sum {index}"
            )


def _delay(own: random.Random) -> None:
    if own.random() < 0.3:
        torch.cuda._sleep(own.randint(0, MOST_ROW_CYCLES))  # type: ignore[no-untyped-call]


def main() -> None:
    """Run all graphs."""
    end_with_parent()
    group = join_torchrun("cuda")
    device = torch.device(group.device)
    progress = RankProgress(group.rank)
    ranks, own = SymmetricRanks(device), random.Random(group.rank)
    progress.tell("has met the others")
    for seed in range(NUM_GRAPHS):
        messages = Messages(seed, ranks, device)
        graphs = CudaGraphs(messages.launch, device=device)
        graphs.capture("")
        messages.check()
        progress.tell(f"graph {seed} of {NUM_GRAPHS} captured, its sums are right")
        for replay in range(NUM_REPLAYS):
            time.sleep(own.uniform(0, MOST_SECONDS))
            graphs.replay("")
            # Between the others one replay follows the other at once.
            if replay % 3 == 0:
                messages.check()
        messages.check()
    rows = Rows(ranks, device)
    for seed in range(NUM_STEPS):
        rows.check(seed)
    progress.tell("all sums are right")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
