"""A real Prometheus scrapes both services, and every panel of the dashboard has something to show.

Run by `make test-metrics`; Debian's package `prometheus` has both programs.
"""

import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest
import yaml
from stepwire_client import StepwireClient

from tests.dashboard import Query, queries
from tests.scraping import metrics_url, scrape_text
from tools.services import Services

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "prometheus" / "prometheus.yml"
LIMIT_SECONDS = 60.0
RATE_INTERVAL = "20s"

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True, scope="module")
def programs() -> None:
    """Skip where Prometheus is not installed; `make test-metrics` fails there."""
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        pytest.skip("prometheus and promtool are not installed")


@contextmanager
def prometheus(services: Services, tmp_path: Path) -> Iterator[str]:
    """Run a Prometheus with the project's configuration, aimed at ``services``; yield where it answers."""
    configuration = yaml.safe_load(CONFIGURATION.read_text())
    configuration["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    urls = (metrics_url(services.scheduler), metrics_url(services.worker))
    for job, url in zip(configuration["scrape_configs"], urls, strict=True):
        job["static_configs"] = [{"targets": [urlsplit(url).netloc]}]
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(configuration))
    command = ("prometheus", f"--config.file={path}", f"--storage.tsdb.path={tmp_path / 'data'}")
    log_path = tmp_path / "prometheus.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            (*command, "--web.listen-address=127.0.0.1:0"), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield f"http://{_address(log_path)}"
    finally:
        process.terminate()
        process.wait(LIMIT_SECONDS)


def _address(log_path: Path) -> str:
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        for line in log_path.read_text().splitlines():
            if 'msg="Listening on"' in line:
                return line.rsplit("address=", 1)[1].strip()
        assert time.monotonic() < deadline, log_path.read_text()
        time.sleep(0.05)


def ask(url: str, query: Query) -> list[float]:
    """Return the numbers that Prometheus gives."""
    expression = query.expression.replace("$__rate_interval", RATE_INTERVAL)
    with urlopen(f"{url}/api/v1/query?{urlencode({'query': expression})}", timeout=LIMIT_SECONDS) as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    values = [float(result["value"][1]) for result in answer["data"]["result"]]
    return [value for value in values if not math.isnan(value)]


def test_every_panel_shows_something(services: Services, client: StepwireClient, tmp_path: Path) -> None:
    with prometheus(services, tmp_path) as url:
        deadline = time.monotonic() + LIMIT_SECONDS
        missing = queries()
        while missing:
            for number in range(4):
                list(client.generate([*range(5, 40), number], max_tokens=8, ignore_eos=True))
            missing = [query for query in missing if not query.needs_gpu and not ask(url, query)]
            assert time.monotonic() < deadline, missing


def test_promtool_accepts_what_is_told(services: Services) -> None:
    for service in (services.scheduler, services.worker):
        text = scrape_text(metrics_url(service))
        result = subprocess.run(
            ("promtool", "check", "metrics"),
            input=text,
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_promtool_accepts_the_configuration() -> None:
    subprocess.run(("promtool", "check", "config", str(CONFIGURATION)), check=True, timeout=LIMIT_SECONDS)
