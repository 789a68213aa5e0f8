"""What both services tell of a request that ran, scraped as Prometheus does."""

from collections.abc import Callable

from stepwire_client import StepwireClient

from scheduler_svc.metrics import engine_metrics, frontend_metrics
from telemetry.metric import Kind
from tests.dashboard import queries
from tests.scraping import metrics_url, scrape, scrape_families, wait_for_value
from tools.services import Services
from worker_svc.meter import WORKER_METRICS

NUM_TOKENS = 12


def test_a_request_is_told_by_all_that_had_a_part_in_it(services: Services, client: StepwireClient) -> None:
    scheduler, worker = metrics_url(services.scheduler), metrics_url(services.worker)

    # Of each: who tells it, by how much it grows at least, its labels. An earlier test's last call may
    # be counted late, so none grows by an exact number here.
    growing: dict[str, tuple[str, int, dict[str, str]]] = {
        "stepwire_frontend_requests_total": (scheduler, 1, {"outcome": "length"}),
        "stepwire_frontend_calls_total": (scheduler, 1, {"method": "Generate", "code": "OK"}),
        "stepwire_frontend_time_to_first_token_seconds_count": (scheduler, 1, {}),
        "stepwire_frontend_inter_token_latency_seconds_count": (scheduler, NUM_TOKENS - 1, {}),
        "stepwire_frontend_request_output_tokens_sum": (scheduler, NUM_TOKENS, {}),
        "stepwire_engine_requests_ended_total": (scheduler, 1, {"reason": "length"}),
        "stepwire_engine_step_seconds_count": (scheduler, NUM_TOKENS, {}),
        "stepwire_engine_output_tokens_total": (scheduler, NUM_TOKENS, {}),
        "stepwire_engine_prompt_tokens_total": (scheduler, 4, {}),
        "stepwire_worker_step_seconds_count": (worker, NUM_TOKENS, {}),
    }
    before = {name: scrape(url, name, **labels) for name, (url, _, labels) in growing.items()}
    list(client.generate([5, 6, 7, 8], max_tokens=NUM_TOKENS, ignore_eos=True))
    for name, (url, growth, labels) in growing.items():
        wait_for_value(url, at_least(before[name] + growth), name, **labels)
    wait_for_value(scheduler, lambda value: value == 0, "stepwire_engine_requests_running")
    wait_for_value(worker, at_least(1), "stepwire_worker_engine_connected")
    wait_for_value(worker, lambda value: value > 0, "stepwire_worker_cpu_seconds_total")


def at_least(limit: float) -> Callable[[float], bool]:
    return lambda value: value >= limit


def test_every_metric_is_told_with_its_kind_and_help(services: Services) -> None:
    told = scrape_families(metrics_url(services.scheduler)) | scrape_families(metrics_url(services.worker))
    defined = (*engine_metrics(("w",)), *frontend_metrics(), *WORKER_METRICS)
    names = {
        metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name: metric
        for metric in defined
    }
    assert set(told) == set(names)
    for name, family in told.items():
        assert (family.type, family.documentation) == (names[name].kind.value, names[name].help)


def test_every_name_in_the_dashboard_is_told(services: Services) -> None:
    told = {
        sample.name
        for url in (metrics_url(services.scheduler), metrics_url(services.worker))
        for family in scrape_families(url).values()
        for sample in family.samples
    }
    asked = [(query.panel, name) for query in queries() for name in query.names]
    assert len(asked) > 30
    assert [each for each in asked if each[1] not in told] == []
