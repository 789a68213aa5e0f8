"""Start both services on the CPU and smg in front of them, and stream one chat completion over HTTP.

Knows nothing about how any of them works: it starts them as a person would, and speaks OpenAI's API.
"""

import argparse
import json
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

from tools.demo import QUESTION, DemoError, run_interruptibly, running_services
from tools.fetch_smollm2 import DEFAULT_FOLDER, FetchError, fetch
from tools.gateway import open_directly, running_gateway
from tools.services import ServiceError

MAX_TOKENS = 256


def ask(base_url: str, question: str) -> None:
    """Ask one question as chat, greedily; print curl's call for it, and the answer as it comes."""
    body = {
        "model": _served_model(base_url),
        "messages": [{"role": "user", "content": question}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    url = f"{base_url}/chat/completions"
    print(f"\n$ curl -N {url} -H 'Content-Type: application/json' \\\n    -d {_quoted(json.dumps(body))}")
    print(f"\nquestion: {question}\nanswer:   ", end="", flush=True)
    usage: dict[str, Any] = {}
    for chunk in _stream(url, body):
        for choice in chunk["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
        usage = chunk.get("usage") or usage
    print(f"\n({usage['prompt_tokens']} prompt tokens, {usage['completion_tokens']} generated)\n", flush=True)


def _served_model(base_url: str) -> str:
    with open_directly(f"{base_url}/models") as response:
        return str(json.load(response)["data"][0]["id"])


def _stream(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Post ``body`` and yield the server-sent events of the answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with open_directly(request) as response:
        for line in response:
            event = line.decode().removeprefix("data: ").strip()
            if event and event != "[DONE]":
                yield json.loads(event)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def main() -> int:
    """Run the demo with the model of the command line, or the small one that is fetched."""
    parser = argparse.ArgumentParser(description="Ask one question over OpenAI's HTTP API.")
    parser.add_argument(
        "--model", help="model folder or hub id; default: SmolLM2-135M-Instruct, fetched once"
    )
    parser.add_argument("--question", default=QUESTION, help="what to ask")
    arguments = parser.parse_args()
    try:
        if arguments.model is None:
            fetch(DEFAULT_FOLDER)
        with running_services(arguments.model or str(DEFAULT_FOLDER)) as address:
            print(f"$ smg launch --worker-urls grpc://{address}", flush=True)
            with running_gateway(address) as gateway:
                ask(gateway.api_url, arguments.question)
    except (FetchError, DemoError, ServiceError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_interruptibly(main))
