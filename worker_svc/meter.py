"""What a worker counts: its steps as they end, the rest looked up a few times a second.

A step costs about 1 us here. Knows nothing about who reads it (scraped.py) or what a step computes.
"""

from telemetry.board import Board
from telemetry.metric import counter, gauge, histogram
from worker_svc.batch.step import StepResult

WORKER_METRICS = (
    gauge("stepwire_worker_lanes_held", "Lanes that requests hold."),
    gauge("stepwire_worker_engine_connected", "1 while an engine's step stream is open."),
    counter("stepwire_worker_cpu_seconds_total", "Processor time of the worker's process."),
    counter("stepwire_worker_step_failures_total", "Steps that could not be computed."),
    counter("stepwire_worker_device_busy_seconds_total", "Time in which the device computed steps."),
    counter(
        "stepwire_worker_device_idle_seconds_total",
        "Time in which the device had nothing to do though lanes were held.",
    ),
    histogram(
        "stepwire_worker_step_seconds",
        "A step from its launch to its tokens on the host, or one iteration of a longer one.",
        buckets=(
            *(0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
            *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
        ),
    ),
)


class WorkerMeter:
    """What is counted of this worker."""

    def __init__(self, board: Board | None = None) -> None:
        """Count on ``board``, which has WORKER_METRICS; None: where nobody else looks."""
        board = board or Board(WORKER_METRICS)
        self.cpu_seconds = board.slot("stepwire_worker_cpu_seconds_total")
        self._lanes = board.slot("stepwire_worker_lanes_held")
        self._connected = board.slot("stepwire_worker_engine_connected")
        self._failures = board.slot("stepwire_worker_step_failures_total")
        self._busy_seconds = board.slot("stepwire_worker_device_busy_seconds_total")
        self._idle_seconds = board.slot("stepwire_worker_device_idle_seconds_total")
        self._step_seconds = board.buckets("stepwire_worker_step_seconds")

    def note_result(self, result: StepResult) -> None:
        """Count a step, or an iteration of a lease, that was computed."""
        if result.num_iterations:
            self._step_seconds.observe(result.step_time_ns / 1e9)
        self._busy_seconds.add(result.busy_time_ns / 1e9)
        self._idle_seconds.add(result.idle_time_ns / 1e9)

    def note_failure(self) -> None:
        """Count a step that could not be computed."""
        self._failures.add()

    def sample(self, *, num_lanes_held: int, is_connected: bool) -> None:
        """Note what there is now."""
        self._lanes.set(num_lanes_held)
        self._connected.set(is_connected)
