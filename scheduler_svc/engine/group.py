"""One worker group as the engine sees it: a core, the link that runs its plans, and its epochs.

Whether it serves changes with the loop's events only, never between them. Knows nothing about front
ends or other groups.
"""

from collections.abc import Callable

from scheduler_svc.core.cache_events import CacheEvent
from scheduler_svc.core.capacity import max_total_tokens, most_tokens_of_one
from scheduler_svc.core.plan import Admission, CoreState, FinishedRequest, StepOutputs, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreLimits, FinishReason, Request
from scheduler_svc.engine.routing import Candidate
from scheduler_svc.engine.values import GroupInfo, WorkerDown, WorkerFacts, WorkerStatus, WorkerUp
from scheduler_svc.engine.worker_link import WorkerLink
from scheduler_svc.errors import InvalidRequestError


class WorkerGroup:
    """A core that exists from the first worker on and outlives every epoch."""

    def __init__(self, link: WorkerLink, *, is_checked: bool) -> None:
        self._link = link
        self._is_checked = is_checked
        self._core: Scheduler | None = None
        self._facts: WorkerFacts | None = None
        self._num_steps = 0
        self._num_epochs_lost = 0
        self._reason = "no worker has come yet"
        self._keeps_cache_events = False
        self._is_given_up = False
        """Whether the epoch is to end for a wrong result, after which no other counts."""
        self.is_serving = False
        """Whether a worker epoch runs."""
        self.refusal: Exception | None = None
        """Why the last worker that came does not fit, if it did not."""

    @property
    def address(self) -> str:
        """Where the group is, host:port."""
        return self._link.address

    @property
    def was_ever_up(self) -> bool:
        """Whether a worker ever came that fits, so that there is a core."""
        return self._core is not None

    @property
    def is_unknown(self) -> bool:
        """Whether its limits are not known yet; while a worker is there that does not fit, there are none."""
        return not self.was_ever_up and self.refusal is None

    @property
    def core(self) -> Scheduler:
        """The core; there is one from the first worker on."""
        assert self._core is not None, "no worker has come yet"
        return self._core

    @property
    def most_tokens(self) -> int:
        """The most tokens of one request, prompt and output; 0 before the first worker."""
        return 0 if self._core is None else most_tokens_of_one(self._core.limits)

    def begin_epoch(self, up: WorkerUp) -> tuple[FinishedRequest, ...]:
        """Start over with a new worker; return the requests that cannot go on with it."""
        self._facts = up.facts
        self._num_steps = 0
        self.is_serving, self._reason, self.refusal = True, "", None
        if self._core is None:
            self._core = Scheduler(up.limits, is_checked=self._is_checked)
            self._core.keep_cache_events(is_kept=self._keeps_cache_events)
            return ()
        return self._core.reset(up.limits)

    def end_epoch(self, down: WorkerDown) -> tuple[FinishedRequest, ...]:
        """Note that there is no worker; return the requests that end with the one that was lost."""
        self._num_epochs_lost += self.is_serving
        self.is_serving, self._reason, self.refusal = False, down.reason, down.refusal
        self._is_given_up = False
        return () if self._core is None else self._core.lose_worker(is_orderly=down.is_orderly)

    def can_hold(self, request: Request) -> bool:
        """Whether the request fits the worker's limits with what it has to go."""
        try:
            return request.num_tokens < max_total_tokens(request, self.core.limits)
        except InvalidRequestError:
            return False

    def candidate(self, request: Request, *, index: int) -> Candidate:
        """Tell what choosing a group for ``request`` needs of this one, number ``index``."""
        return Candidate(
            group=index,
            num_cached_tokens=self.core.num_cached_tokens(request),
            num_requests=self.core.num_requests,
            max_num_seqs=self.core.limits.max_num_seqs,
        )

    def finish(
        self, request_id: str, reason: FinishReason, *, num_tokens: int | None = None
    ) -> FinishedRequest | None:
        """End a request from outside."""
        return self.core.finish(request_id, reason, num_tokens=num_tokens)

    def fold(self, result: StepResult) -> StepOutputs | None:
        """Fold the oldest step's result; None where it, or one before, is wrong: the epoch is to end."""
        assert self.is_serving, "a result needs a worker"
        if not self._is_given_up and (fault := self.core.fault_of(result)):
            self._is_given_up = True
            self._link.give_up(f"the worker answered step {result.step_id} wrongly: {fault}")
        if self._is_given_up:
            return None
        self._num_steps += result.num_iterations
        return self.core.update(result)

    def pump(self, on_admission: Callable[[Admission], None]) -> bool:
        """Plan and send steps while the link has credits, or leases are to end, and the core has work.

        Returns:
            Whether it stopped behind a step with prompts: that should leave before the next one is planned,
            as the worker may have nothing else to do, and the next plan takes longer for their sake.
        """
        link = self._link
        is_served = self.is_serving and not self._is_given_up
        while is_served and (link.has_credit or (link.may_take_over and self.core.is_take_over_due)):
            plan = self.core.schedule(num_steps=link.lease_length)
            if plan is None:
                return False
            self._link.send(plan)
            for admission in plan.admissions:
                on_admission(admission)
            if plan.admissions:
                return True
        if self._core is not None:
            # Of 16 prompts of 1,024 tokens it takes 1.8 ms, for which the next result's tokens would wait.
            self._core.settle()
        return False

    def keep_cache_events(self, *, is_kept: bool) -> None:
        """Begin or cease to write down what the prefix cache gains and loses."""
        self._keeps_cache_events = is_kept
        if self._core is not None:
            self._core.keep_cache_events(is_kept=is_kept)

    def take_cache_events(self) -> tuple[CacheEvent, ...]:
        """Take what the prefix cache gained and lost since the last call."""
        return () if self._core is None else self._core.take_cache_events()

    def flush_prefix_cache(self) -> None:
        """Forget all cached prefixes; no request may live."""
        if self._core is not None:
            self._core.flush_prefix_cache()

    def limits(self) -> CoreLimits | None:
        """What the worker, or the last one there was, can hold."""
        return None if self._core is None else self._core.limits

    def core_state(self) -> CoreState | None:
        """Count the core's requests and blocks; None before the first worker."""
        return None if self._core is None else self._core.state()

    def info(self) -> GroupInfo:
        """Tell whether it serves."""
        return GroupInfo(address=self.address, is_serving=self.is_serving, reason=self._reason)

    def status(self) -> WorkerStatus:
        """Describe the group for people."""
        return WorkerStatus(
            info=self.info(),
            facts=self._facts,
            core=self.core_state(),
            num_steps_in_flight=self._link.num_steps_in_flight,
            num_steps=self._num_steps,
            num_epochs_lost=self._num_epochs_lost,
            device_idle_ratio=self._link.pace.idle_ratio,
            decode_time_ns=round(1e9 * self._link.pace.decode_seconds),
            round_trip_time_ns=round(1e9 * self._link.pace.round_trip_seconds),
            max_num_seqs=0 if self._core is None else self._core.limits.max_num_seqs,
        )
