"""Latency against load as a PNG: one panel a latency, a line for the median and one for the 99th percentile.

Knows nothing about how runs were measured. matplotlib is imported when a chart is asked for.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stepwire_cli.bench.load import Load
from stepwire_cli.bench.report import LATENCIES, Run

PANELS = ("TTFT", "TPOT", "E2EL")
LINES = (("p50", "-"), ("p99", "--"))
MISSING = "--png needs matplotlib: pip install 'stepwire-client[bench]'"


def is_available() -> bool:
    """Tell whether a chart can be drawn here."""
    return find_spec("matplotlib") is not None


def points(runs: Sequence[Run], title: str, *, percentile: str) -> list[tuple[float, float]]:
    """Return (load, milliseconds) of one line, by ascending load; runs without a value are left out."""
    latencies = ((run, getattr(run.summary, LATENCIES[title])) for run in runs)
    return sorted(
        (load_of(run), 1e3 * getattr(latency, percentile))
        for run, latency in latencies
        if latency is not None
    )


def load_of(run: Run) -> float:
    """Return where a run stands on the axis of loads."""
    load = run.load
    if load.rate_per_second is not None:
        return load.rate_per_second
    return load.concurrency or run.summary.num_requests


def axis_title(load: Load) -> str:
    """Name the axis of loads."""
    return "requests per second" if load.rate_per_second is not None else "requests at a time"


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write the chart."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # optional, and slow to load
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(4 * len(PANELS), 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, title in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        _draw_panel(axes, runs, title)
    figure.savefig(path, dpi=150)


def _draw_panel(axes: Any, runs: Sequence[Run], title: str) -> None:
    for index, case in enumerate(dict.fromkeys(run.case for run in runs)):
        of_case = [run for run in runs if run.case == case]
        for percentile, style in LINES:
            line = points(of_case, title, percentile=percentile)
            label = f"{case} {percentile}"
            axes.plot(*zip(*line, strict=True), style, color=f"C{index}", marker="o", label=label)
    axes.set_title(title)
    axes.set_xlabel(axis_title(runs[0].load))
    axes.set_ylabel("ms")
    axes.set_ylim(0, 1.08 * axes.dataLim.y1)
    axes.legend()
