"""What the core writes down of its prefix cache, by hand (blocks of 4), and held to its index."""

import random

import numpy as np
import pytest

from scheduler_svc.core.block_hash import block_hash, root_hash
from scheduler_svc.core.cache_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
    runs,
)
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import BlockHash, FinishReason
from tests.unit.core_steps import LIMITS, fold, make_core, make_request, plan_next

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def chain(token_ids: list[int], cache_salt: str = "") -> tuple[BlockHash, ...]:
    """Hash the full blocks of a request."""
    hashes, parent = [], root_hash(cache_salt)
    for start in range(0, len(token_ids) - 3, 4):
        parent = block_hash(parent, np.array(token_ids[start : start + 4], "<i4").tobytes())
        hashes.append(parent)
    return tuple(hashes)


def stored(events: tuple[CacheEvent, ...]) -> list[tuple[BlockHash | None, tuple[BlockHash, ...], list[int]]]:
    return [
        (event.parent_hash, event.block_hashes, event.token_ids.tolist())
        for event in events
        if isinstance(event, BlocksStored)
    ]


def keeping_core(**changes: int) -> Scheduler:
    core = make_core(**changes)
    core.keep_cache_events(is_kept=True)
    return core


def run(core: Scheduler, request_id: str, token_ids: list[int], *outputs: int, cache_salt: str = "") -> None:
    """Run a request to its end."""
    core.add(make_request(request_id, token_ids, max_tokens=len(outputs), cache_salt=cache_salt))
    for token_id in outputs:
        fold(core, plan_next(core), token_id)
    fold(core, plan_next(core))


def test_nothing_is_written_down_until_somebody_asks() -> None:
    core = make_core()
    run(core, "a", PROMPT, 9)
    assert core.take_cache_events() == ()
    core.keep_cache_events(is_kept=True)
    run(core, "b", [9, *PROMPT], 9)
    core.keep_cache_events(is_kept=False)
    assert core.take_cache_events() == ()


def test_prompt_blocks_are_told_with_their_tokens_when_they_are_planned() -> None:
    core = keeping_core()
    core.add(make_request("a", [*PROMPT, 9], max_tokens=2, cache_salt="s"))
    plan_next(core)
    (event,) = core.take_cache_events()
    assert isinstance(event, BlocksStored)
    assert (event.parent_hash, event.cache_salt) == (None, "s")
    assert event.block_hashes == chain(PROMPT, "s")
    assert event.token_ids.tolist() == PROMPT
    assert core.take_cache_events() == ()


def test_generated_blocks_are_told_with_their_parent_when_the_request_ends() -> None:
    core = keeping_core()
    run(core, "a", PROMPT, 11, 12, 13, 14, 15)
    whole = chain([*PROMPT, 11, 12, 13, 14])
    assert stored(core.take_cache_events()) == [
        (None, whole[:2], PROMPT),
        (whole[1], whole[2:], [11, 12, 13, 14]),
    ]


def test_only_blocks_that_are_new_are_told() -> None:
    core = keeping_core()
    run(core, "a", PROMPT, 9)
    core.take_cache_events()
    run(core, "b", [*PROMPT, 20, 21, 22, 23], 9)
    whole = chain([*PROMPT, 20, 21, 22, 23])
    assert stored(core.take_cache_events()) == [(whole[1], whole[2:], [20, 21, 22, 23])]


def test_an_identical_block_is_told_once() -> None:
    core = keeping_core(max_num_batched_tokens=32)
    for request_id in ("a", "b"):
        core.add(make_request(request_id, [*PROMPT, 9], max_tokens=1))
    plan_next(core)
    assert stored(core.take_cache_events()) == [(None, chain(PROMPT), PROMPT)]


def test_an_evicted_block_is_told() -> None:
    core = keeping_core(num_blocks=4)
    run(core, "a", PROMPT, 9)
    core.take_cache_events()
    run(core, "b", [30, *range(31, 42)], 9)
    first, second = core.take_cache_events()
    # Two blocks were empty; of the cached ones the last of the table goes first.
    assert first == BlocksRemoved(block_hashes=(chain(PROMPT)[1],))
    assert stored((second,)) == [(None, chain([30, *range(31, 42)]), [30, *range(31, 42)])]


@pytest.mark.parametrize("how", ["flush", "lose_worker", "reset"])
def test_a_cache_that_is_gone_is_told(how: str) -> None:
    core = keeping_core()
    run(core, "a", PROMPT, 9)
    core.take_cache_events()
    match how:
        case "flush":
            core.flush_prefix_cache()
        case "lose_worker":
            core.lose_worker()
        case _:
            core.reset(LIMITS)
    assert set(core.take_cache_events()) == {CacheCleared()}
    run(core, "b", PROMPT, 9)
    assert stored(core.take_cache_events()) == [(None, chain(PROMPT), PROMPT)]
    assert core.state().num_cached_tokens_total == 0


def test_a_flush_leaves_no_block_cached_and_steps_go_on() -> None:
    core = make_core()
    core.add(make_request("a", PROMPT, max_tokens=4))
    plan = plan_next(core)
    core.finish("a", FinishReason.ABORT)
    core.flush_prefix_cache()  # with a row in flight, whose block is written before any other use of it
    assert (core.state().num_free_blocks, core.state().num_cached_blocks) == (16, 0)
    fold(core, plan, 9)
    run(core, "b", PROMPT, 9)


def test_the_cache_is_not_flushed_under_a_request() -> None:
    core = make_core()
    core.add(make_request("a", PROMPT, max_tokens=4))
    with pytest.raises(AssertionError, match="when nothing runs"):
        core.flush_prefix_cache()


@pytest.mark.parametrize(
    ("indices", "expected"), [([], []), ([3], [(3, 4)]), ([0, 1, 4, 5, 6, 9], [(0, 2), (4, 7), (9, 10)])]
)
def test_runs(indices: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(runs(indices)) == expected


@pytest.mark.parametrize("seed", range(8))
def test_who_applies_all_events_knows_the_index(seed: int) -> None:
    # Few blocks and few different tokens: much is shared, evicted, preempted and computed again.
    choose, core, known = random.Random(seed), keeping_core(num_blocks=10), dict[BlockHash, list[int]]()
    for number in range(60):
        prompt = [choose.choice((1, 1, 1, 2)) for _ in range(choose.randrange(1, 20))]
        core.add(make_request(str(number), prompt, max_tokens=choose.randrange(1, 12)))
        for _ in range(choose.randrange(6)):
            plan = core.schedule()
            if plan is None:
                break
            num_tokens = int(plan.row_samples.sum())
            token_ids = np.array([choose.choice((1, 2)) for _ in range(num_tokens)], np.int32)
            core.update(StepResult(step_id=plan.step_id, token_ids=token_ids))
        if choose.random() < 0.1:
            core.reset(LIMITS)
        apply(known, core.take_cache_events())
        assert known.keys() == core._state.pool.index().keys()


def apply(known: dict[BlockHash, list[int]], events: tuple[CacheEvent, ...]) -> None:
    for event in events:
        match event:
            case CacheCleared():
                known.clear()
            case BlocksRemoved(block_hashes=block_hashes):
                for one in block_hashes:
                    del known[one]
            case BlocksStored():
                blocks = event.token_ids.reshape(len(event.block_hashes), 4).tolist()
                for one, block in zip(event.block_hashes, blocks, strict=True):
                    assert one not in known, "a block is stored twice"
                    known[one] = block
