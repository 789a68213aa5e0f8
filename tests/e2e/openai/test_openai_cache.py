"""The gateway and the prefix cache: it applies our events without a gap, and flushes the cache."""

import json
import re
import time
import urllib.request
from typing import Any

import pytest

from tests.e2e.openai.conftest import OpenAiBench
from tools.gateway import open_directly

pytestmark = pytest.mark.long

LIMIT_SECONDS = 20.0
PROMPT = "A block holds the keys and values of sixteen tokens. " * 4


def count(bench: OpenAiBench, metric: str, label: str = "") -> int:
    """Add up a metric of the gateway over all labels that hold ``label``."""
    with open_directly(bench.gateway.metrics_url) as response:
        text: str = response.read().decode()
    rows = re.findall(rf"^{metric}(?:\{{([^}}]*)\}})? (\d+)$", text, re.MULTILINE)
    return sum(int(value) for labels, value in rows if label in labels)


def ask(bench: OpenAiBench) -> Any:
    return bench.client.completions.create(
        model=bench.real_model, prompt=PROMPT, max_tokens=2, extra_body={"ignore_eos": True}
    )


def test_the_gateway_applies_every_event(bench: OpenAiBench) -> None:
    ask(bench)
    deadline = time.monotonic() + LIMIT_SECONDS
    while count(bench, "smg_kv_event_blocks_total", 'op="stored"') == 0:
        assert time.monotonic() < deadline, "no stored block was told"
        time.sleep(0.05)
    assert count(bench, "smg_kv_event_gaps_total") == count(bench, "smg_kv_event_resyncs_total") == 0
    assert count(bench, "smg_kv_event_parentless_stores_total") == 0


def test_the_gateway_flushes_the_cache(bench: OpenAiBench) -> None:
    ask(bench)
    assert ask(bench).usage.prompt_tokens_details.cached_tokens > 0
    request = urllib.request.Request(f"{bench.gateway.url}/flush_cache", method="POST")
    with open_directly(request) as response:
        assert json.load(response)["workers_flushed"] == 2
    assert ask(bench).usage.prompt_tokens_details.cached_tokens == 0
