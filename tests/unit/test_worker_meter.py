"""What a worker counts, worked out by hand, and where it can be scraped."""

import sys

import numpy as np
import pytest

from telemetry.board import Board
from tests.scraping import scrape
from worker_svc.batch.step import SampledTokens, StepResult
from worker_svc.config import WorkerConfig
from worker_svc.errors import ConfigError
from worker_svc.meter import WORKER_METRICS, WorkerMeter
from worker_svc.scraped import serve_metrics


def result(*, num_iterations: int = 1) -> StepResult:
    return StepResult(
        step_id=1,
        sampled=SampledTokens(token_ids=np.array([4], np.int32)),
        step_time_ns=3_000_000,
        num_iterations=num_iterations,
        busy_time_ns=2_000_000,
        idle_time_ns=500_000,
    )


def test_steps_times_and_failures() -> None:
    board = Board(WORKER_METRICS)
    meter = WorkerMeter(board)
    meter.note_result(result())
    meter.note_result(result(num_iterations=0))
    meter.note_failure()
    meter.sample(num_lanes_held=3, is_connected=True)
    steps = board.buckets("stepwire_worker_step_seconds")
    assert (sum(steps.counts()), steps.sum) == (1, 0.003)
    names = ("device_busy_seconds_total", "device_idle_seconds_total", "step_failures_total")
    assert [board.slot(f"stepwire_worker_{name}").value for name in names] == [0.004, 0.001, 1]
    assert [board.slot(f"stepwire_worker_{name}").value for name in ("lanes_held", "engine_connected")] == [
        3,
        1,
    ]


def test_what_is_counted_can_be_scraped() -> None:
    lines: list[str] = []
    with serve_metrics(WorkerConfig(model="m", metrics_port=0), lines.append) as meter:
        meter.note_failure()
        (line,) = lines
        assert line.startswith("worker metrics on http://127.0.0.1:")
        assert scrape(line.split()[-1], "stepwire_worker_step_failures_total") == 1


def without_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "telemetry.exposition", raising=False)


def test_a_port_without_the_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    without_prometheus_client(monkeypatch)
    with (
        pytest.raises(
            ConfigError, match="--metrics-port is 0, but must be -1 where prometheus_client is not"
        ),
        serve_metrics(WorkerConfig(model="m", metrics_port=0), print),
    ):
        raise AssertionError("never reached")


def test_no_port_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    without_prometheus_client(monkeypatch)
    lines: list[str] = []
    with serve_metrics(WorkerConfig(model="m"), lines.append) as meter:
        meter.note_failure()
    assert lines == []


def test_a_port_that_is_taken_is_an_error() -> None:
    ports: list[str] = []
    with serve_metrics(WorkerConfig(model="m", metrics_port=0), ports.append):
        port = int(ports[0].rsplit(":", 1)[1].split("/")[0])
        with (
            pytest.raises(ConfigError, match=f"--metrics-port is {port}, but must be free on 127.0.0.1"),
            serve_metrics(WorkerConfig(model="m", metrics_port=port), print),
        ):
            raise AssertionError("never reached")
