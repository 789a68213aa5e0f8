"""What metrics cost: a step on engine and worker, a token and a request on a front end, a scrape.

Each is measured alone, on boards like those of a running service, and the best of several rounds is told;
the push of a token is told with and without, too. Knows nothing about sockets.

Run it: python -m benchmarks.metrics_cost
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console
from rich.table import Table
from stepwire.worker.v1 import worker_service_pb2 as pb

from scheduler_svc.core.types import FinishReason
from scheduler_svc.engine.convert import times_from_pb
from scheduler_svc.engine.meter import EngineMeter
from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.meter import FrontendMeter, TokenMeter
from scheduler_svc.frontend.streams import RequestStream
from scheduler_svc.frontend.values import Final
from scheduler_svc.metrics import engine_metrics, frontend_metrics
from telemetry.board import Board
from telemetry.exposition import BoardCollector, Place
from worker_svc.batch.step import SampledTokens, StepResult
from worker_svc.meter import WorkerMeter

NUM_ROUNDS = 500
NUM_CALLS = 100
NUM_STREAMS = 256
NUM_FRONTENDS = 4
WORKERS = ("127.0.0.1:50061",)


class _NoText:
    """Turns tokens into nothing."""

    def push(self, token_id: int) -> str:
        """Take a token."""
        del token_id
        return ""

    def push_all(self, token_ids: list[int]) -> str:
        """Take tokens."""
        del token_ids
        return ""

    def flush(self) -> str:
        """End."""
        return ""


class _Uncounted(TokenMeter):
    """Counts nothing."""

    def begin_message(self) -> None:
        """Look at no clock."""

    def note_next(self, last_ns: int) -> None:
        """Count nothing."""

    def end_message(self) -> None:
        """Count nothing."""

    def note_first(self, seconds: float) -> None:
        """Count nothing."""


def best_us(run: Callable[[], None], num_calls: int, *, num_rounds: int = NUM_ROUNDS) -> float:
    """Return the microseconds of one call, in the best of all rounds, which are short."""
    best_ns = min(_elapsed_ns(run) for _ in range(num_rounds))
    return best_ns / num_calls / 1000


def _elapsed_ns(run: Callable[[], None]) -> int:
    start_ns = perf_counter_ns()
    run()
    return perf_counter_ns() - start_ns


def engine_step_us(folder: Path) -> float:
    """Measure what the engine notes of a step: its plan, its result and an end."""
    meter = EngineMeter.on_board(folder, WORKERS)
    group = meter.groups[0]
    result = pb.StepResult(
        num_iterations=1, busy_time_ns=3_000_000, idle_time_ns=1000, held_time_ns=4_000_000
    )

    def run() -> None:
        for _ in range(NUM_CALLS):
            group.note_plan(NUM_STREAMS)
            group.note_result(times_from_pb(result))
            meter.note_ended(FinishReason.LENGTH)

    return best_us(run, NUM_CALLS)


def worker_step_us() -> float:
    """Measure what the worker notes of a step."""
    meter = WorkerMeter()
    sampled = SampledTokens(token_ids=np.zeros(NUM_STREAMS, np.int32))
    result = StepResult(step_id=1, sampled=sampled, step_time_ns=3_000_000, busy_time_ns=2_900_000)

    def run() -> None:
        for _ in range(NUM_CALLS):
            meter.note_result(result)

    return best_us(run, NUM_CALLS)


def token_us(meter: TokenMeter) -> float:
    """Measure the push of a token to its stream, one for each of many streams in a message."""
    streams = [
        RequestStream(
            Generation(_NoText(), None), num_prompt_tokens=1, arrival_ns=0, max_pending=2**30, meter=meter
        )
        for _ in range(NUM_STREAMS)
    ]
    num_messages = 2

    def run() -> None:
        for _ in range(num_messages):
            meter.begin_message()
            for stream in streams:
                stream.push(7)
            meter.end_message()

    return best_us(run, num_messages * NUM_STREAMS)


def request_us(folder: Path) -> float:
    """Measure what a front end notes of a request beside its tokens."""
    meter = FrontendMeter.on_board(folder)
    final = Final(
        reason=FinishReason.LENGTH,
        num_prompt_tokens=100,
        num_output_tokens=100,
        num_cached_tokens=0,
        queue_time_ns=1000,
        first_token_time_ns=10**7,
        total_time_ns=10**9,
    )

    def run() -> None:
        for _ in range(NUM_CALLS):
            with meter.request():
                meter.tokens.note_started(0.001)
                meter.tokens.note_first(0.01)
                meter.note_final(final)
            meter.note_call("/stepwire.v1.GenerationService/Generate", "OK")

    return best_us(run, NUM_CALLS)


def scrape_us() -> float:
    """Measure how long the supervisor takes to tell all numbers."""
    places = [Place(board=Board(engine_metrics(WORKERS)))]
    places += [
        Place(board=Board(frontend_metrics()), labels={"frontend": str(index)})
        for index in range(NUM_FRONTENDS)
    ]
    registry = CollectorRegistry()
    registry.register(BoardCollector(places))
    return best_us(lambda: _tell(registry), 1, num_rounds=30)


def _tell(registry: CollectorRegistry) -> None:
    generate_latest(registry)


def main() -> None:
    """Measure and print all."""
    table = Table("what", "us", title="Cost of metrics")
    # Where the scheduler's boards are, too: memory, or counting would wait for a disk.
    with TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        counted = FrontendMeter.on_board(folder).tokens
        rows = {
            "engine: a step": engine_step_us(folder),
            "front end: a token pushed, not counted": token_us(_Uncounted(Board(frontend_metrics()))),
            "front end: a token pushed, counted": token_us(counted),
            "front end: a request, beside its tokens": request_us(folder),
            "worker: a step": worker_step_us(),
            f"supervisor: a scrape with {NUM_FRONTENDS} front ends": scrape_us(),
        }
    for what, microseconds in rows.items():
        table.add_row(what, f"{microseconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
