"""The arithmetic of `stepwire bench`: percentiles, latencies and summaries of records made by hand."""

from array import array
from typing import Any

import pytest
from stepwire_cli.bench.metrics import (
    Distribution,
    distribution,
    e2el,
    itls,
    percentile,
    summarize,
    tpot,
    ttft,
)
from stepwire_cli.bench.records import ClientUsage, RequestRecord, RoundRecord


def record(index: int = 0, **fields: Any) -> RequestRecord:
    """Five tokens in three messages, at 2, 4 and 10 s; due at 1 s, sent at 1.5 s, over at 11 s."""
    return RequestRecord(
        **{
            "index": index,
            "num_expected_tokens": 5,
            "due_seconds": 1.0,
            "sent_seconds": 1.5,
            "ended_seconds": 11.0,
            "message_seconds": array("d", [2.0, 4.0, 10.0]),
            "message_num_tokens": array("L", [1, 3, 1]),
            "num_prompt_tokens": 7,
            "num_cached_tokens": 2,
            **fields,
        }
    )


def usage(cpu: float, loop: float) -> ClientUsage:
    return ClientUsage(wall_seconds=10.0, cpu_seconds=cpu, loop_cpu_seconds=loop)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([5.0], 99, 5.0),
        ([1.0, 2.0], 50, 1.5),
        ([0.0, 10.0, 20.0, 30.0, 40.0], 50, 20.0),
        ([0.0, 10.0, 20.0, 30.0, 40.0], 90, 36.0),
        ([0.0, 10.0, 20.0, 30.0, 40.0], 100, 40.0),
        ([0.0, 10.0, 20.0, 30.0, 40.0], 0, 0.0),
    ],
)
def test_percentiles_lie_between_neighbours(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_a_distribution_of_values_in_any_order() -> None:
    values = [float(value) for value in range(101)]
    assert distribution(reversed(values)) == Distribution(mean=50.0, p50=50.0, p90=90.0, p95=95.0, p99=99.0)
    assert distribution([]) is None


def test_latencies_of_one_request() -> None:
    assert ttft(record()) == 1.0
    assert itls(record()) == [2.0, 6.0]
    assert tpot(record()) == 2.0
    assert e2el(record()) == 10.0


def test_a_single_token_has_no_time_per_later_token() -> None:
    single = record(message_seconds=array("d", [2.0]), message_num_tokens=array("L", [1]))
    assert (tpot(single), itls(single), single.num_output_tokens) == (None, [], 1)


def test_the_summary_of_two_rounds() -> None:
    first = RoundRecord(requests=(record(0), record(1, due_seconds=0.0)), clients=(usage(4, 2), usage(1, 9)))
    second = RoundRecord(
        requests=(record(0), record(1, ended_seconds=13.0)), clients=(usage(5, 1), usage(1, 1))
    )
    summary = summarize([first, second])
    assert summary.round_seconds == (11.0, 13.0)
    assert summary.seconds == 12.0
    assert (summary.num_requests, summary.num_failed, summary.errors) == (2, 0, {})
    assert summary.num_output_tokens == 10
    assert summary.output_tokens_per_second == 10 / 12
    assert summary.requests_per_second == 2 / 12
    assert summary.ms_per_step == 2400.0
    assert (summary.num_prompt_tokens, summary.num_cached_tokens) == (14, 4)
    assert summary.ttft_seconds == distribution([1.0, 2.0, 1.0, 1.0])
    assert summary.itl_seconds == distribution([2.0, 6.0] * 4)
    assert summary.tpot_seconds == distribution([2.0] * 4)
    assert summary.e2el_seconds == distribution([10.0, 11.0, 10.0, 12.0])
    assert summary.late_seconds == distribution([0.5, 1.5, 0.5, 0.5])
    assert summary.client_cpu_ratios == (0.5, 0.1)
    assert summary.client_loop_ratios == (0.2, 0.9)


def test_failed_requests_are_counted_and_not_timed() -> None:
    failed = record(1, error="UNAVAILABLE", error_message="gone", message_num_tokens=array("L", [1, 1, 1]))
    summary = summarize([RoundRecord(requests=(record(0), failed), clients=(usage(1, 1),))])
    assert (summary.num_requests, summary.num_failed) == (2, 1)
    assert summary.errors == {"UNAVAILABLE": 1}
    assert summary.error_examples == {"UNAVAILABLE": "gone"}
    assert summary.num_output_tokens == 5
    assert summary.requests_per_second == 1 / 11
    assert summary.e2el_seconds == distribution([10.0])


def test_nothing_but_failures_has_no_latencies() -> None:
    failed = record(error="INTERNAL", message_seconds=array("d"), message_num_tokens=array("L"))
    summary = summarize([RoundRecord(requests=(failed,), clients=(usage(1, 1),))])
    latencies = (summary.ttft_seconds, summary.itl_seconds, summary.tpot_seconds, summary.e2el_seconds)
    assert latencies == (None, None, None, None)
    assert summary.output_tokens_per_second == 0
