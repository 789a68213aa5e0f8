"""A worker of two ranks under the real scheduler: the ids of one, also when a rank is killed mid-stream."""

import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from stepwire_client import GenerationStream, StepwireClient

from scheduler_svc.core.types import Request, SamplingParams
from tests.core_with_worker import CoreWithWorker, core_limits
from tests.e2e.conftest import WORKER_FLAGS, wait_until_idle
from tools.services import Service, running
from worker_svc.config import WorkerConfig
from worker_svc.runner.load import load_worker

NUM_REQUESTS = 4
NUM_TOKENS = 100
NUM_RANKS = 2


def prompt(index: int) -> list[int]:
    return np.random.default_rng(index).integers(3, 320, 9 + 5 * index).tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def expected(model_folder: Path) -> list[list[int]]:
    """Return what one rank generates, in this process."""
    worker = load_worker(WorkerConfig(model=str(model_folder), num_blocks=64, torch_threads=1))
    requests = [
        Request(
            request_id=str(index),
            prompt_token_ids=np.array(prompt(index), np.int32),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=NUM_TOKENS,
            handle=index,
        )
        for index in range(NUM_REQUESTS)
    ]
    return CoreWithWorker(worker.executor, core_limits(worker.info.limits)).run(requests)


def start_streams(client: StepwireClient) -> list[GenerationStream]:
    """Start greedy requests, and read the first output of each."""
    streams = [
        client.generate(prompt(index), temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        for index in range(NUM_REQUESTS)
    ]
    for stream in streams:
        next(stream)
    return streams


def tokens_of(streams: list[GenerationStream]) -> list[list[int]]:
    """Read all streams to their ends."""
    return [list(stream.completion().token_ids) for stream in streams]


def kill_rank(worker: Service, rank: int, *, attempt: int) -> None:
    """Kill a rank of the group that runs for the so-many-th time."""
    line = worker.wait_for(f"attempt {attempt} rank {rank} pid ")
    (pid,) = re.findall(r"pid (\d+)", line)
    os.kill(int(pid), signal.SIGKILL)


def quiet_port() -> int:
    """Find a port that nobody gets unasked while the group restarts: below those that the system gives."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@pytest.mark.timeout(300)
def test_two_ranks_give_the_ids_of_one_also_when_a_rank_is_killed(
    model_folder: Path, expected: list[list[int]]
) -> None:
    common = ("--model", str(model_folder), "--port")
    launcher = ("tests.rank_launcher", str(NUM_RANKS))
    with (
        running(*launcher, *common, str(quiet_port()), *WORKER_FLAGS) as worker,
        running(
            "scheduler_svc", *common, "0", "--worker", worker.address(), "--check-invariants"
        ) as scheduler,
        StepwireClient(scheduler.address()) as client,
    ):
        assert tokens_of(start_streams(client)) == expected
        for attempt, rank in enumerate((1, 0)):
            streams = start_streams(client)
            kill_rank(worker, rank, attempt=attempt)
            assert tokens_of(streams) == expected
            # Nobody else ended the other rank: it noticed.
            codes = {rank: -signal.SIGKILL.value, 1 - rank: 3}
            worker.wait_for(f"attempt {attempt} ended: {dict(sorted(codes.items()))}")
        (state,) = client.server_state().workers
        assert (state.num_epochs_lost, state.is_serving) == (2, True)
        wait_until_idle(client)
        scheduler.stop()
        assert worker.stop() == 0
    assert "attempt 2 ended: {0: 0, 1: 0}\n" in worker.lines
