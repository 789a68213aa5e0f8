"""A slow, stalled or broken link between scheduler and worker: a pause, and then the same tokens."""

import time

import numpy as np
import pytest
from stepwire_client import GenerationStream, StepwireClient

from tests.e2e.faults.conftest import LinkedServices
from tests.e2e.faults.steered_link import SteeredLink
from tools.link_proxy import Direction, LinkProxy

NUM_REQUESTS = 6
NUM_TOKENS = 100
STALL_SECONDS = 0.5


def start_seeded(client: StepwireClient) -> list[GenerationStream]:
    prompts = [np.random.default_rng(i).integers(3, 320, 9 + i).tolist() for i in range(NUM_REQUESTS)]
    return [client.generate(p, seed=i, max_tokens=NUM_TOKENS, ignore_eos=True) for i, p in enumerate(prompts)]


def tokens_of(streams: list[GenerationStream]) -> list[tuple[int, ...]]:
    return [tuple(stream.completion().token_ids) for stream in streams]


def epoch_of(client: StepwireClient) -> int:
    (worker,) = client.server_state().workers
    return worker.worker_epoch


@pytest.fixture(scope="session")
def expected(linked_services: LinkedServices) -> list[tuple[int, ...]]:
    """Return the tokens that come over a link without faults."""
    with StepwireClient(linked_services.address) as client:
        tokens = tokens_of(start_seeded(client))
    assert {len(of_one) for of_one in tokens} == {NUM_TOKENS}
    return tokens


def test_a_slow_link_changes_no_token(
    linked_client: StepwireClient, link: SteeredLink, expected: list[tuple[int, ...]]
) -> None:
    epoch = epoch_of(linked_client)
    link.steer(LinkProxy.delay, 0.005)
    assert tokens_of(start_seeded(linked_client)) == expected
    assert epoch_of(linked_client) == epoch


@pytest.mark.parametrize("direction", list(Direction))
def test_a_short_stall_is_a_pause(
    linked_client: StepwireClient,
    link: SteeredLink,
    expected: list[tuple[int, ...]],
    direction: Direction,
) -> None:
    epoch = epoch_of(linked_client)
    streams = start_seeded(linked_client)
    for stream in streams:
        next(stream)
    link.steer(LinkProxy.stall, direction)
    start = time.monotonic()
    time.sleep(STALL_SECONDS)  # the fault itself: how long it lasts
    link.steer(LinkProxy.resume)
    assert tokens_of(streams) == expected
    assert time.monotonic() - start >= STALL_SECONDS
    assert epoch_of(linked_client) == epoch


def test_a_cut_link_is_a_pause(
    linked_client: StepwireClient, link: SteeredLink, expected: list[tuple[int, ...]]
) -> None:
    epoch = epoch_of(linked_client)
    streams = start_seeded(linked_client)
    for stream in streams:
        next(stream)
    link.steer(LinkProxy.cut)
    link.steer(LinkProxy.mend)
    assert tokens_of(streams) == expected
    assert epoch_of(linked_client) != epoch


@pytest.mark.parametrize(
    ("direction", "num_bytes"), [(Direction.UP, 1), (Direction.UP, 700), (Direction.DOWN, 333)]
)
def test_a_link_that_breaks_inside_a_message_is_a_pause(
    linked_client: StepwireClient,
    link: SteeredLink,
    expected: list[tuple[int, ...]],
    direction: Direction,
    num_bytes: int,
) -> None:
    epoch = epoch_of(linked_client)
    link.steer(LinkProxy.cut_after, num_bytes, direction)
    streams = start_seeded(linked_client)
    deadline = time.monotonic() + 10.0
    while not link.steer(LinkProxy.is_cut):
        assert time.monotonic() < deadline, "the link was not cut"
        time.sleep(0.002)
    link.steer(LinkProxy.mend)
    assert tokens_of(streams) == expected
    assert epoch_of(linked_client) != epoch
