"""Run smg, the Shepherd Model Gateway, in front of running schedulers: OpenAI's HTTP API for them.

Knows nothing about what is asked of it: it starts the gateway, waits until it can answer, and stops it.
"""

import http.client
import json
import random
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tools.services import Service, ServiceError

_LIMIT_SECONDS = 120.0
_POLL_SECONDS = 0.05
_NUM_TRIES = 3
_QUIET = ("--log-level", "warn", "--shutdown-grace-period-secs", "1")
_FIRST_PORT, _LAST_PORT = 20000, 32000
"""Below those that the kernel gives to others, who might take a free one before the gateway does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """Where a running gateway is reached."""

    url: str
    metrics_url: str

    @property
    def api_url(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"


@contextmanager
def running_gateway(*schedulers: str, flags: tuple[str, ...] = ()) -> Iterator[Gateway]:
    """Run a gateway on free ports; yield it once it can answer.

    Args:
        schedulers: HOST:PORT of each scheduler that it is put in front of.
        flags: More flags of ``smg launch``.

    Raises:
        ServiceError: if it does not start.
    """
    with ExitStack() as stack:
        for num_tries_left in reversed(range(_NUM_TRIES)):
            attempt = stack.enter_context(ExitStack())
            port, metrics_port = free_ports()
            arguments = _arguments(schedulers, port=port, metrics_port=metrics_port)
            gateway = Gateway(
                url=f"http://127.0.0.1:{port}", metrics_url=f"http://127.0.0.1:{metrics_port}/metrics"
            )
            try:
                service = attempt.enter_context(launched(*arguments, *flags))
                wait_until_ready(service, gateway.url, num_models=len(schedulers))
                break
            except ServiceError:
                attempt.close()
                if not num_tries_left:
                    raise
        yield gateway


@contextmanager
def launched(*arguments: str) -> Iterator[Service]:
    """Run ``smg launch``; stop it in the end. How it ends is its own affair."""
    service = Service.start("smg", "launch", *arguments)
    try:
        yield service
    finally:
        try:
            if service.process.poll() is None:
                service.stop()
        except KeyboardInterrupt:  # nobody wants to wait for it
            service.kill()
            raise


def _arguments(schedulers: tuple[str, ...], *, port: int, metrics_port: int) -> list[str]:
    workers = [f"grpc://{address}" for address in schedulers]
    ports = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
    return ["--worker-urls", *workers, *ports, *_QUIET]


def wait_until_ready(service: Service, url: str, *, num_models: int) -> None:
    """Wait until the gateway at ``url`` can answer for as many models.

    Raises:
        ServiceError: if it ends first, or takes too long.
    """
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not can_answer(url, num_models=num_models):
        if service.process.poll() is not None or time.monotonic() > deadline:
            raise ServiceError(f"the gateway did not start, and printed:\n{''.join(service.lines)}")
        time.sleep(_POLL_SECONDS)


def can_answer(url: str, *, num_models: int) -> bool:
    """Tell whether it is ready, as many models are routed to, and their tokenizers were fetched.

    It lists a model about a second before it has the tokenizer, and answers 503 meanwhile.
    """
    try:
        _get(f"{url}/readiness")
        models, tokenizers = _get(f"{url}/v1/models")["data"], _get(f"{url}/v1/tokenizers")["tokenizers"]
    except (OSError, http.client.HTTPException):  # it does not listen yet, or only just
        return False
    return len(models) >= num_models and len(tokenizers) >= num_models


def _get(url: str) -> dict[str, list[object]]:
    with open_directly(url) as response:
        answer: dict[str, list[object]] = json.load(response)
    return answer


def open_directly(request: str | urllib.request.Request) -> Any:
    """Open an address of this machine, whatever proxies its environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=_LIMIT_SECONDS)


def free_ports() -> tuple[int, int]:
    """Return two ports that nobody listens on."""
    found: list[int] = []
    while len(found) < 2:
        port = random.randrange(_FIRST_PORT, _LAST_PORT)
        with socket.socket() as listener:
            if port not in found and _can_bind(listener, port):
                found.append(port)
    return found[0], found[1]


def _can_bind(listener: socket.socket, port: int) -> bool:
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
