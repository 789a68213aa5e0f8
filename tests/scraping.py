"""Scrapes a service and reads what it tells with Prometheus' own parser. Knows nothing about any metric."""

import time
from collections.abc import Callable
from urllib.request import urlopen

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tools.services import Service

LIMIT_SECONDS = 20.0


def metrics_url(service: Service) -> str:
    """Return where a service that was started with --metrics-port says that it is scraped."""
    return service.wait_for(" metrics on ").rsplit(" ", 1)[1].strip()


def scrape_text(url: str) -> str:
    """Scrape."""
    with urlopen(url, timeout=LIMIT_SECONDS) as response:
        text: str = response.read().decode()
    return text


def scrape_families(url: str) -> dict[str, Metric]:
    """Scrape; return each metric by its name without suffix."""
    return {family.name: family for family in text_string_to_metric_families(scrape_text(url))}


def scrape(url: str, name: str, **labels: str) -> float:
    """Scrape; return the sum of all samples of this name whose labels have these values."""
    return sum(
        sample.value
        for family in scrape_families(url).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_for_value(url: str, is_right: Callable[[float], bool], name: str, **labels: str) -> None:
    """Scrape until the sum is right: some numbers are looked up a few times a second."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_right(value := scrape(url, name, **labels)):
        assert time.monotonic() < deadline, f"{name} {labels} is {value}"
        time.sleep(0.05)
