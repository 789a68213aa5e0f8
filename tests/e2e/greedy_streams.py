"""Greedy requests of a tiny model, and the ids that one rank gives them.

Holds no tests: those of worker groups with several ranks share it.
"""

import contextlib
import os
import socket
from pathlib import Path

import numpy as np
from stepwire_client import GenerationStream, StepwireClient

from scheduler_svc.core.types import Request, SamplingParams
from tests.core_with_worker import CoreWithWorker, core_limits
from worker_svc.config import WorkerConfig
from worker_svc.runner.load import load_worker

NUM_REQUESTS = 4
NUM_TOKENS = 60


def prompt(index: int) -> list[int]:
    return np.random.default_rng(index).integers(3, 320, 9 + 5 * index).tolist()  # type: ignore[no-any-return]


def ids_of_one_rank(model_folder: Path) -> list[list[int]]:
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


def quiet_port(offset: int = 0) -> int:
    """Find a port that nobody gets unasked while a group restarts: below those that the system gives."""
    for port in range(20_000 + offset + os.getpid() % 10_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
