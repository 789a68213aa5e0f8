"""What the scheduler service costs beside a worker: CPU of front ends and engine, memory, a flood.

    python -m benchmarks.split_cost [--model FOLDER] [--frontends 1] [--tokens-per-second 40000]
        [--bulk] [--floods 1] [--seconds 20] [--soak-minutes 0]

The service runs as it does in earnest, against a stand-in worker that tells real text at a set rate,
for clients in a process of their own. CPU is the processes' own time, scaled to the goal's rate where
the machine's cores could not carry clients and stand-in as well. Knows nothing about models.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process_cost import ProcessCost, read_cost, scheduler_processes
from benchmarks.split_client import Counts, Load, poll_state, start_flood, start_load
from benchmarks.split_text import Script, write_qwen3_folder
from tools.services import running

NUM_STREAMS = 256
NUM_TOKENS = 1024
GOAL_TOKENS_PER_SECOND = 40_000
GOAL_CORES = {"front end": 1.2, "engine": 0.3}
FLOOD_STREAMS = 1000
FLOOD_TOKENS = 32
GOAL_QUEUED_SECONDS = 1.0
GOAL_STATE_SECONDS = 0.2
GOAL_MEMORY_GROWTH = 0.02
_WARM_UP_SECONDS = 8.0
_LIMIT_SECONDS = 60.0
_SOAK_FROM_MINUTE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The running service, and what is asked of it."""

    address: str
    model: Path
    pids: dict[str, int]
    num_channels: int
    is_bulk: bool

    def load(self, num_streams: int, num_tokens: int) -> Load:
        """Describe a load on the service."""
        return Load(
            address=self.address,
            model=self.model,
            num_streams=num_streams,
            num_tokens=num_tokens,
            num_channels=self.num_channels,
            is_bulk=self.is_bulk,
        )

    def costs(self) -> dict[str, ProcessCost]:
        """Read the cost of each process until now."""
        return {name: read_cost(pid) for name, pid in self.pids.items()}


@contextmanager
def running_bench(model: Path, flags: argparse.Namespace) -> Iterator[Bench]:
    """Run the stand-in worker and the scheduler service."""
    with tempfile.TemporaryDirectory(prefix="split-cost-") as folder:
        script_path = Path(folder) / "script.npy"
        Script.load(model).save(script_path)
        step_seconds = str(NUM_STREAMS / flags.tokens_per_second)
        common = ("--model", str(model), "--port", "0")
        worker_flags = ("--script", str(script_path), "--step-seconds", step_seconds)
        with running("tests.stand_in_process", *common, *worker_flags) as worker:
            scheduler_flags = ("--worker", worker.address(), "--frontends", str(flags.frontends))
            quiet = ("--log-level", "warning", "--drain-seconds", "1")
            with running("scheduler_svc", *common, *scheduler_flags, *quiet) as scheduler:
                yield Bench(
                    address=scheduler.address(),
                    model=model,
                    pids={
                        **scheduler_processes(scheduler.process.pid),
                        "stand-in worker": worker.process.pid,
                    },
                    num_channels=flags.channels or flags.frontends,
                    is_bulk=flags.bulk,
                )


def measure_flood(bench: Bench) -> None:
    """Open many streams at once; print when the engine knew all, and how the state was answered."""
    process, connection = start_flood(bench.load(FLOOD_STREAMS, FLOOD_TOKENS))
    connection.recv()
    before = bench.costs()
    queued, latencies = poll_state(
        bench.address, FLOOD_STREAMS, limit_seconds=_LIMIT_SECONDS, begin=lambda: connection.send("go")
    )
    cpu = {name: cost.cpu_seconds - before[name].cpu_seconds for name, cost in bench.costs().items()}
    start = connection.recv()
    print(
        f"flood: {FLOOD_STREAMS} streams queued after {queued - start:.2f} s "
        f"(goal: {GOAL_QUEUED_SECONDS:.0f} s); "
        f"{len(latencies)} x GetServerState meanwhile, slowest {1000 * max(latencies):.0f} ms "
        f"(goal: {1000 * GOAL_STATE_SECONDS:.0f} ms)"
    )
    print("  CPU seconds until then:", ", ".join(f"{name} {spent:.2f}" for name, spent in cpu.items()))
    end, first_times, num_messages = connection.recv()
    middle, last = first_times[len(first_times) // 2] - start, first_times[-1] - start
    print(f"  first tokens after {middle:.2f} s in the middle, {last:.2f} s at the latest")
    print(f"  all ended after {end - start:.2f} s, told in {num_messages:,} messages", flush=True)
    process.join()


def measure_load(bench: Bench, *, seconds: float, soak_minutes: int) -> None:
    """Run a steady load; print cores by process, then memory by the minute."""
    counts = Counts()
    client = start_load(bench.load(NUM_STREAMS, NUM_TOKENS), counts)
    start = time.monotonic()
    _wait_until(start + _WARM_UP_SECONDS)
    pids = {**bench.pids, "client": client.pid or 0}
    _print_cores(pids, counts, seconds=seconds)
    if soak_minutes:
        _soak(bench, start, soak_minutes=soak_minutes)
    assert client.exitcode is None, "the client failed: see its output above"
    print(f"{counts.read()['checked']} whole texts compared with the tokenizer's own decode")
    client.terminate()
    client.join()


def _print_cores(pids: dict[str, int], counts: Counts, *, seconds: float) -> None:
    before, counts_before, start = {k: read_cost(v) for k, v in pids.items()}, counts.read(), time.monotonic()
    _wait_until(start + seconds)
    elapsed = time.monotonic() - start
    rates = {name: (count - counts_before[name]) / elapsed for name, count in counts.read().items()}
    scale = GOAL_TOKENS_PER_SECOND / rates["tokens"]
    print(f"{rates['tokens']:,.0f} tokens/s in {rates['messages']:,.0f} messages/s, {elapsed:.0f} s")
    totals: dict[str, float] = {}
    for name, pid in pids.items():
        cores = (read_cost(pid).cpu_seconds - before[name].cpu_seconds) / elapsed
        kind = name.rstrip("0123456789 ")
        totals[kind] = totals.get(kind, 0.0) + cores
        print(f"  {name:16} {cores:5.2f} cores")
    print(f"scaled by {scale:.2f} to {GOAL_TOKENS_PER_SECOND:,} tokens/s:")
    for kind, goal in GOAL_CORES.items():
        print(f"  {kind:16} {totals[kind] * scale:5.2f} cores (goal: {goal})", flush=True)


def _soak(bench: Bench, start: float, *, soak_minutes: int) -> None:
    first: dict[str, ProcessCost] = {}
    for minute in range(_SOAK_FROM_MINUTE, soak_minutes + 1):
        _wait_until(start + 60 * minute)
        costs = bench.costs()
        first = first or costs
        sizes = ", ".join(f"{name} {cost.resident_mib:.1f}" for name, cost in costs.items())
        print(f"minute {minute:2}: resident MiB: {sizes}", flush=True)
    for name, cost in bench.costs().items():
        growth = cost.resident_mib / first[name].resident_mib - 1
        print(f"  {name:16} grew by {100 * growth:.2f} % (goal: under {100 * GOAL_MEMORY_GROWTH:.0f} %)")


def _wait_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="folder with config and tokenizer; default: Qwen3's own")
    parser.add_argument("--frontends", type=int, default=1)
    parser.add_argument(
        "--channels", type=int, default=0, help="the clients' connections; 0: a front end each"
    )
    parser.add_argument("--bulk", action="store_true", help="load by GenerateMany")
    parser.add_argument("--tokens-per-second", type=int, default=GOAL_TOKENS_PER_SECOND)
    parser.add_argument("--floods", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the load is measured")
    parser.add_argument("--soak-minutes", type=int, default=0, help="how long the load runs on")
    flags = parser.parse_args()
    # What the services set for themselves; the clients are to be as cheap.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    with tempfile.TemporaryDirectory(prefix="split-cost-model-") as folder:
        if flags.model is None:
            write_qwen3_folder(Path(folder))
        with running_bench(flags.model or Path(folder), flags) as bench:
            for _ in range(flags.floods):
                measure_flood(bench)
            measure_load(bench, seconds=flags.seconds, soak_minutes=flags.soak_minutes)


if __name__ == "__main__":
    main()
