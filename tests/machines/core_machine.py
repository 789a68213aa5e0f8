"""The Hypothesis state machine over the whole core: anything may happen in any order.

Draws what happens; core_driver.py carries it out and asserts. Knows nothing about how the core decides.
The faulty cores of test_planted_faults.py run under this same machine.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreLimits, FinishReason, Request, SamplingParams
from scheduler_svc.errors import DuplicateRequestError, InvalidRequestError, QueueFullError
from tests.machines.core_driver import CoreDriver, make_checked_scheduler
from tests.machines.naive_worker import STOP_IDS, VOCABULARY

FIRST_HISTORY = [1, 65_537, 2, 0, 0, 1, 65_537, 0, 2, 2, 7, 0]
"""What prompts share before any request has run."""
OUTSIDE_REASONS = (
    FinishReason.STOP_STRING,
    FinishReason.ABORT,
    FinishReason.DISCONNECT,
    FinishReason.DEADLINE,
    FinishReason.SLOW_CONSUMER,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A request as drawn, before it is cut to what fits."""

    history: int
    num_shared: int
    tail: list[int]
    max_tokens: int | None
    sampling: SamplingParams
    cache_salt: str | None
    """None: the same as that of the request it goes on from."""
    runs_ahead: bool


WISHES = st.builds(
    Wish,
    history=st.integers(0, 5),
    num_shared=st.sampled_from([40, 0, 4, 7, 8, 12]),
    tail=st.lists(st.sampled_from(VOCABULARY), max_size=5),
    max_tokens=st.sampled_from([None, 9, 12, 1, 2, 5, 16]),
    sampling=st.builds(
        SamplingParams,
        seed=st.integers(0, 3),
        stop_token_ids=st.sampled_from([(), (), STOP_IDS[:1], STOP_IDS]),
        min_tokens=st.sampled_from([0, 0, 3]),
    ),
    cache_salt=st.sampled_from([None, None, None, "", "a"]),
    runs_ahead=st.sampled_from([True, True, True, False]),
)
WISH_LISTS = st.lists(WISHES, min_size=1, max_size=4)


@st.composite
def core_limits(draw: st.DrawFn) -> CoreLimits:
    """Draw limits so small that blocks, lanes and tokens run out all the time."""
    max_num_seqs = draw(st.sampled_from([4, 3, 2, 6, 1]))
    return CoreLimits(
        block_size=draw(st.sampled_from([2, 3, 1, 4])),
        num_blocks=draw(st.integers(3, 12)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 8)),
        max_model_len=draw(st.sampled_from([24, 16, 9, 40])),
        max_num_waiting=8,
    )


class CoreMachine(RuleBasedStateMachine):
    """Adds, finishes, schedules ahead, folds late, loses epochs; at the end all must come to rest."""

    def make_scheduler(self, limits: CoreLimits) -> Scheduler:
        """Make the core under test; faulty machines override this."""
        return make_checked_scheduler(limits)

    @initialize(
        limits=core_limits(),
        depth=st.sampled_from([2, 3, 4, 1]),
        num_steps=st.sampled_from([1, 3, 8, 2]),
        wishes=WISH_LISTS,
    )
    def start(self, limits: CoreLimits, depth: int, num_steps: int, wishes: list[Wish]) -> None:
        """Begin an epoch."""
        self.driver = CoreDriver(limits, self.make_scheduler)
        self.depth = depth
        self.num_steps = num_steps
        self.add(wishes)

    @rule(delay=st.sampled_from([0, 1, 2, 5, 20]), is_end_apart=st.booleans())
    def change_worker(self, delay: int, is_end_apart: bool) -> None:
        """Let the worker hear sooner or later of what takes over, and tell the end of leases otherwise."""
        self.driver.take_over_delay = delay
        self.driver.is_end_apart = is_end_apart

    @rule(wishes=WISH_LISTS)
    def add(self, wishes: list[Wish]) -> None:
        """Add requests that fit, cutting what does not; one that finds the queue full is refused."""
        for wish in wishes:
            if self.driver.core.state().num_waiting < self.driver.limits.max_num_waiting:
                self._add(wish)
            else:
                with pytest.raises(QueueFullError, match="8 requests wait"):
                    self._add(wish)

    def _add(self, wish: Wish) -> None:
        limits = self.driver.limits
        most = min(limits.max_model_len, limits.num_blocks * limits.block_size)
        history, salt = self._history(wish.history)
        prompt = ([*history[: wish.num_shared], *wish.tail] or [1])[: most - 1]
        self.driver.add(
            prompt,
            max_tokens=None if wish.max_tokens is None else min(wish.max_tokens, most - len(prompt)),
            sampling=wish.sampling,
            cache_salt=salt if wish.cache_salt is None else wish.cache_salt,
            runs_ahead=wish.runs_ahead,
        )

    def _history(self, index: int) -> tuple[list[int], str]:
        """Give all that an earlier request gets, to go on from as a chat does, or what all may share."""
        handle = len(self.driver.requests) - index
        if index == 0 or handle < 1:
            return FIRST_HISTORY, ""
        tracked = self.driver.requests[handle]
        prompt = tracked.request.prompt_token_ids.tolist()
        return [*prompt, *tracked.expected_output()], tracked.request.cache_salt

    @precondition(lambda self: self.driver.requests)
    @rule(
        group=st.sampled_from(["in flight", "live", "all"]),
        index=st.integers(0, 20),
        reason=st.sampled_from(OUTSIDE_REASONS),
        num_dropped=st.integers(0, 2),
    )
    def finish(self, group: str, index: int, reason: FinishReason, num_dropped: int) -> None:
        """Finish a request wherever it stands, ended ones too."""
        handles = list(self.driver.requests)
        if group != "all":
            handles = self.driver.live_handles or handles
        if group == "in flight":
            handles = sorted(self.driver.handles_in_flight() & set(handles)) or handles
        handle = handles[index % len(handles)]
        num_output_tokens = len(self.driver.requests[handle].output)
        is_stop_string = reason is FinishReason.STOP_STRING
        self.driver.finish(
            handle, reason, max(0, num_output_tokens - num_dropped) if is_stop_string else None
        )

    @precondition(lambda self: self.driver.live_handles)
    @rule(index=st.integers(0, 20), excess=st.integers(1, 3))
    def misuse(self, index: int, excess: int) -> None:
        """Use a live id again, ask for what can never fit, end what was never added: all change nothing."""
        handles = self.driver.live_handles
        live_id = self.driver.requests[handles[index % len(handles)]].request.request_id
        with pytest.raises(DuplicateRequestError, match=live_id):
            self.driver.core.add(self._request(live_id, max_tokens=1))
        if self.driver.core.state().num_waiting < self.driver.limits.max_num_waiting:
            large = self._request("large", max_tokens=self.driver.limits.max_model_len - 1 + excess)
            with pytest.raises(InvalidRequestError, match=f"must fit {self.driver.limits.max_model_len} "):
                self.driver.core.add(large)
        assert self.driver.core.finish("r", FinishReason.ABORT) is None
        self.driver.check()

    def _request(self, request_id: str, *, max_tokens: int) -> Request:
        return Request(
            request_id=request_id,
            prompt_token_ids=np.array([1], np.int32),
            sampling=SamplingParams(),
            max_tokens=max_tokens,
        )

    @precondition(lambda self: self.driver.may_schedule(self.depth))
    @rule(num_steps=st.none() | st.integers(1, 8))
    def schedule(self, num_steps: int | None) -> None:
        """Plan one step or lease ahead."""
        self.driver.schedule(num_steps or self.num_steps)

    @rule()
    def settle(self) -> None:
        """Do what planning put off, as an engine does that has no credit left."""
        self.driver.core.settle()
        self.driver.check()

    @precondition(lambda self: self.driver.in_flight)
    @rule(num_steps=st.integers(1, 4))
    def update(self, num_steps: int) -> None:
        """Fold the oldest results in, late as they are."""
        for _ in range(num_steps):
            if self.driver.in_flight:
                self.driver.update()

    @rule(num_steps=st.integers(1, 16))
    def run(self, num_steps: int) -> None:
        """Go on for a while as an engine does: as far ahead as may be."""
        for _ in range(num_steps):
            self.driver.fill(self.depth, self.num_steps)
            if self.driver.in_flight:
                self.driver.update()

    @rule(limits=st.none() | core_limits(), is_move=st.booleans())
    def reset(self, limits: CoreLimits | None, is_move: bool) -> None:
        """Lose the worker; another one comes or another core takes over: the same, smaller or larger."""
        self.driver.reset(limits or self.driver.limits, is_move=is_move)

    def teardown(self) -> None:
        """Come to rest with nothing held."""
        if hasattr(self, "driver") and not self.driver.has_failed:
            self.driver.drain(self.depth, self.num_steps)
