"""What the stack answers over HTTP: OpenAI's API through the gateway, and numbers through Prometheus.

Calls published ports as any program does. Knows nothing about what is behind them.
"""

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.compose_run.engine import ComposeRunError
from tools.gateway import can_answer, open_directly

START_LIMIT_SECONDS = 300.0
POLL_SECONDS = 1.0
JOBS = {"stepwire-scheduler", "stepwire-worker"}


def ask_gateway(port: int, messages: Sequence[Mapping[str, str]], *, max_tokens: int) -> tuple[str, str]:
    """Wait until the gateway can answer, ask it greedily, and return the model's name and the text.

    Raises:
        ComposeRunError: if it cannot in time, or answers with an error.
    """
    gateway = f"http://127.0.0.1:{port}"
    _poll("the gateway cannot answer", lambda: can_answer(gateway, num_models=1))
    url = f"{gateway}/v1"
    model = str(_get(f"{url}/models")["data"][0]["id"])
    body = {"model": model, "messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        answer = _get(request)
    except OSError as error:
        raise ComposeRunError(f"the gateway answered a chat completion with: {error}") from error
    return model, str(answer["choices"][0]["message"]["content"])


def check_prometheus(port: int) -> None:
    """Wait until Prometheus has scraped both services.

    Raises:
        ComposeRunError: if it has not in time.
    """
    _poll("Prometheus does not reach both services", lambda: _jobs_that_are_up(port) >= JOBS)


def _jobs_that_are_up(port: int) -> set[str]:
    answer = _get(f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': 'up == 1'})}")
    return {series["metric"]["job"] for series in answer["data"]["result"]}


def _poll(complaint: str, ask: Callable[[], Any]) -> Any:
    """Ask until the answer is one; a port that nobody listens on yet is none."""
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while True:
        try:
            answer, reason = ask(), "no answer"
        except OSError as error:
            answer, reason = None, str(error)
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise ComposeRunError(f"after {START_LIMIT_SECONDS:.0f} s {complaint}: {reason}")
        time.sleep(POLL_SECONDS)


def _get(request: str | urllib.request.Request) -> Any:
    with open_directly(request) as answer:
        return json.load(answer)
