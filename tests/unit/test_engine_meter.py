"""What the engine counts, worked out by hand; a new engine goes on where the last one was."""

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler_svc.core.plan import CoreState
from scheduler_svc.core.types import FinishReason
from scheduler_svc.engine.meter import EngineMeter
from scheduler_svc.engine.values import EngineState, GroupInfo, StepTimes, WorkerStatus
from scheduler_svc.metrics import engine_board_path, engine_metrics
from telemetry.board import Board

WORKERS = ("a:1", "b:2")
CORE = CoreState(
    num_waiting=1,
    num_running=2,
    num_preempted=3,
    num_blocks=10,
    num_free_blocks=4,
    num_cached_blocks=1,
    num_steps_in_flight=2,
    num_prompt_tokens_total=100,
    num_cached_tokens_total=40,
    num_output_tokens_total=50,
    num_finished_total=6,
    num_preemptions_total=7,
)
UP = WorkerStatus(
    info=GroupInfo(address="a:1", is_serving=True, reason=""),
    facts=None,
    core=CORE,
    num_steps_in_flight=2,
    num_steps=9,
    num_epochs_lost=1,
    device_idle_ratio=0.25,
    round_trip_time_ns=2_000_000,
)
DOWN = replace(UP, info=GroupInfo(address="b:2", is_serving=False, reason="gone"), core=None)
STATE = EngineState(core=CORE, workers=(UP, DOWN), uptime_ns=1, num_frontends=3)


def numbers(board: Board, worker: str, *names: str) -> list[float]:
    return [board.slot(f"stepwire_engine_{name}", worker).value for name in names]


def test_gauges_and_totals_of_each_group() -> None:
    board = Board(engine_metrics(WORKERS))
    EngineMeter(board, WORKERS).sample(STATE)
    assert board.slot("stepwire_engine_frontends").value == 3
    names = (
        *("requests_waiting", "requests_running", "requests_preempted", "steps_in_flight", "worker_up"),
        *("kv_cache_blocks", "kv_cache_usage_ratio", "kv_cache_cached_ratio", "device_idle_ratio"),
        *("round_trip_seconds", "prompt_tokens_total", "prefix_hit_tokens_total", "output_tokens_total"),
        *("preemptions_total", "workers_lost_total"),
    )
    assert numbers(board, "a:1", *names) == [1, 2, 3, 2, 1, 10, 0.5, 0.1, 0.25, 0.002, 100, 40, 50, 7, 1]
    assert numbers(board, "b:2", "worker_up", "prompt_tokens_total", "workers_lost_total") == [0, 0, 1]


def test_steps_are_counted_by_iteration_and_plans_by_their_rows() -> None:
    board = Board(engine_metrics(WORKERS))
    group = EngineMeter(board, WORKERS).groups[1]
    group.note_result(StepTimes(num_iterations=4, busy_seconds=0.02, idle_seconds=0.001, held_seconds=0.1))
    group.note_result(StepTimes(num_iterations=0, busy_seconds=0.0, idle_seconds=0.0, held_seconds=0.1))
    group.note_plan(6)
    group.note_plan(0)
    steps = board.buckets("stepwire_engine_step_seconds", "b:2")
    assert sum(steps.counts()) == 4
    assert steps.sum == pytest.approx(0.02)
    rows = board.buckets("stepwire_engine_step_requests", "b:2")
    assert (sum(rows.counts()), rows.sum) == (1, 6)
    assert numbers(board, "b:2", "device_busy_seconds_total", "device_idle_seconds_total") == [0.02, 0.001]
    assert sum(board.buckets("stepwire_engine_step_seconds", "a:1").counts()) == 0


def test_every_reason_has_a_counter() -> None:
    board = Board(engine_metrics(WORKERS))
    meter = EngineMeter(board, WORKERS)
    for reason in FinishReason:
        meter.note_ended(reason)
    name = "stepwire_engine_requests_ended_total"
    assert [board.slot(name, reason.name.lower()).value for reason in FinishReason] == [1] * len(FinishReason)


def test_a_new_engine_goes_on_counting(tmp_path: Path) -> None:
    for _ in range(2):
        EngineMeter.on_board(tmp_path, WORKERS).sample(STATE)
    board = Board.in_file(engine_metrics(WORKERS), engine_board_path(tmp_path))
    assert numbers(board, "a:1", "prompt_tokens_total", "workers_lost_total", "requests_running") == [
        200,
        2,
        2,
    ]
