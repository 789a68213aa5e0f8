"""Ask the gateway for a chat completion, as any program that speaks OpenAI's HTTP API does.

Knows nothing about what is behind the gateway.
"""

import json
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from tools.compose_run.engine import ComposeRunError

START_LIMIT_SECONDS = 300.0
POLL_SECONDS = 1.0
CALL_LIMIT_SECONDS = 300.0


def ask_gateway(port: int, messages: Sequence[Mapping[str, str]], *, max_tokens: int) -> tuple[str, str]:
    """Wait until the gateway routes to a model, ask it greedily, and return the model's name and the text.

    Raises:
        ComposeRunError: if it knows no model in time, or answers with an error.
    """
    base_url = f"http://127.0.0.1:{port}/v1"
    model = _wait_for_model(base_url)
    body = {"model": model, "messages": list(messages), "max_tokens": max_tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        answer = _call(request)
    except OSError as error:
        raise ComposeRunError(f"the gateway answered a chat completion with: {error}") from error
    return model, str(answer["choices"][0]["message"]["content"])


def _wait_for_model(base_url: str) -> str:
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while True:
        try:
            models = _call(f"{base_url}/models")["data"]
        except OSError as error:  # it does not listen yet, or knows no worker
            models, reason = [], str(error)
        else:
            reason = "it knows none"
        if models:
            return str(models[0]["id"])
        if time.monotonic() > deadline:
            raise ComposeRunError(f"the gateway has no model after {START_LIMIT_SECONDS:.0f} s: {reason}")
        time.sleep(POLL_SECONDS)


def _call(request: str | urllib.request.Request) -> Any:
    # Whatever proxy the environment names is not for this machine's own ports.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=CALL_LIMIT_SECONDS) as answer:
        return json.load(answer)
