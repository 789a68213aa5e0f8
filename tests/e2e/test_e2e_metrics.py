"""What both services tell of a request that ran, scraped as Prometheus does."""

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

    def counts() -> list[float]:
        return [
            scrape(scheduler, "stepwire_frontend_requests_total", outcome="length"),
            scrape(scheduler, "stepwire_frontend_calls_total", method="Generate", code="OK"),
            scrape(scheduler, "stepwire_frontend_time_to_first_token_seconds_count"),
            scrape(scheduler, "stepwire_frontend_inter_token_latency_seconds_count"),
            scrape(scheduler, "stepwire_engine_requests_ended_total", reason="length"),
        ]

    before = counts()
    num_steps = scrape(scheduler, "stepwire_engine_step_seconds_count")
    num_output = scrape(scheduler, "stepwire_engine_output_tokens_total")
    num_worker_steps = scrape(worker, "stepwire_worker_step_seconds_count")
    list(client.generate([5, 6, 7, 8], max_tokens=NUM_TOKENS, ignore_eos=True))
    # The call ends a moment after its last message.
    wait_for_value(
        scheduler, lambda value: value == before[1] + 1, "stepwire_frontend_calls_total", method="Generate"
    )
    grown = [after - earlier for earlier, after in zip(before, counts(), strict=True)]
    assert grown == [1, 1, 1, NUM_TOKENS - 1, 1]
    assert scrape(scheduler, "stepwire_engine_step_seconds_count") >= num_steps + NUM_TOKENS
    assert scrape(worker, "stepwire_worker_step_seconds_count") >= num_worker_steps + NUM_TOKENS
    expected = num_output + NUM_TOKENS
    wait_for_value(scheduler, lambda value: value == expected, "stepwire_engine_output_tokens_total")
    wait_for_value(scheduler, lambda value: value == 0, "stepwire_engine_requests_running")
    wait_for_value(worker, lambda value: value == 1, "stepwire_worker_engine_connected")
    wait_for_value(worker, lambda value: value > 0, "stepwire_worker_cpu_seconds_total")


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
