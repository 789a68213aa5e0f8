"""Drives a scheduler core and a naive worker together, and asserts what the contract promises.

Keeps its own books from plans and outputs alone: which blocks each request was given, which rows are in
flight, which tokens came. Knows nothing about how the core decides; every request's output is compared
to that of the same request run alone.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from scheduler_svc.core.plan import Admission, FinishedRequest, StepOutputs, StepPlan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreLimits, FinishReason, Request, SamplingParams
from tests.machines.books import InFlight, Tracked, copy_plan
from tests.machines.naive_worker import NaiveWorker
from tests.machines.plan_run import PlanRun

MakeScheduler = Callable[[CoreLimits], Scheduler]


def make_checked_scheduler(limits: CoreLimits) -> Scheduler:
    """Make the core as it is, checking itself after every call."""
    return Scheduler(limits, is_checked=True)


class CoreDriver:
    """A core, a worker, and the books between them."""

    def __init__(self, limits: CoreLimits, make_scheduler: MakeScheduler = make_checked_scheduler) -> None:
        self.limits = limits
        self._make_scheduler = make_scheduler
        self.core = make_scheduler(limits)
        self.requests: dict[int, Tracked] = {}
        self.in_flight: deque[InFlight] = deque()
        self.worker = NaiveWorker(limits, self._salt_of)
        self.num_preemptions = 0
        self.num_leases_ended_early = 0
        self.take_over_delay = 0
        """Iterations that leases in flight still run before the worker hears of a plan that takes over."""
        self.is_end_apart = False
        """Whether an early end is told in a result of its own."""
        self.has_failed = False
        """Whether a call went wrong, after which nothing more can be told."""

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Carry out one call and compare the books after it."""
        self.has_failed = True
        yield
        self.check()
        self.has_failed = False

    def _salt_of(self, handle: int) -> str:
        return self.requests[handle].request.cache_salt

    @property
    def live_handles(self) -> list[int]:
        """Handles of all requests that have not ended."""
        return [handle for handle, tracked in self.requests.items() if tracked.ended is None]

    def add(
        self,
        prompt_token_ids: list[int],
        *,
        max_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        cache_salt: str = "",
        runs_ahead: bool = True,
    ) -> int:
        """Add a request that fits and return its handle."""
        handle = len(self.requests) + 1
        request = Request(
            request_id=f"r{handle}",
            prompt_token_ids=np.array(prompt_token_ids, np.int32),
            sampling=sampling or SamplingParams(),
            max_tokens=max_tokens,
            cache_salt=cache_salt,
            runs_ahead=runs_ahead,
            owner=handle % 3,
            handle=handle,
        )
        self.core.add(request)
        with self._checked():
            self.requests[handle] = Tracked(request=request)
        return handle

    def finish(
        self, handle: int, reason: FinishReason, num_tokens: int | None = None
    ) -> FinishedRequest | None:
        """Finish a request in any state; an ended one must stay as it is."""
        tracked = self.requests[handle]
        was_ended = tracked.ended
        with self._checked():
            finished = self.core.finish(tracked.request.request_id, reason, num_tokens=num_tokens)
            if was_ended:
                assert finished is None, f"request {handle} ended twice"
            else:
                assert finished is not None, f"live request {handle} is unknown"
                assert finished.reason is reason
                assert finished.num_output_tokens == (
                    len(tracked.output) if num_tokens is None else num_tokens
                )
                self._end(finished)
        return finished

    def schedule(self, num_steps: int = 1) -> StepPlan | None:
        """Ask for the next plan and send it."""
        with self._checked():
            is_take_over_due = self.core.is_take_over_due
            plan = self.core.schedule(num_steps=num_steps)
            if plan is not None:
                assert plan.num_steps <= num_steps, "a longer lease than was asked for"
                self._check_take_over(plan, is_due=is_take_over_due)
                self._take_plan(plan)
        return plan

    def _check_take_over(self, plan: StepPlan, *, is_due: bool) -> None:
        """Assert that nothing waits for a lease's end that need not; then end those in flight."""
        is_any_open = any(step.run.is_open for step in self.in_flight)
        has_prefill = plan.num_steps == 1 and bool(
            (plan.row_num_tokens > 1).any() or not plan.row_samples.all()
        )
        if is_due or (is_any_open and (plan.admissions or has_prefill)):
            assert plan.takes_over, "what is urgent waits for a lease"
        if plan.takes_over:
            assert is_any_open, "nothing is there to take over"
            delay = self.take_over_delay
            for step in self.in_flight:
                delay = step.run.take_over(delay)

    def _take_plan(self, plan: StepPlan) -> None:
        lanes = {tracked.lane: handle for handle, tracked in self.requests.items() if tracked.lane >= 0}
        num_preemptions = self.num_preemptions
        for lane in plan.released_lanes.tolist():
            self._release(self.requests[lanes.pop(lane)])
        assert plan.num_steps == 1 or self.num_preemptions == num_preemptions, "a lease preempts"
        for admission in plan.admissions:
            lanes[admission.lane] = admission.handle
            self._admit(admission)
        for lane, block_id in zip(plan.append_lanes.tolist(), plan.append_block_ids.tolist(), strict=True):
            self.requests[lanes[lane]].blocks.append(block_id)
        row_handles = tuple(lanes[lane] for lane in plan.row_lanes.tolist())
        for handle in row_handles:
            self._check_row(handle)
        samples = zip(row_handles, plan.row_samples.tolist(), strict=True)
        step = InFlight(
            run=PlanRun(worker=self.worker, plan=plan),
            copy=copy_plan(plan),
            row_handles=row_handles,
            sampling_handles=tuple(handle for handle, is_sampling in samples if is_sampling),
        )
        self.in_flight.append(step)

    def _release(self, tracked: Tracked) -> None:
        tracked.lane = -1
        if tracked.ended:
            return
        self.num_preemptions += 1
        mine, tracked.blocks = tracked.blocks, []
        assert set(mine) - self.held_blocks(), "a request was preempted that frees no block"

    def _admit(self, admission: Admission) -> None:
        tracked = self.requests[admission.handle]
        request = tracked.request
        assert tracked.ended is None, "an ended request is admitted"
        assert tracked.lane < 0, "a running request is admitted"
        assert admission.handle not in self.handles_in_flight(), "admitted again with a row in flight"
        assert admission.token_ids.tolist() == [*request.prompt_token_ids.tolist(), *tracked.output]
        assert admission.num_prompt_tokens == len(request.prompt_token_ids)
        assert admission.owner == request.owner
        assert admission.sampling is request.sampling
        assert admission.is_first == (tracked.num_admissions == 0)
        tracked.num_admissions += 1
        tracked.lane = admission.lane
        tracked.blocks = admission.block_ids.tolist()

    def handles_in_flight(self) -> set[int]:
        """Handles of all requests with a row in a step that is not folded."""
        return {handle for step in self.in_flight for handle in step.row_handles}

    def _check_row(self, handle: int) -> None:
        tracked = self.requests[handle]
        assert tracked.ended is None, "an ended request gets a row"
        is_allowed = tracked.request.runs_ahead or handle not in self.handles_in_flight()
        assert is_allowed, "a request that does not run ahead has two rows in flight"

    def update(self) -> StepOutputs:
        """Run the oldest step in flight up to its next result, and fold that in."""
        with self._checked():
            step = self.in_flight[0]
            assert copy_plan(step.plan) == step.copy, "a plan changed after it was returned"
            result = step.run.next_result(is_end_apart=self.is_end_apart)
            if result.is_last:
                self.in_flight.popleft()
                self.num_leases_ended_early += step.run.num_told < step.plan.num_steps > 1
            live = ((self.requests[handle], token) for handle, token in step.tokens(result))
            expected = [
                (tracked.request.owner, tracked.request.handle, token)
                for tracked, token in live
                if tracked.ended is None
            ]
            assert all(token >= 0 for _, _, token in expected), "the worker stopped a request that goes on"
            outputs = self.core.update(result)
            found = zip(
                outputs.owners.tolist(), outputs.handles.tolist(), outputs.token_ids.tolist(), strict=True
            )
            assert sorted(found) == sorted(expected), "tokens of live requests, each once"
            self._take_outputs(outputs)
        return outputs

    def _take_outputs(self, outputs: StepOutputs) -> None:
        must_end = set()
        for handle, token in zip(outputs.handles.tolist(), outputs.token_ids.tolist(), strict=True):
            tracked = self.requests[handle]
            tracked.output.append(token)
            expected = tracked.expected_output()
            assert tracked.output == expected[: len(tracked.output)], "not what it gets alone"
            if len(tracked.output) == len(expected):
                must_end.add(handle)
        assert {finished.handle for finished in outputs.finished} == must_end, "who ends with this step"
        for finished in outputs.finished:
            self.requests[finished.handle].check_natural_end(finished)
            self._end(finished)

    def _end(self, finished: FinishedRequest) -> None:
        tracked = self.requests[finished.handle]
        assert tracked.ended is None, f"request {finished.handle} ended twice"
        assert finished.request_id == tracked.request.request_id
        assert finished.owner == tracked.request.owner
        tracked.check_hashes()
        tracked.ended = finished
        tracked.blocks = []

    def reset(self, limits: CoreLimits, *, is_move: bool = False) -> tuple[FinishedRequest, ...]:
        """End the worker epoch: steps in flight are lost, a new worker comes, or another core takes over."""
        self.limits = limits
        self.in_flight.clear()
        self.worker = NaiveWorker(limits, self._salt_of)
        for tracked in self.requests.values():
            tracked.lane, tracked.blocks = -1, []
        with self._checked():
            ended = self._move(limits) if is_move else self.core.reset(limits)
            for finished in ended:
                self.requests[finished.handle].check_end_by_reset(finished, limits)
                self._end(finished)
        return ended

    def _move(self, limits: CoreLimits) -> tuple[FinishedRequest, ...]:
        """Have another core take over all that live."""
        lost = self.core.lose_worker()
        moving, self.core = self.core.give_away(), self._make_scheduler(limits)
        unfit = [self.core.adopt(request) for request in moving]
        return (*lost, *(finished for finished in unfit if finished is not None))

    def held_blocks(self) -> set[int]:
        """Blocks that plans gave to requests that still run."""
        return {block for tracked in self.requests.values() for block in tracked.blocks}

    def check(self) -> None:
        """Compare the core's counts to the driver's books."""
        state = self.core.state()
        num_held = len(self.held_blocks())
        assert state.num_blocks == self.limits.num_blocks
        num_free = state.num_free_blocks + state.num_cached_blocks
        assert num_free + num_held == self.limits.num_blocks, "free + cached + held = pool"
        assert state.num_waiting + state.num_running + state.num_preempted == len(self.live_handles)
        assert state.num_steps_in_flight == self.core.num_steps_in_flight == len(self.in_flight)

    def may_schedule(self, depth: int) -> bool:
        """Tell whether there is a credit: one more than ``depth`` for what is to take over."""
        return len(self.in_flight) < depth or (len(self.in_flight) == depth and self.core.is_take_over_due)

    def fill(self, depth: int, num_steps: int = 1) -> None:
        """Plan as far ahead as may be."""
        while self.may_schedule(depth) and self.schedule(num_steps) is not None:
            pass

    def drain(self, depth: int, num_steps: int = 1) -> None:
        """Run until nothing is left to do, within a bounded number of steps; then nothing is held."""
        remaining = sum(1 + self.requests[handle].request.max_total_tokens for handle in self.live_handles)
        for _ in range(8 * depth * (remaining + 2)):
            is_at_rest, has_work = not self.in_flight, bool(self.live_handles)
            self.fill(depth, num_steps)
            if is_at_rest and has_work:
                assert any(step.row_handles for step in self.in_flight), "nothing runs, nor is due"
            if not self.in_flight:
                break
            self.update()
        assert not self.in_flight, "steps without end"
        assert not self.live_handles, "requests are stuck"
        assert not self.worker.lanes, "the worker holds lanes"
        assert (
            self.core.state().num_free_blocks + self.core.state().num_cached_blocks == self.limits.num_blocks
        )
