"""The scheduler's processes are killed mid-stream: clients see a pause, and then what would have come."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from stepwire_client import (
    AsyncGenerationStream,
    AsyncStepwireClient,
    Delta,
    FinalOutput,
    GenerationRequest,
    GenerationStream,
    StepwireClient,
)

from tests.e2e.conftest import WORKER_FLAGS, wait_until_idle
from tests.e2e.scheduler_processes import find_processes
from tools.services import Services, running_services

NUM_REQUESTS = 6
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def own_services(model_folder: Path) -> Iterator[Services]:
    """Run both services, for tests that kill parts of them."""
    flags = ("--check-invariants", "--frontends", "1", "--log-level", "warning")
    with running_services(model_folder, worker_flags=WORKER_FLAGS, scheduler_flags=flags) as services:
        yield services


def kill_child(services: Services, name: str) -> None:
    """Kill the engine, or the front end."""
    parts = find_processes(services.scheduler.process.pid, services.address)
    (pid,) = parts.engines if name == "engine" else parts.frontends
    os.kill(pid, signal.SIGKILL)


def prompt(index: int) -> list[int]:
    return np.random.default_rng(index).integers(3, 320, 9 + index).tolist()  # type: ignore[no-any-return]


def options(index: int) -> dict[str, object]:
    """Sampling of every kind: greedy, seeded, penalized, with stop strings and log-probabilities."""
    return {
        "max_tokens": 240,
        "ignore_eos": True,
        "temperature": 0.0 if index % 3 == 0 else 1.0,
        "seed": index,
        "repetition_penalty": 1.2 if index % 2 else 1.0,
        "stop": ["never to be found", "@@"] if index == 1 else [],
        "logprobs": 1 if index == 2 else None,
    }


def start_all(client: StepwireClient) -> list[GenerationStream]:
    return [client.generate(prompt(i), **options(i)) for i in range(NUM_REQUESTS)]  # type: ignore[arg-type]


def all_of(stream: GenerationStream) -> tuple[object, ...]:
    """Give all that must be the same: text, tokens, logprobs' tokens, how it ended."""
    completion = stream.completion()
    usage = completion.usage
    return (
        completion.text,
        completion.token_ids,
        tuple(position.sampled.token_id for position in completion.logprobs),
        (completion.finish_reason, completion.matched_stop),
        (usage.num_prompt_tokens, usage.num_output_tokens),
    )


def test_streams_go_on_when_the_engine_is_killed(own_services: Services) -> None:
    with StepwireClient(own_services.address) as client:
        expected = [all_of(stream) for stream in start_all(client)]
        streams = start_all(client)
        for stream in streams[:-1]:  # the last one may have told nothing yet
            next(stream)
        kill_child(own_services, "engine")
        assert [all_of(stream) for stream in streams] == expected
        assert sum(stream.num_resumes for stream in streams) >= NUM_REQUESTS, "killed mid-stream"
        wait_until_idle(client)


async def test_streams_go_on_with_asyncio_when_the_front_end_is_killed(own_services: Services) -> None:
    async with AsyncStepwireClient(own_services.address) as client:
        expected = [_joined([delta async for delta in start(client, index)]) for index in range(3)]
        streams = [start(client, index) for index in range(3)]
        firsts = [await anext(stream) for stream in streams]
        bulk = client.generate_many(
            GenerationRequest.of(prompt(index), request_id=str(index), **options(index))  # type: ignore[arg-type]
            for index in range(3)
        )
        events = [await anext(bulk)]
        await asyncio.to_thread(kill_child, own_services, "front end")
        rests = await asyncio.gather(*(_read(stream) for stream in streams))
        assert [_joined([first, *rest]) for first, rest in zip(firsts, rests, strict=True)] == expected
        assert all(stream.num_resumes for stream in streams), "killed mid-stream"
        events += [event async for event in bulk]
        for index in range(3):
            told = [event for request_id, event in events if request_id == str(index)]
            assert _joined([event for event in told if isinstance(event, Delta)]) == expected[index]
            assert isinstance(told[-1], FinalOutput)


def start(client: AsyncStepwireClient, index: int) -> AsyncGenerationStream:
    return client.generate(prompt(index), **options(index))  # type: ignore[arg-type]


async def _read(stream: AsyncGenerationStream) -> list[Delta]:
    return [delta async for delta in stream]


def _joined(deltas: list[Delta]) -> tuple[str, list[int]]:
    text = "".join(delta.text for delta in deltas)
    return text, [token_id for delta in deltas for token_id in delta.token_ids]
