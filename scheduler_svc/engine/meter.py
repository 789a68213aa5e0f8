"""What the engine counts: some of it as it happens, the rest looked up a few times a second.

A step costs about 1 us here. Totals that the cores keep begin at 0 with each engine process; what an
earlier one left on the board is added to them. Knows nothing about where the board stands.
"""

from pathlib import Path

from scheduler_svc.core.plan import CoreState
from scheduler_svc.core.types import FinishReason
from scheduler_svc.engine.values import EngineState, StepTimes, WorkerStatus
from scheduler_svc.metrics import engine_board_path, engine_metrics
from telemetry.board import Board, Slot

_PREFIX = "stepwire_engine_"


class GroupMeter:
    """What is counted of one worker group."""

    def __init__(self, board: Board, worker: str) -> None:
        def slot(name: str) -> Slot:
            return board.slot(_PREFIX + name, worker)

        self._step_seconds = board.buckets(_PREFIX + "step_seconds", worker)
        self._step_requests = board.buckets(_PREFIX + "step_requests", worker)
        self._busy_seconds = slot("device_busy_seconds_total")
        self._idle_seconds = slot("device_idle_seconds_total")
        self._lost = slot("workers_lost_total")
        self._gauges = {
            name: slot(name)
            for name in (
                *("requests_waiting", "requests_running", "requests_preempted", "kv_cache_blocks"),
                *("kv_cache_usage_ratio", "kv_cache_cached_ratio", "steps_in_flight", "worker_up"),
                *("device_idle_ratio", "round_trip_seconds"),
            )
        }
        totals = {
            name: slot(name)
            for name in (
                *("prompt_tokens_total", "prefix_hit_tokens_total", "output_tokens_total"),
                "preemptions_total",
            )
        }
        self._totals = {name: (total, total.value) for name, total in totals.items()}
        self._num_lost_before = self._lost.value

    def note_plan(self, num_rows: int) -> None:
        """Count a step that is sent."""
        if num_rows:
            self._step_requests.observe(num_rows)

    def note_result(self, times: StepTimes) -> None:
        """Count what the worker measured."""
        if times.num_iterations:
            self._step_seconds.observe(times.busy_seconds / times.num_iterations, times.num_iterations)
        self._busy_seconds.add(times.busy_seconds)
        self._idle_seconds.add(times.idle_seconds)

    def sample(self, status: WorkerStatus) -> None:
        """Note what there is now."""
        gauges = self._gauges
        gauges["worker_up"].set(status.info.is_serving)
        gauges["steps_in_flight"].set(status.num_steps_in_flight)
        gauges["device_idle_ratio"].set(status.device_idle_ratio)
        gauges["round_trip_seconds"].set(status.round_trip_time_ns / 1e9)
        self._lost.set(self._num_lost_before + status.num_epochs_lost)
        if status.core is not None:
            self._sample_core(status.core)

    def _sample_core(self, core: CoreState) -> None:
        num_held = core.num_blocks - core.num_free_blocks - core.num_cached_blocks
        for name, value in (
            ("requests_waiting", core.num_waiting),
            ("requests_running", core.num_running),
            ("requests_preempted", core.num_preempted),
            ("kv_cache_blocks", core.num_blocks),
            ("kv_cache_usage_ratio", num_held / core.num_blocks),
            ("kv_cache_cached_ratio", core.num_cached_blocks / core.num_blocks),
        ):
            self._gauges[name].set(value)
        for name, num_total in (
            ("prompt_tokens_total", core.num_prompt_tokens_total),
            ("prefix_hit_tokens_total", core.num_cached_tokens_total),
            ("output_tokens_total", core.num_output_tokens_total),
            ("preemptions_total", core.num_preemptions_total),
        ):
            total, num_before = self._totals[name]
            total.set(num_before + num_total)


class EngineMeter:
    """What is counted of the engine, and of each of its worker groups."""

    def __init__(self, board: Board, workers: tuple[str, ...]) -> None:
        """Count on ``board``, which has the metrics of these worker groups."""
        self.groups = tuple(GroupMeter(board, worker) for worker in workers)
        """In the order of the flags."""
        self.cpu_seconds = board.slot(_PREFIX + "cpu_seconds_total")
        self._frontends = board.slot(_PREFIX + "frontends")
        self._ended = {
            reason: board.slot(_PREFIX + "requests_ended_total", reason.name.lower())
            for reason in FinishReason
        }

    @classmethod
    def on_board(cls, folder: Path | None, workers: tuple[str, ...]) -> "EngineMeter":
        """Go on with the board in ``folder``; None: count where nobody else looks."""
        metrics = engine_metrics(workers)
        if folder is None:
            return cls(Board(metrics), workers)
        return cls(Board.taken_over(metrics, engine_board_path(folder)), workers)

    def note_ended(self, reason: FinishReason) -> None:
        """Count a request that ended."""
        self._ended[reason].add()

    def sample(self, state: EngineState) -> None:
        """Note what there is now."""
        self._frontends.set(state.num_frontends)
        for group, status in zip(self.groups, state.workers, strict=True):
            group.sample(status)
