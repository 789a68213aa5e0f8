"""What must hold of the running stack: how its containers are made, and that a stream outlives a worker.

Talks to the stack as a user does: compose commands and the published port. Knows nothing about engines.
"""

import time
from collections.abc import Callable
from pathlib import Path

from stepwire_client import StepwireClient, StepwireClientError, WorkerState

from tools.compose_run.engine import ComposeRunError, Engine, expect_success
from tools.compose_run.http_checks import ask_gateway

SERVICES = ("scheduler", "worker")
START_LIMIT_SECONDS = 300.0
STREAM_LIMIT_SECONDS = 900.0
POLL_SECONDS = 1.0
MESSAGES = [{"role": "user", "content": "Tell me about the city of Paris."}]
NUM_TOKENS = 100
NUM_TOKENS_BEFORE_KILL = 20
# Process 1 is the init, which a signal from inside cannot end; the service is its child.
KILL_SERVICE = """
import os, signal
from pathlib import Path
victims = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline")
           if b"-m\\0worker_svc\\0" in path.read_bytes()
           and int(path.parent.name) not in (1, os.getpid())]
assert len(victims) == 1, victims
os.kill(victims[0], signal.SIGKILL)
"""
IS_HARDENED = """
import errno, os
from pathlib import Path
assert os.getuid() == 10001, os.getuid()
status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
assert int(status["CapBnd"], 16) == 0, status["CapBnd"]
assert status["NoNewPrivs"] == "1", status["NoNewPrivs"]
try:
    Path("/home/stepwire/file").write_text("")
except OSError as error:
    assert error.errno == errno.EROFS, error
else:
    raise AssertionError("the root file system is writable")
Path("/tmp/file").write_text("")
"""


def check_missing_model(engine: Engine, folder: str) -> None:
    """See the worker refused, with a line that names the folder, where there is no model."""
    result = engine.try_compose(["up", "--detach", "--no-build", "worker"], changes={"MODEL": folder})
    _expect(result.returncode != 0, f"the worker starts without a model:\n{result.stdout}")
    _expect(f"does not exist: {folder}" in result.stdout, f"no clear error about the model:\n{result.stdout}")
    engine.run_compose("down")


def wait_until_ready(engine: Engine) -> None:
    """Wait until the scheduler's own health check says that a worker serves."""
    health = [
        "exec",
        "-T",
        "scheduler",
        "/opt/venv/bin/python",
        "/opt/healthcheck.py",
        "127.0.0.1:50051",
        "ready",
    ]
    _wait_until("the scheduler is ready", lambda: engine.try_compose(health).returncode == 0)


def check_containers(engine: Engine) -> None:
    """See that both services run without rights, on a read-only root, and the scheduler without torch."""
    for service in SERVICES:
        expect_success(engine.try_python(service, IS_HARDENED))
    result = engine.try_python("scheduler", "import torch")
    _expect("No module named 'torch'" in result.stdout, f"the scheduler's image holds torch: {result.stdout}")


def check_resumed_stream(engine: Engine, address: str) -> str:
    """Ask twice, killing the worker in the middle the second time; return the text that came both times."""
    with StepwireClient(address) as client:
        expected, text = _ask(client)
        before = _worker_state(client)
        tokens, _ = _ask(
            client, after_some_tokens=lambda: expect_success(engine.try_python("worker", KILL_SERVICE))
        )
        after = _worker_state(client)
    _expect(tokens == expected, f"the tokens differ: {tokens}, but must be {expected}")
    lost = after.num_epochs_lost - before.num_epochs_lost
    _expect(lost == 1, f"the worker was lost {lost} times, but must be once")
    return text


def check_gateway(port: int, *, model_folder: str, expected_text: str) -> None:
    """See that OpenAI's API gives the text that gRPC gave, under the name of the model's folder."""
    model, text = ask_gateway(port, MESSAGES, max_tokens=NUM_TOKENS)
    _expect(
        model == Path(model_folder).name, f"the model is called {model}, but must be as in {model_folder}"
    )
    _expect(text == expected_text, f"the gateway's text is {text!r}, but must be {expected_text!r}")


def _ask(
    client: StepwireClient, after_some_tokens: Callable[[], object] | None = None
) -> tuple[list[int], str]:
    tokens: list[int] = []
    text = ""
    is_done = after_some_tokens is None
    try:
        with client.generate(
            MESSAGES, temperature=0.0, max_tokens=NUM_TOKENS, timeout_seconds=STREAM_LIMIT_SECONDS
        ) as stream:
            for delta in stream:
                tokens += delta.token_ids
                text += delta.text
                if not is_done and len(tokens) >= NUM_TOKENS_BEFORE_KILL:
                    assert after_some_tokens is not None
                    is_done = True
                    after_some_tokens()
    except StepwireClientError as error:
        raise ComposeRunError(f"the stream broke after {len(tokens)} tokens: {error}") from error
    _expect(len(tokens) > NUM_TOKENS_BEFORE_KILL, f"the answer has {len(tokens)} tokens only: {text!r}")
    return tokens, text


def _worker_state(client: StepwireClient) -> WorkerState:
    (worker,) = client.server_state().workers
    return worker


def _wait_until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise ComposeRunError(f"not within {START_LIMIT_SECONDS:.0f} s: {what}")
        time.sleep(POLL_SECONDS)


def _expect(is_so: bool, complaint: str) -> None:
    if not is_so:
        raise ComposeRunError(complaint)
