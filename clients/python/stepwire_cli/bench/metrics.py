"""From records to figures: latencies, percentiles, rates, errors.

Pure arithmetic: knows nothing about how records came about or how figures are shown.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepwire_cli.bench.records import RequestRecord, RoundRecord

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean and percentiles of some seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one case under one load; rates are of the median round, latencies of all rounds."""

    num_requests: int
    """Of one round."""
    num_failed: int
    """Of all rounds."""
    errors: dict[str, int]
    error_examples: dict[str, str]
    round_seconds: tuple[float, ...]
    seconds: float
    """From the start of a round to the end of its last request; median of the rounds."""
    output_tokens_per_second: float
    requests_per_second: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    """These three of one round."""
    ms_per_step: float
    """Median seconds over the tokens of the longest request."""
    ttft_seconds: Distribution | None
    itl_seconds: Distribution | None
    tpot_seconds: Distribution | None
    e2el_seconds: Distribution | None
    """A distribution is None where there was nothing to measure."""
    late_seconds: Distribution | None
    """How much later than due requests were sent: the generator's own delay, part of TTFT and E2EL."""
    client_cpu_ratios: tuple[float, ...]
    """Each client process's CPU time by wall time, in its busiest round."""
    client_loop_ratios: tuple[float, ...]
    """The same of the thread with its event loop."""


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile of ascending values, interpolated between neighbours."""
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def distribution(values: Iterable[float]) -> Distribution | None:
    """Sum values up; None where there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p95, p99 = (percentile(ordered, percent) for percent in PERCENTILES)
    return Distribution(mean=statistics.fmean(ordered), p50=p50, p90=p90, p95=p95, p99=p99)


def ttft(record: RequestRecord) -> float:
    """Time to first token: from when the request was due to its first message with tokens."""
    return record.message_seconds[0] - record.due_seconds


def itls(record: RequestRecord) -> list[float]:
    """Inter-token latencies: the gaps between messages with tokens, however many each has."""
    return [later - earlier for earlier, later in pairwise(record.message_seconds)]


def tpot(record: RequestRecord) -> float | None:
    """Time per output token after the first; None for a single token."""
    num_later = record.num_output_tokens - 1
    if num_later < 1:
        return None
    return (record.message_seconds[-1] - record.message_seconds[0]) / num_later


def e2el(record: RequestRecord) -> float:
    """End-to-end latency: from when the request was due to its status."""
    return record.ended_seconds - record.due_seconds


def summarize(rounds: Sequence[RoundRecord]) -> Summary:
    """Sum up the rounds of one case under one load.

    Only requests that did not fail count for rates and latencies.
    """
    records = [record for round_ in rounds for record in round_.requests]
    good = [record for record in records if not record.error]
    tpots = (tpot(record) for record in good)
    round_seconds = tuple(max(record.ended_seconds for record in round_.requests) for round_ in rounds)
    seconds = statistics.median(round_seconds)
    num_rounds = len(rounds)
    num_output_tokens = sum(record.num_output_tokens for record in good) // num_rounds
    return Summary(
        num_requests=len(records) // num_rounds,
        num_failed=len(records) - len(good),
        errors=dict(Counter(record.error for record in records if record.error)),
        error_examples={record.error: record.error_message for record in records if record.error},
        round_seconds=round_seconds,
        seconds=seconds,
        output_tokens_per_second=num_output_tokens / seconds,
        requests_per_second=len(good) / num_rounds / seconds,
        num_prompt_tokens=sum(record.num_prompt_tokens for record in good) // num_rounds,
        num_cached_tokens=sum(record.num_cached_tokens for record in good) // num_rounds,
        num_output_tokens=num_output_tokens,
        ms_per_step=1e3 * seconds / max(record.num_expected_tokens for record in records),
        ttft_seconds=distribution(map(ttft, good)),
        itl_seconds=distribution(gap for record in good for gap in itls(record)),
        tpot_seconds=distribution(value for value in tpots if value is not None),
        e2el_seconds=distribution(map(e2el, good)),
        late_seconds=distribution(record.sent_seconds - record.due_seconds for record in records),
        client_cpu_ratios=_busiest(rounds, "cpu_seconds"),
        client_loop_ratios=_busiest(rounds, "loop_cpu_seconds"),
    )


def _busiest(rounds: Sequence[RoundRecord], name: str) -> tuple[float, ...]:
    ratios = [[getattr(client, name) / client.wall_seconds for client in round_.clients] for round_ in rounds]
    return tuple(map(max, zip(*ratios, strict=True)))
