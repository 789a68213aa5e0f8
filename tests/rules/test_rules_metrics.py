"""docs/metrics.md tells what the code counts, and the dashboard asks for nothing else.

A failing row is printed as it should stand in the document.
"""

import pytest
import yaml

from scheduler_svc.metrics import engine_metrics, frontend_metrics
from telemetry.metric import Kind, Metric
from tests.dashboard import queries
from tests.rules.source_tree import expect_none, read_file
from worker_svc.meter import WORKER_METRICS

DOCUMENT = "docs/metrics.md"
SECTIONS = {
    "Engine": engine_metrics(("worker",)),
    "Front ends": frontend_metrics(),
    "Worker": WORKER_METRICS,
}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_metric_stands_in_its_table(title: str) -> None:
    section = read_file(DOCUMENT).split(f"\n### {title}\n", 1)[1].split("\n#", 1)[0]
    rows = [_row(metric, is_frontend=title == "Front ends") for metric in SECTIONS[title]]
    expect_none([row for row in rows if row not in section])
    assert section.count("| `stepwire_") == len(rows), "a metric in the table that does not exist"


def test_every_label_value_is_documented() -> None:
    text = read_file(DOCUMENT)
    values = {
        value
        for metrics in (engine_metrics(()), frontend_metrics())
        for metric in metrics
        if metric.labels in (("reason",), ("outcome",))
        for (value,) in metric.series
    }
    expect_none([value for value in sorted(values) if f"`{value}`" not in text])


def test_the_dashboard_asks_for_what_there_is() -> None:
    names = {name for metrics in SECTIONS.values() for metric in metrics for name in _series_names(metric)}
    expect_none([f"{query.panel}: {name}" for query in queries() for name in query.names - names])


def test_the_dashboard_shows_every_metric() -> None:
    asked = {name for query in queries() for name in query.names}
    hidden = [
        metric.name
        for metrics in SECTIONS.values()
        for metric in metrics
        if not asked & set(_series_names(metric))
    ]
    # Each has its place in the tables, and in nobody's way.
    assert hidden == [
        "stepwire_engine_frontends",
        "stepwire_engine_kv_cache_blocks",
        "stepwire_engine_device_idle_ratio",
        "stepwire_worker_lanes_held",
        "stepwire_worker_engine_connected",
        "stepwire_worker_device_busy_seconds_total",
        "stepwire_worker_device_idle_seconds_total",
    ]


def test_prometheus_scrapes_the_services_of_the_compose_file() -> None:
    jobs = yaml.safe_load(read_file("deploy/prometheus/prometheus.yml"))["scrape_configs"]
    targets = [target for job in jobs for config in job["static_configs"] for target in config["targets"]]
    assert targets == ["scheduler:9464", "worker:9465"]
    services = yaml.safe_load(read_file("docker-compose.yml"))["services"]
    assert {target.split(":")[0] for target in targets} <= set(services)


def _series_names(metric: Metric) -> list[str]:
    if metric.kind is Kind.HISTOGRAM:
        return [f"{metric.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
    return [metric.name]


def _row(metric: Metric, *, is_frontend: bool) -> str:
    labels = (*(("frontend",) if is_frontend else ()), *metric.labels)
    told = ", ".join(f"`{label}`" for label in labels)
    return f"| `{metric.name}` | {metric.kind.value} | {told} | {metric.help} |"
