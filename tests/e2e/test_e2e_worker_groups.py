"""Two real workers, one of which is killed or stopped mid-stream: every client gets the same tokens."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from stepwire_client import GenerationStream, StepwireClient

from tests.e2e.conftest import WORKER_FLAGS, wait_until_idle
from tools.services import Service, running

NUM_REQUESTS = 12
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


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_group_that_is_killed_or_stopped_mid_stream_changes_no_token(
    model_folder: Path, how: signal.Signals
) -> None:
    with two_groups(model_folder) as (workers, client):
        expected = tokens_of(start_streams(client))
        streams = start_streams(client)
        state = client.server_state()
        assert all(worker.num_running > 0 for worker in state.workers), "both groups have requests"
        workers[1].process.send_signal(how)
        try:
            assert tokens_of(streams) == expected
            state = client.server_state()
            assert [worker.is_serving for worker in state.workers] == [True, False]
            assert [worker.num_epochs_lost for worker in state.workers] == [0, 1]
            wait_until_idle(client)
        finally:
            if how == signal.SIGSTOP:
                workers[1].process.send_signal(signal.SIGCONT)
