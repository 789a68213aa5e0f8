"""One worker group as the engine sees it: a core, the link that runs its plans, and its epochs.

Knows nothing about front ends.
"""

from collections.abc import Callable

from scheduler_svc.core.plan import Admission, CoreState, FinishedRequest, StepOutputs, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreLimits, FinishReason, Request
from scheduler_svc.engine.values import EngineInfo, WorkerFacts, WorkerStatus, WorkerUp
from scheduler_svc.engine.worker_link import WorkerLink
from scheduler_svc.errors import WorkerUnavailableError


class WorkerGroup:
    """A core that exists from the first worker on and outlives every epoch."""

    def __init__(self, link: WorkerLink, *, is_checked: bool) -> None:
        self._link = link
        self._is_checked = is_checked
        self._core: Scheduler | None = None
        self._facts: WorkerFacts | None = None
        self._num_steps = 0

    def begin_epoch(self, up: WorkerUp) -> tuple[FinishedRequest, ...]:
        """Start over with a new worker; return the requests that cannot go on with it."""
        self._facts = up.facts
        self._num_steps = 0
        if self._core is None:
            self._core = Scheduler(up.limits, is_checked=self._is_checked)
            return ()
        return self._core.reset(up.limits)

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidRequestError, DuplicateRequestError, QueueFullError: as the core says.
            WorkerUnavailableError: if no worker ever came, so that no limit is known.
        """
        if self._core is None:
            raise WorkerUnavailableError(
                f"no worker group can serve: {self._link.address}: {self._link.reason}"
            )
        self._core.add(request)

    def finish(
        self, request_id: str, reason: FinishReason, *, num_tokens: int | None = None
    ) -> FinishedRequest | None:
        """End a request from outside."""
        return None if self._core is None else self._core.finish(request_id, reason, num_tokens=num_tokens)

    def fold(self, result: StepResult) -> StepOutputs:
        """Fold the oldest step's result."""
        assert self._core is not None, "a result needs a worker"
        self._num_steps += 1
        return self._core.update(result)

    def pump(self, on_admission: Callable[[Admission], None]) -> None:
        """Plan and send steps while the link has credits and the core has work."""
        while self._core is not None and self._link.has_credit:
            plan = self._core.schedule()
            if plan is None:
                return
            self._link.send(plan)
            for admission in plan.admissions:
                on_admission(admission)

    def info(self) -> EngineInfo:
        """Tell whether it serves, and its limits."""
        limits: CoreLimits | None = None if self._core is None else self._core.limits
        return EngineInfo(
            is_ready=self._link.is_up,
            reason=self._link.reason,
            max_model_len=0 if limits is None else limits.max_model_len,
            max_pool_tokens=0 if limits is None else limits.num_blocks * limits.block_size,
        )

    def core_state(self) -> CoreState | None:
        """Count the core's requests and blocks; None before the first worker."""
        return None if self._core is None else self._core.state()

    def status(self) -> WorkerStatus:
        """Describe the group for people."""
        return WorkerStatus(
            address=self._link.address,
            is_serving=self._link.is_up,
            reason=self._link.reason,
            facts=self._facts,
            num_steps_in_flight=self._link.num_steps_in_flight,
            num_steps=self._num_steps,
        )
