"""Figures as people and programs read them: tables, a line of warnings, JSON.

Knows nothing about how figures are measured.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from stepwire_cli.bench.load import Load
from stepwire_cli.bench.metrics import PERCENTILES, Distribution, Summary

NEAR_ONE_CORE = 0.85
MAX_PROMPT_DRIFT = 0.1
LATENCIES = {
    "TTFT": "ttft_seconds",
    "ITL": "itl_seconds",
    "TPOT": "tpot_seconds",
    "E2EL": "e2el_seconds",
    "sent late": "late_seconds",
}
"""Rows of the latency table: title, and field of Summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One case under one load."""

    case: str
    load: Load
    num_expected_prompt_tokens: int
    summary: Summary


def headline(run: Run) -> str:
    """Say in one line what was run and how fast."""
    summary, seconds = run.summary, _spread(run.summary.round_seconds)
    step = f", {summary.ms_per_step:.3f} ms/step" if run.load == Load() else ""
    return (
        f"{run.case}, {run.load.label}: {summary.num_requests} requests in {seconds} s, "
        f"{summary.output_tokens_per_second:,.0f} output tokens/s, "
        f"{summary.requests_per_second:,.2f} requests/s{step}"
    )


def latency_table(run: Run) -> Table:
    """Draw the latencies in milliseconds."""
    table = Table("ms", "mean", *(f"p{percent}" for percent in PERCENTILES), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for title, name in LATENCIES.items():
        values: Distribution | None = getattr(run.summary, name)
        if values is not None:
            table.add_row(title, *(f"{1e3 * value:,.2f}" for value in dataclasses.astuple(values)))
    return table


def token_line(run: Run) -> str:
    """Say how many tokens a round had, and what the clients needed for it."""
    summary = run.summary
    loops = ", ".join(f"{ratio:.0%}" for ratio in summary.client_loop_ratios)
    return (
        f"{summary.num_prompt_tokens:,} prompt tokens ({summary.num_cached_tokens:,} from the prefix cache), "
        f"{summary.num_output_tokens:,} output tokens; "
        f"client processes: {sum(summary.client_cpu_ratios):.2f} cores, their event loops {loops} busy"
    )


def warnings(run: Run) -> list[str]:
    """Say what makes the figures doubtful."""
    summary, expected = run.summary, run.num_expected_prompt_tokens
    told = []
    for error, num_failed in summary.errors.items():
        example = summary.error_examples[error]
        told.append(f"{num_failed} requests failed with {error}, for example: {example}")
    if max(summary.client_loop_ratios) > NEAR_ONE_CORE:
        told.append("a client process was near 100 % of a core and may be the bottleneck: more --processes")
    if not summary.num_failed and abs(summary.num_prompt_tokens - expected) > MAX_PROMPT_DRIFT * expected:
        told.append(f"as text the prompts have {summary.num_prompt_tokens:,} tokens, not {expected:,}")
    return told


def print_lines(run: Run) -> list[str | Table]:
    """Return all that is shown of a run, in order."""
    red = [f"[red]{escape(line)}[/red]" for line in warnings(run)]
    return [f"[bold]{escape(headline(run))}[/bold]", latency_table(run), escape(token_line(run)), *red]


def as_json(runs: Sequence[Run], settings: dict[str, object]) -> dict[str, object]:
    """Return what is written to a file: settings, and each run with all of its figures."""
    return {"settings": settings, "runs": [dataclasses.asdict(run) for run in runs]}


def _spread(seconds: Sequence[float]) -> str:
    low, high = min(seconds), max(seconds)
    return f"{low:.3f}" if len(seconds) == 1 else f"{low:.3f} to {high:.3f}"
