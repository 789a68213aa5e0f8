"""The scheduler's one scrape port: what it needs, and what it says where it cannot be had."""

import errno
import os
import sys
from pathlib import Path

import pytest

from scheduler_svc import scraped
from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.frontend.meter import FrontendMeter
from scheduler_svc.scraped import serve_metrics
from tests.scraping import scrape


def test_each_front_end_is_told_under_its_number() -> None:
    lines: list[str] = []
    config = SchedulerConfig(model="m", metrics_port=0, frontends=2)
    with serve_metrics(config, lines.append) as folder:
        FrontendMeter.on_board(folder, frontend_index=1).note_call(
            "/stepwire.v1.GenerationService/Abort", "OK"
        )
        url = lines[0].removeprefix("scheduler metrics on ")
        assert [
            scrape(url, "stepwire_frontend_calls_total", method="Abort", frontend=index) for index in "01"
        ] == [0, 1]
    assert folder is not None
    assert not folder.exists()


def test_without_a_port_nothing_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "telemetry.exposition", raising=False)
    lines: list[str] = []
    with serve_metrics(SchedulerConfig(model="m"), lines.append) as folder:
        assert folder is None
    assert lines == []


def test_a_port_that_cannot_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    with serve_metrics(SchedulerConfig(model="m", metrics_port=0), lines.append):
        port = int(lines[0].rsplit(":", 1)[1].split("/")[0])
        assert f"--metrics-port is '127.0.0.1:{port}', but must be an address" in refusal(port)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "telemetry.exposition", raising=False)
    assert refusal(0) == "--metrics-port is 0, but must be -1 where prometheus_client is not installed"


def test_a_memory_that_is_full_is_told_before_anything_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_handle: int, _start: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    folder = scraped._IN_MEMORY
    assert (
        refusal(0)
        == f"--metrics-port is 0, but must be -1 where {folder} has no room (No space left on device)"
    )


def refusal(port: int) -> str:
    def serve() -> Path | None:
        with serve_metrics(SchedulerConfig(model="m", metrics_port=port), print) as folder:
            return folder

    with pytest.raises(ConfigError) as caught:
        serve()
    return str(caught.value)
