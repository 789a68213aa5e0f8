"""All-reduces between the GPUs of this host, as captured graphs run them: microseconds a message, by way.

    torchrun --nproc-per-node 2 -m benchmarks.all_reduce

bfloat16, each way checked for its sum first. What worker_svc/tp/symmetric_ranks.py chooses is marked. Knows
nothing about models.
"""

from statistics import median

import torch

from benchmarks.gpu_timing import describe_card
from benchmarks.join_torchrun import join_torchrun
from worker_svc.runner.cuda_graphs import CudaGraphs
from worker_svc.tp.symmetric_ranks import BUFFER_BYTES, SymmetricRanks, Way, choose_way

MESSAGE_KIB = (8, 16, 64, 128, 256, 512, 1024, 2048, 8192)
NUM_LAUNCHES = 100
NUM_REPLAYS = 9


def main() -> None:
    """Print the table, on the first rank."""
    group = join_torchrun("cuda")
    device = torch.device(group.device)
    ranks = SymmetricRanks(device)
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
    if way is not Way.NCCL and x.nbytes > BUFFER_BYTES:
        return "-"
    x.fill_(ranks.rank + 1)
    ranks.all_reduce_by(way, x)
    total = ranks.size * (ranks.size + 1) // 2
    assert bool((x == total).all()), f"{way.value} does not give {total}"
    mark = "*" if choose_way(x.nbytes, ranks.size) is way else " "
    return f"{_microseconds(way, x, ranks):.2f}{mark}"


def _microseconds(way: Way, x: torch.Tensor, ranks: SymmetricRanks) -> float:
    """Return the median time of one message, of the slowest rank."""
    # Zeros stay zeros, however often they are summed.
    x.zero_()

    def launch(_: Way) -> None:
        for _launch in range(NUM_LAUNCHES):
            ranks.all_reduce_by(way, x)

    graphs = CudaGraphs(launch, device=x.device)
    graphs.capture(way)
    times = []
    for _ in range(NUM_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graphs.replay(way)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    own = torch.tensor([median(times)], device=x.device)
    return float(ranks.all_gather(own).max()) * 1000 / NUM_LAUNCHES


if __name__ == "__main__":
    main()
