"""Boards: what is counted stands where it is read, also when another process goes on with it."""

import os
from pathlib import Path

import pytest

from telemetry.board import Board
from telemetry.metric import Kind, Metric, counter, gauge, histogram

METRICS = (
    counter("stepwire_a_total", "A.", label="reason", values=("x", "y")),
    gauge("stepwire_b", "B."),
    histogram("stepwire_c_seconds", "C.", buckets=(0.1, 1.0), label="worker", values=("w0", "w1")),
)


def test_each_series_has_numbers_of_its_own() -> None:
    board = Board(METRICS)
    board.slot("stepwire_a_total", "y").add()
    board.slot("stepwire_a_total", "y").add(2.5)
    board.slot("stepwire_b").set(7)
    assert board.slot("stepwire_a_total", "x").value == 0
    assert board.slot("stepwire_a_total", "y").value == 3.5
    assert board.slot("stepwire_b").value == 7
    assert board.buckets("stepwire_c_seconds", "w0").counts() == [0, 0, 0]


def test_a_value_counts_in_the_first_bucket_that_holds_it() -> None:
    board = Board(METRICS)
    buckets = board.buckets("stepwire_c_seconds", "w1")
    for value in (0.05, 0.1, 0.2, 1.0, 1.5):
        buckets.observe(value)
    buckets.observe(0.5, 3)
    assert buckets.counts() == [2, 5, 1]
    assert buckets.sum == pytest.approx(0.05 + 0.1 + 0.2 + 1.0 + 1.5 + 1.5)
    assert board.buckets("stepwire_c_seconds", "w0").counts() == [0, 0, 0]
    assert board.slot("stepwire_b").value == 0


def test_who_reads_a_file_sees_what_another_writes(tmp_path: Path) -> None:
    reader = Board.in_file(METRICS, tmp_path / "board")
    writer = Board.taken_over(METRICS, tmp_path / "board")
    writer.slot("stepwire_a_total", "x").add(4)
    assert reader.slot("stepwire_a_total", "x").value == 4


def test_a_file_is_given_all_of_its_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda _, start, size: asked.append((start, size)))
    Board.in_file(METRICS, tmp_path / "board")
    assert asked == [(0, (tmp_path / "board").stat().st_size)]


def test_the_next_process_goes_on_counting_and_forgets_gauges(tmp_path: Path) -> None:
    first = Board.taken_over(METRICS, tmp_path / "board")
    first.slot("stepwire_a_total", "x").add(4)
    first.slot("stepwire_b").set(9)
    first.buckets("stepwire_c_seconds", "w0").observe(0.5)
    second = Board.taken_over(METRICS, tmp_path / "board")
    second.slot("stepwire_a_total", "x").add(1)
    assert second.slot("stepwire_a_total", "x").value == 5
    assert second.slot("stepwire_b").value == 0
    assert second.buckets("stepwire_c_seconds", "w0").counts() == [0, 1, 0]


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        (Kind.COUNTER, "stepwire_tokens", "_total is for counters"),
        (Kind.GAUGE, "stepwire_tokens_total", "_total is for counters"),
        (Kind.GAUGE, "stepwire_steps_count", "a kept suffix"),
        (Kind.GAUGE, "stepwire_delay_ms", "base units only"),
        (Kind.COUNTER, "stepwire_delay_ns_total", "base units only"),
        (Kind.GAUGE, "stepwire_usage_percent", "base units only"),
        (Kind.GAUGE, "tokens", "not a name of ours"),
        (Kind.GAUGE, "stepwire_Tokens", "not a name of ours"),
        (Kind.HISTOGRAM, "stepwire_step_seconds", "buckets"),
    ],
)
def test_names_keep_to_the_conventions(kind: Kind, name: str, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        Metric(name=name, kind=kind, help="Something.")
