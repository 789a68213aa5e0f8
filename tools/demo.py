"""Start both services on the CPU, ask one question through the Python client, show the answer, stop.

Knows nothing about how the services work: it runs the `stepwire` command as a person would, reads
the line that says where it listens, and stops it with Ctrl-C's signal. Ctrl-C ends all, without a traceback.
"""

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Thread

from stepwire_client import StepwireClient, StepwireClientError

from tools.fetch_smollm2 import DEFAULT_FOLDER, FetchError, fetch

QUESTION = "What is the capital of France?"
MAX_TOKENS = 256
STOP_LIMIT_SECONDS = 60
EXIT_INTERRUPTED = 130
"""As shells tell a program that Ctrl-C ended."""
LISTENING = re.compile(r"^Stepwire serves .* on (\S+)$")


class DemoError(Exception):
    """The demo cannot go on: the message says why."""


@contextmanager
def running_services(model: str) -> Iterator[str]:
    """Run `stepwire serve` for ``model`` on a free port; yield its address once it listens.

    Raises:
        DemoError: if the services end before they listen, do not end when told to, or end badly.
        KeyboardInterrupt: if Ctrl-C cuts their stop short.
    """
    # Warnings only: the log of each call would stand in the middle of the answer.
    arguments = ["serve", "--device", "cpu", "--model", model, "--port", "0", "--log-level", "warning"]
    print(f"$ stepwire {' '.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "stepwire_cli", *arguments]
    # A session of their own: the terminal's Ctrl-C would reach them as well, and ours be their second.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        addresses: Queue[str | None] = Queue()
        reader = Thread(target=_show_lines, args=(server, addresses), daemon=True)
        reader.start()
        try:
            address = addresses.get()
            if address is None:
                raise DemoError("the services ended before they listened")
            yield address
        finally:
            _stop(server)
            reader.join()
        if server.returncode == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if server.returncode != 0:
            raise DemoError(f"the services ended with exit status {server.returncode}")


def _show_lines(server: "subprocess.Popen[str]", addresses: "Queue[str | None]") -> None:
    """Print what the services print, and pass on where they listen; None when they end."""
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if match := LISTENING.match(line.strip()):
            addresses.put(match[1])
    addresses.put(None)


def _stop(server: "subprocess.Popen[str]") -> None:
    """Send Ctrl-C's signal and wait; a Ctrl-C meanwhile is passed on; kill what does not end."""
    signal.signal(signal.SIGINT, lambda *_: server.send_signal(signal.SIGINT))
    server.send_signal(signal.SIGINT)
    try:
        server.wait(STOP_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        raise DemoError(f"the services did not end within {STOP_LIMIT_SECONDS} s") from None
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ask(address: str, question: str) -> None:
    """Ask one question as chat, greedily, and print the answer as it comes."""
    messages = [{"role": "user", "content": question}]
    print(f"\nquestion: {question}\nanswer:   ", end="", flush=True)
    with (
        StepwireClient(address) as client,
        client.generate(messages, temperature=0.0, max_tokens=MAX_TOKENS) as stream,
    ):
        for delta in stream:
            print(delta.text, end="", flush=True)
        usage, timings = stream.final.usage, stream.final.timings
    counts = f"{usage.num_prompt_tokens} prompt tokens, {usage.num_output_tokens} generated"
    times = f"first after {_told(timings.first_token_seconds)}, all after {_told(timings.total_seconds)}"
    print(f"\n({counts}; {times})\n", flush=True)


def _told(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.2f} s"


def run_interruptibly(run: Callable[[], int]) -> int:
    """Return what ``run`` returns; a signal that ends it ends what it started too, and is its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        return run()
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the terminal shows ^C in the line
        return EXIT_INTERRUPTED


def main() -> int:
    """Run the demo with the model of the command line, or the small one that is fetched."""
    parser = argparse.ArgumentParser(description="Ask one question through both services.")
    parser.add_argument(
        "--model", help="model folder or hub id; default: SmolLM2-135M-Instruct, fetched once"
    )
    parser.add_argument("--question", default=QUESTION, help="what to ask")
    arguments = parser.parse_args()
    try:
        if arguments.model is None:
            fetch(DEFAULT_FOLDER)
        with running_services(arguments.model or str(DEFAULT_FOLDER)) as address:
            ask(address, arguments.question)
    except (FetchError, DemoError, StepwireClientError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_interruptibly(main))
