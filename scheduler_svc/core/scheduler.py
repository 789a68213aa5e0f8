"""The scheduler core: a few calls that joined make a worker group's decisions.

    add / finish        a request comes, or is ended from outside
    schedule            the next step's plan; may run ahead of results
    settle              what that put off, once the plan was sent
    fault_of            what is wrong with the oldest step's next result, if anything
    update              the oldest step's next result, folded back
    lose_worker / reset a worker epoch ended, or another begins: what the worker held is forgotten
    give_away / adopt   live requests move to the core of another worker group
    keep_cache_events   and take_cache_events: what the prefix cache gained and lost
    flush_prefix_cache  it forgets all

The same state and the same calls give the same answers: no clock, no randomness, no I/O. The shape
is that of raft's Step / Ready / Advance and of vLLM's scheduler output.
"""

from scheduler_svc.core import epochs
from scheduler_svc.core.block_hash import hash_first_blocks
from scheduler_svc.core.cache_events import CacheEvent
from scheduler_svc.core.capacity import max_total_tokens
from scheduler_svc.core.fitting import match_prefix
from scheduler_svc.core.folding import find_fault, fold_result
from scheduler_svc.core.invariants import check_invariants
from scheduler_svc.core.leasing import is_take_over_due
from scheduler_svc.core.plan import CoreState, FinishedRequest, StepOutputs, StepPlan, StepResult
from scheduler_svc.core.planning import plan_step
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.types import CoreLimits, FinishReason, Request, RequestStatus
from scheduler_svc.errors import DuplicateRequestError, InvalidRequestError, QueueFullError


class Scheduler:
    """Decides what one worker group does."""

    def __init__(self, limits: CoreLimits, *, is_checked: bool = False) -> None:
        """Start with an empty pool.

        Args:
            limits: what the worker group can hold.
            is_checked: check every invariant after every call; slow, for tests and debugging.
        """
        self._state = SchedulerState(limits)
        self._is_checked = is_checked

    @property
    def limits(self) -> CoreLimits:
        """What the worker group can hold."""
        return self._state.limits

    @property
    def num_steps_in_flight(self) -> int:
        """Steps planned and not yet folded."""
        return len(self._state.in_flight)

    @property
    def num_requests(self) -> int:
        """Live requests, running or not."""
        return len(self._state.requests)

    @property
    def num_waiting(self) -> int:
        """Requests that never ran."""
        return self._state.queues.num_waiting

    def add(self, request: Request) -> None:
        """Queue a new request.

        Raises:
            DuplicateRequestError: if its id is in use.
            QueueFullError: if too many wait.
            InvalidRequestError: if it could never run: names field, value and limit.
        """
        state = self._state
        if request.request_id in state.requests:
            raise DuplicateRequestError.of("request_id", request.request_id, "not be in use")
        if state.queues.num_waiting >= state.limits.max_num_waiting:
            raise QueueFullError(
                f"{state.queues.num_waiting} requests wait, the most that max_num_waiting allows: try later"
            )
        request.max_total_tokens = max_total_tokens(request, state.limits)
        if request.num_tokens >= request.max_total_tokens:
            raise InvalidRequestError(
                f"{request.num_tokens} tokens of prompt and output are known already, but must be fewer than "
                f"{request.max_total_tokens}, the most that there may be"
            )
        if state.in_flight:
            # Nobody waits for this. An idle worker would, so that its first plan goes without.
            block_size = state.limits.block_size
            hash_first_blocks(request, request.num_tokens // block_size, block_size=block_size)
        state.num_arrivals += 1
        request.arrival = state.num_arrivals
        state.requests[request.request_id] = request
        state.queues.push_waiting(request)
        state.totals.num_prompt_tokens += request.num_prompt_tokens
        self._check()

    def finish(
        self, request_id: str, reason: FinishReason, *, num_tokens: int | None = None
    ) -> FinishedRequest | None:
        """End a request from outside, in whatever state it is.

        Args:
            request_id: its exact id.
            reason: abort, deadline, stop string, disconnect: each its own.
            num_tokens: output tokens that count; default: all that were folded.

        Returns:
            How it ended, or None where the id is unknown or ended already.
        """
        request = self._state.requests.get(request_id)
        if request is None:
            return None
        state = self._state
        state.register_planned()
        if request.status is RequestStatus.RUNNING and state.lanes.num_rows_in_flight[request.lane]:
            # The worker does not know yet: in a lease the row would go on and on.
            state.open_leases.ask_end()
        finished = state.end(request, reason, num_tokens=num_tokens)
        self._check()
        return finished

    def schedule(self, *, num_steps: int = 1) -> StepPlan | None:
        """Plan the next step; None where nothing can run now and there is nothing to release.

        Args:
            num_steps: iterations wanted, should the step have decode rows only and nobody wait for
                a step of another kind; fewer are planned where blocks are short.
        """
        self._state.register_planned()
        plan = plan_step(self._state, num_steps)
        self._check()
        return plan

    def settle(self) -> None:
        """Do what planning put off as the worker may have waited; else the next call does it first."""
        self._state.register_planned()
        self._check()

    @property
    def is_take_over_due(self) -> bool:
        """Whether a lease is in flight that should not be waited for: the next plan takes over.

        A request can be admitted, one with rows in flight was ended or preempted, or one was left
        out of the lease.
        """
        self._state.register_planned()
        return is_take_over_due(self._state)

    def fault_of(self, result: StepResult) -> str:
        """Say what is wrong with the next result, as far as only the core knows; empty: nothing."""
        return find_fault(self._state, result)

    def update(self, result: StepResult) -> StepOutputs:
        """Fold the next result of the oldest step in flight, in which there is no fault."""
        self._state.register_planned()
        outputs = fold_result(self._state, result)
        self._check()
        return outputs

    def lose_worker(self, *, is_orderly: bool = False) -> tuple[FinishedRequest, ...]:
        """Forget everything that a lost worker held; live requests queue again.

        Those that ran go before those that wait, each in order of arrival, and continue from their
        prompt and all folded tokens.

        Args:
            is_orderly: The worker left by itself, so that nothing it ran is to blame.

        Returns:
            The requests that end, because they were running when too many workers were lost.
        """
        finished = epochs.end_epoch(self._state, is_orderly=is_orderly)
        self._check()
        return tuple(finished)

    def reset(self, limits: CoreLimits) -> tuple[FinishedRequest, ...]:
        """Begin a worker epoch, after ``lose_worker`` if that was not called.

        Returns:
            The requests that cannot go on: they do not fit the new limits, or were running when too
            many workers were lost.
        """
        finished = epochs.end_epoch(self._state) + epochs.begin_epoch(self._state, limits)
        self._check()
        return tuple(finished)

    def give_away(self) -> tuple[Request, ...]:
        """Let go of all live requests after ``lose_worker``, for other cores to ``adopt`` in this order."""
        requests = epochs.give_away(self._state)
        self._check()
        return requests

    def adopt(self, request: Request) -> FinishedRequest | None:
        """Take in a live request of another core; return its end where it does not fit this worker."""
        finished = epochs.adopt(self._state, request)
        self._check()
        return finished

    def num_cached_tokens(self, request: Request) -> int:
        """Count the tokens of a request without a lane that the prefix cache would save it now."""
        self._state.register_planned()
        return len(match_prefix(self._state, request)) * self._state.limits.block_size

    def keep_cache_events(self, *, is_kept: bool) -> None:
        """Begin or cease to write down what the prefix cache gains and loses; at first it is not."""
        self._state.journal.keep(is_kept=is_kept)

    def take_cache_events(self) -> tuple[CacheEvent, ...]:
        """Take what the prefix cache gained and lost since the last call, oldest first."""
        if self._state.journal.is_kept:
            self._state.register_planned()
        return self._state.journal.take()

    def flush_prefix_cache(self) -> None:
        """Forget all cached prefixes. No request may live: its blocks would be found no more."""
        assert not self._state.requests, "the cache is flushed when nothing runs"
        self._state.clear_pool()
        self._check()

    def state(self) -> CoreState:
        """Count what there is."""
        state = self._state
        return CoreState(
            num_waiting=state.queues.num_waiting,
            num_running=state.lanes.num_running,
            num_preempted=state.queues.num_preempted,
            num_blocks=state.pool.num_blocks,
            num_free_blocks=state.pool.num_empty,
            num_cached_blocks=state.pool.num_cached,
            num_steps_in_flight=len(state.in_flight),
            num_prompt_tokens_total=state.totals.num_prompt_tokens,
            num_cached_tokens_total=state.totals.num_cached_tokens,
            num_output_tokens_total=state.totals.num_output_tokens,
            num_finished_total=state.totals.num_finished,
            num_preemptions_total=state.totals.num_preemptions,
        )

    def _check(self) -> None:
        if self._is_checked:
            check_invariants(self._state)
