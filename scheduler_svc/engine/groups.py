"""All worker groups: which of them has which request, and requests that move when one is lost.

    some group serves: every live request is in the core of one that does
    none serves:       live requests wait in the cores where they are; new ones join them

When a group is lost, its requests move to the others at once; when one comes back while none served,
it takes them all. Knows nothing about front ends, sockets or what routing prefers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields

from scheduler_svc.core.plan import Admission, CoreState, FinishedRequest, StepOutputs
from scheduler_svc.core.types import FinishReason, Request
from scheduler_svc.engine.group import WorkerGroup
from scheduler_svc.engine.routing import choose_group
from scheduler_svc.engine.values import EngineInfo, ResultArrived, WorkerDown, WorkerStatus, WorkerUp
from scheduler_svc.errors import (
    DuplicateRequestError,
    InvalidRequestError,
    QueueFullError,
    WorkerUnavailableError,
)


class WorkerGroups:
    """The worker groups of one engine, in the order of its flags."""

    def __init__(self, groups: Sequence[WorkerGroup]) -> None:
        self._groups = tuple(groups)
        self._group_of: dict[str, WorkerGroup] = {}
        """The group of each live request, by id."""

    @property
    def is_serving(self) -> bool:
        """Whether some group serves."""
        return any(group.is_serving for group in self._groups)

    def begin_epoch(self, up: WorkerUp) -> list[FinishedRequest]:
        """Start over with a group's new worker; return the requests that cannot go on."""
        return self._forget(self._groups[up.group].begin_epoch(up)) + self._move()

    def end_epoch(self, down: WorkerDown) -> list[FinishedRequest]:
        """Note that a group has no worker; return the requests that cannot go on.

        Raises:
            UnfitWorkerError, ConfigError: if no group has a worker that fits nor ever had: that is
                a wrong start.
        """
        finished = self._forget(self._groups[down.group].end_epoch(down)) + self._move()
        if down.refusal is not None and all(
            group.refusal is not None and not group.was_ever_up for group in self._groups
        ):
            raise down.refusal
        return finished

    def add(self, request: Request) -> None:
        """Give a new request to a group.

        Raises:
            InvalidRequestError, DuplicateRequestError, QueueFullError: as the core says.
            WorkerUnavailableError: if no worker ever came, so that no limit is known; or if the limits
                known so far are too low, and those of some group are not known yet.
        """
        if request.request_id in self._group_of:
            raise DuplicateRequestError.of("request_id", request.request_id, "not be in use")
        usable = self._usable()
        if not usable:
            raise WorkerUnavailableError(f"no worker group can serve: {self._reason()}")
        if len(self._groups) > 1:
            self._check_queue(usable[0])
        group = self._choose(request, usable)
        try:
            group.core.add(request)
        except InvalidRequestError as error:
            # What no group could ever take was refused by the front end, which knows the model's own limits.
            if num_unknown := self._num_unknown():
                raise WorkerUnavailableError.so_far(error, num_unknown) from error
            raise
        self._group_of[request.request_id] = group

    def finish(
        self, request_id: str, reason: FinishReason, *, num_tokens: int | None = None
    ) -> FinishedRequest | None:
        """End a request from outside; None if it is unknown or has ended."""
        group = self._group_of.pop(request_id, None)
        return None if group is None else group.finish(request_id, reason, num_tokens=num_tokens)

    def fold(self, arrived: ResultArrived) -> StepOutputs | None:
        """Fold the result of a group's oldest step; None where it, or one before, is wrong."""
        outputs = self._groups[arrived.group].fold(arrived.result)
        if outputs is not None:
            self._forget(outputs.finished)
        return outputs

    def pump(self, on_admission: Callable[[Admission], None]) -> bool:
        """Plan and send steps while links have credits and cores have work; see WorkerGroup."""
        is_held_up = [group.pump(on_admission) for group in self._groups]
        return any(is_held_up)

    def __iter__(self) -> Iterator[WorkerGroup]:
        """Go through the groups."""
        return iter(self._groups)

    def info(self) -> EngineInfo:
        """Tell which groups serve, and the limits of the one that allows the longest requests."""
        usable = self._usable()
        limits = max(usable, key=lambda group: group.most_tokens).limits() if usable else None
        return EngineInfo(
            is_ready=self.is_serving,
            reason="" if self.is_serving else self._reason(),
            max_model_len=0 if limits is None else limits.max_model_len,
            max_pool_tokens=0 if limits is None else limits.num_blocks * limits.block_size,
            groups=tuple(group.info() for group in self._groups),
            num_unknown_groups=self._num_unknown(),
        )

    def core_state(self) -> CoreState | None:
        """Count the requests and blocks of all groups; None before the first worker."""
        states = [state for group in self._groups if (state := group.core_state()) is not None]
        if not states:
            return None
        names = [field.name for field in fields(CoreState)]
        return CoreState(**{name: sum(getattr(state, name) for state in states) for name in names})

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Describe each group for people."""
        return tuple(group.status() for group in self._groups)

    def _usable(self) -> list[WorkerGroup]:
        """The groups that serve; where none does, those that may serve again under known limits."""
        serving = [group for group in self._groups if group.is_serving]
        return serving or [group for group in self._groups if group.was_ever_up]

    def _num_unknown(self) -> int:
        """Count the groups whose limits are not known yet: one of them may allow more than the others."""
        return sum(group.is_unknown for group in self._groups)

    def _choose(self, request: Request, usable: Sequence[WorkerGroup]) -> WorkerGroup:
        """Choose the group for a request; where none can hold it, the one that comes nearest refuses it."""
        if len(usable) == 1:
            return usable[0]
        fitting = [group for group in usable if group.can_hold(request)]
        if not fitting:
            return max(usable, key=lambda group: group.most_tokens)
        candidates = [group.candidate(request, index=index) for index, group in enumerate(fitting)]
        return fitting[choose_group(candidates)]

    def _move(self) -> list[FinishedRequest]:
        """Move the requests of groups that do not serve to those that do; return those that do not fit."""
        if not self.is_serving:
            return []
        usable, unfit = self._usable(), []
        for group in self._groups:
            if group.is_serving or not group.was_ever_up:
                continue
            for request in group.core.give_away():
                target = self._group_of[request.request_id] = self._choose(request, usable)
                unfit.append(target.core.adopt(request))
        return self._forget(finished for finished in unfit if finished is not None)

    def _check_queue(self, group: WorkerGroup) -> None:
        """Hold all groups' queues together to the limit that each one's core keeps, too."""
        num_waiting = sum(one.core.num_waiting for one in self._groups if one.was_ever_up)
        if num_waiting >= group.core.limits.max_num_waiting:
            raise QueueFullError(
                f"{num_waiting} requests wait, the most that max_num_waiting allows: try later"
            )

    def _forget(self, finished: Iterable[FinishedRequest]) -> list[FinishedRequest]:
        finished = list(finished)
        for one in finished:
            del self._group_of[one.request_id]
        return finished

    def _reason(self) -> str:
        return "; ".join(
            f"worker {info.address}: {info.reason}" for info in (group.info() for group in self._groups)
        )
