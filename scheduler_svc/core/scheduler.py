"""The scheduler core: four calls that joined make a server's decisions.

    add / finish        a request comes, or is ended from outside
    schedule            the next step's plan; may run ahead of results
    update              the oldest step's result, folded back
    reset               a worker epoch ended: everything it held is forgotten

The same state and the same calls give the same answers: no clock, no randomness, no I/O. The shape
is that of raft's Step / Ready / Advance and of vLLM's scheduler output.
"""

from scheduler_svc.core.block_hash import hash_known_blocks
from scheduler_svc.core.folding import fold_result
from scheduler_svc.core.invariants import check_invariants
from scheduler_svc.core.plan import CoreState, FinishedRequest, StepOutputs, StepPlan, StepResult
from scheduler_svc.core.planning import plan_step
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.types import CoreLimits, FinishReason, Lane, Request, RequestStatus
from scheduler_svc.errors import DuplicateRequestError, InvalidRequestError, QueueFullError

MAX_EPOCHS_LOST = 3
"""A request that ran when a worker died is tried again this often, so that one that kills workers ends."""


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
        request.max_total_tokens = _max_total_tokens(request, state.limits)
        if request.num_tokens >= request.max_total_tokens:
            raise InvalidRequestError(
                f"{request.num_tokens} tokens of prompt and output are known already, but must be fewer than "
                f"{request.max_total_tokens}, the most that there may be"
            )
        # Here and not when it is admitted: nobody waits for this, and the worker may wait for a plan.
        hash_known_blocks(request, state.limits.block_size)
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
        finished = self._state.end(request, reason, num_tokens=num_tokens)
        self._check()
        return finished

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None where nothing can run now and there is nothing to release."""
        plan = plan_step(self._state)
        self._check()
        return plan

    def update(self, result: StepResult) -> StepOutputs:
        """Fold the result of the oldest step in flight."""
        outputs = fold_result(self._state, result)
        self._check()
        return outputs

    def reset(self, limits: CoreLimits) -> tuple[FinishedRequest, ...]:
        """Forget everything that the worker held and queue live requests again.

        Those that ran go before those that wait, each in order of arrival, and continue from their
        prompt and all folded tokens.

        Returns:
            The requests that cannot go on: they do not fit the new limits, or ran when a worker died
            too often.
        """
        state = self._state
        for lane in state.lanes.admission_order.tolist():
            state.lanes.request(lane).num_epochs_lost += 1
            state.preempt(Lane(lane))
        finished = []
        for request in state.queues.requests():
            request.num_late_rows = 0
            if limits.block_size != state.limits.block_size:
                request.block_hashes.clear()
            finished += _fit_again(state, request, limits)
        state.start_epoch(limits)
        self._check()
        return tuple(finished)

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


def _max_total_tokens(request: Request, limits: CoreLimits) -> int:
    """Give the most tokens of prompt and output together, or refuse what can never fit."""
    num_pool_tokens = limits.num_blocks * limits.block_size
    capacity = min(limits.max_model_len, num_pool_tokens)
    limit = f"{limits.max_model_len} (max_model_len) and {num_pool_tokens} (the KV cache)"
    num_prompt_tokens = request.num_prompt_tokens
    if num_prompt_tokens == 0:
        raise InvalidRequestError("prompt has 0 tokens, but must have at least 1")
    if num_prompt_tokens >= capacity:
        raise InvalidRequestError(
            f"prompt has {num_prompt_tokens} tokens, but must leave room within {limit}"
        )
    if request.max_tokens is None:
        return capacity
    if request.max_tokens < 1:
        raise InvalidRequestError.of("max_tokens", request.max_tokens, "be at least 1")
    if num_prompt_tokens + request.max_tokens > capacity:
        raise InvalidRequestError(
            f"max_tokens is {request.max_tokens}, but with {num_prompt_tokens} prompt tokens must fit {limit}"
        )
    return num_prompt_tokens + request.max_tokens


def _fit_again(state: SchedulerState, request: Request, limits: CoreLimits) -> list[FinishedRequest]:
    """Hold a live request to new limits; end it where it cannot go on."""
    assert request.status in (RequestStatus.PREEMPTED, RequestStatus.WAITING)
    if request.num_epochs_lost > MAX_EPOCHS_LOST:
        message = f"{request.num_epochs_lost} workers were lost while they ran this request"
        return [state.end(request, FinishReason.WORKER_LOST, message=message)]
    try:
        request.max_total_tokens = _max_total_tokens(request, limits)
    except InvalidRequestError as error:
        return [state.end(request, FinishReason.DOES_NOT_FIT, message=str(error))]
    if request.num_tokens >= request.max_total_tokens:
        return [state.end(request, FinishReason.LENGTH)]
    return []
