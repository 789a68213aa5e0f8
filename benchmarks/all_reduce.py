"""All-reduces between the GPUs of this host, as captured graphs run them: microseconds a message, by way.

    torchrun --nproc-per-node 2 -m benchmarks.all_reduce [--tune]

bfloat16, each way checked for its sum first. What worker_svc/tp/symmetric_ranks.py chooses is marked. Knows
nothing about models.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from benchmarks.gpu_timing import describe_card
from benchmarks.join_torchrun import join_torchrun
from kernels.all_reduce import BOX_LINES, LINE_BYTES, Cut, all_reduce
from worker_svc.runner.cuda_graphs import CudaGraphs
from worker_svc.tp.symmetric_ranks import SymmetricRanks, Way, choose_way, most_bytes

MESSAGE_KIB = (2, 8, 16, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 8192, 32768, 131072)
NUM_LAUNCHES = 100
NUM_REPLAYS = 9


def main() -> None:
    """Print the tables, on the first rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tune", action="store_true", help="first try how the pushed way is cut")
    options = parser.parse_args()
    group = join_torchrun("cuda")
    device = torch.device(group.device)
    ranks = SymmetricRanks(device)
    if options.tune:
        tune(ranks, device)
    if group.is_leader:
        print(f"{group.size} x {describe_card()}, us a message")
        print(f"{'KiB':>6s}" + "".join(f"{way.value:>11s}" for way in Way))
    for num_kib in MESSAGE_KIB:
        x = torch.zeros(num_kib * 512, dtype=torch.bfloat16, device=device)
        cells = [_cell(way, x, ranks) for way in Way]
        if group.is_leader:
            print(f"{num_kib:6d}" + "".join(f"{cell:>11s}" for cell in cells), flush=True)
    torch.distributed.destroy_process_group()


def _cell(way: Way, x: torch.Tensor, ranks: SymmetricRanks) -> str:
    if x.nbytes > most_bytes(way):
        return "-"
    x.fill_(ranks.rank + 1)
    ranks.all_reduce_by(way, x)
    total = ranks.size * (ranks.size + 1) // 2
    assert bool((x == total).all()), f"{way.value} does not give {total}"
    mark = "*" if choose_way(x.nbytes, ranks.size) is way else " "
    return f"{_microseconds(lambda: ranks.all_reduce_by(way, x), x, ranks):.2f}{mark}"


def tune(ranks: SymmetricRanks, device: torch.device) -> None:
    """Print the best cuts of pushed messages."""
    cuts = [
        Cut(num_lines=num_lines, num_warps=num_warps)
        for num_lines in (32, 64, 128, 256)
        for num_warps in (1, 2, 4, 8)
        if num_lines <= BOX_LINES and num_lines // 4 <= 32 * num_warps <= num_lines
    ]
    for num_kib in MESSAGE_KIB:
        x = torch.zeros(num_kib * 512, dtype=torch.bfloat16, device=device)
        times = []
        for cut in cuts:
            if x.nbytes <= cut.num_lines * LINE_BYTES * ranks.mailbox.num_programs:
                run = partial(all_reduce, x, ranks.mailbox, is_dependent=True, cut=cut)
                times.append((_microseconds(run, x, ranks), cut))
        if ranks.rank == 0:
            best = sorted(times, key=lambda timed: timed[0])
            told = (f"{us:.2f} ({cut.num_lines} lines, {cut.num_warps} warps)" for us, cut in best)
            print(f"{num_kib:6d} " + ", ".join(told), flush=True)


def _microseconds(run: Callable[[], object], x: torch.Tensor, ranks: SymmetricRanks) -> float:
    """Return the median time of one message, of the slowest rank."""
    # Zeros stay zeros, however often they are summed.
    x.zero_()

    def launch(_: str) -> None:
        for _launch in range(NUM_LAUNCHES):
            run()

    graphs = CudaGraphs(launch, device=x.device)
    graphs.capture("")
    times = []
    for _ in range(NUM_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graphs.replay("")
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    own = torch.tensor([median(times)], device=x.device)
    return float(ranks.all_gather(own).max()) * 1000 / NUM_LAUNCHES


if __name__ == "__main__":
    main()
