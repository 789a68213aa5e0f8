"""Two real workers, one of which is stopped or killed mid-stream: every client gets the same tokens."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from stepwire_client import GenerationStream, StepwireClient

from tests.e2e.conftest import WORKER_FLAGS, wait_until_idle
from tools.services import Service, running

NUM_REQUESTS = 8
PATIENCE = ("--silence-limit-seconds", "2")


@contextmanager
def two_groups(model_folder: Path) -> Iterator[tuple[list[Service], StepwireClient]]:
    """Run two workers and their scheduler; yield the workers and a client."""
    common = ("--model", str(model_folder), "--port", "0")
    with ExitStack() as stack:
        workers = [stack.enter_context(running("worker_svc", *common, *WORKER_FLAGS)) for _ in range(2)]
        addresses = [flag for worker in workers for flag in ("--worker", worker.address())]
        scheduler = stack.enter_context(
            running("scheduler_svc", *common, *addresses, *PATIENCE, "--check-invariants")
        )
        client = stack.enter_context(StepwireClient(scheduler.address()))
        for worker in workers:
            scheduler.wait_for(f"worker {worker.address()} serves")
        yield workers, client


def start_streams(client: StepwireClient) -> list[GenerationStream]:
    """Start seeded and greedy requests, and read the first output of each."""
    prompts = [np.random.default_rng(i).integers(3, 320, 9 + i).tolist() for i in range(NUM_REQUESTS)]
    streams = [
        client.generate(prompt, seed=i, temperature=float(i % 2), max_tokens=100, ignore_eos=True)
        for i, prompt in enumerate(prompts)
    ]
    for stream in streams:
        next(stream)
    return streams


def tokens_of(streams: list[GenerationStream]) -> list[list[int]]:
    """Read all streams to their ends."""
    return [list(stream.completion().token_ids) for stream in streams]


def all_serve(client: StepwireClient, limit_seconds: float = 30.0) -> bool:
    """Wait until every group serves."""
    deadline = time.monotonic() + limit_seconds
    while not all(worker.is_serving for worker in client.server_state().workers):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_group_that_stops_or_dies_mid_stream_changes_no_token(model_folder: Path) -> None:
    with two_groups(model_folder) as (workers, client):
        expected = tokens_of(start_streams(client))
        for num_lost, how in enumerate((signal.SIGSTOP, signal.SIGKILL), start=1):
            assert all_serve(client)
            streams = start_streams(client)
            assert all(worker.num_running for worker in client.server_state().workers), "both have requests"
            workers[1].process.send_signal(how)
            try:
                assert tokens_of(streams) == expected
            finally:
                workers[1].process.send_signal(signal.SIGCONT)
            state = client.server_state()
            assert [worker.num_epochs_lost for worker in state.workers] == [0, num_lost]
        assert [worker.is_serving for worker in state.workers] == [True, False]
        wait_until_idle(client)
