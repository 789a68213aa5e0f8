"""The scheduler core and a real worker's executor in one process, joined by the step stream's bytes.

Every plan and result crosses as serialized protobuf, as between the services, but with no clock, no
network and no threads: the same calls give the same steps. Knows nothing about what is right.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stepwire.worker.v1 import worker_service_pb2 as pb

from scheduler_svc.core.plan import FinishedRequest, StepPlan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreLimits, FinishReason, Request
from scheduler_svc.engine.convert import plan_to_pb, result_from_pb
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.lease import Lease
from worker_svc.batch.step import Step, StepResult
from worker_svc.rpc.convert import join_results, result_to_proto, step_from_proto
from worker_svc.runner.executor import Executor

MAX_STEPS = 10_000
RESULTS_PER_ARRIVAL = 7


@dataclass(slots=True)
class CoreWithWorker:
    """One core, one executor and what is between them."""

    executor: Executor
    limits: CoreLimits
    depth: int = 1
    """Steps in flight before the oldest result is folded; one more may take over."""
    num_steps: int = 1
    """Iterations of each lease."""
    joins_results: bool = False
    """Whether an engine lags: a lease's iterations come as one message each two."""
    before_schedule: Callable[[Scheduler], None] = lambda _: None
    after_result: Callable[["CoreWithWorker"], None] = lambda _: None
    core: Scheduler = field(init=False)
    finished: dict[str, FinishedRequest] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """What each handle was told."""
    num_leases: int = 0
    num_leases_ended_early: int = 0
    _steps: deque[Step] = field(default_factory=deque)
    """In flight; nothing of them has run but the oldest one's lease."""
    _lease: Lease | None = None
    _taken_over_by: int = 0

    def __post_init__(self) -> None:
        self.core = Scheduler(self.limits, is_checked=True)
        self.executor.start_epoch()

    def run(self, requests: Iterable[Request], *, late: Iterable[Request] = ()) -> list[list[int]]:
        """Run these requests to their ends and return each one's tokens.

        Args:
            requests: come at once.
            late: come one by one, each some results after the one before.
        """
        arriving, requests = deque(late), list(requests)
        for request in requests:
            self._add(request)
        requests += arriving
        for number in range(MAX_STEPS):
            if arriving and number % RESULTS_PER_ARRIVAL == RESULTS_PER_ARRIVAL - 1:
                self._add(arriving.popleft())
            while self._has_credit() and (plan := self._schedule()) is not None:
                self._send(plan)
            if not self._steps:
                break
            self._fold(self._next_result())
            self.after_result(self)
        assert all(request.request_id in self.finished for request in requests), "every request ends"
        assert not self.executor.num_lanes_held, "when idle, nothing is held"
        return [self.tokens[request.handle] for request in requests]

    def abort(self, request_id: str) -> FinishedRequest:
        """End a live request from outside."""
        finished = self.core.finish(request_id, FinishReason.ABORT)
        assert finished is not None, f"{request_id} does not live"
        self.finished[request_id] = finished
        return finished

    def _add(self, request: Request) -> None:
        self.tokens[request.handle] = []
        self.core.add(request)

    def _has_credit(self) -> bool:
        num_steps = len(self._steps)
        return num_steps < self.depth or (num_steps == self.depth and self.core.is_take_over_due)

    def _schedule(self) -> StepPlan | None:
        self.before_schedule(self.core)
        return self.core.schedule(num_steps=self.num_steps)

    def _send(self, plan: StepPlan) -> None:
        data = plan_to_pb(plan).SerializeToString()
        step = step_from_proto(pb.RunStepsRequest.FromString(data).step)
        self.num_leases += step.num_steps > 1
        if step.takes_over:
            self._taken_over_by = step.step_id
        self._steps.append(step)

    def _next_result(self) -> bytes:
        """Run the oldest step, or its next iteration; two where results are joined."""
        step = self._steps[0]
        result = self._run(step)
        message = result_to_proto(result)
        if self.joins_results and not result.is_last:
            result = self._run(step)
            join_results(message, result_to_proto(result))
        if result.is_last:
            self._steps.popleft()
            self._lease = None
            self.num_leases_ended_early += result.iteration + result.num_iterations < step.num_steps
        return message.SerializeToString()

    def _run(self, step: Step) -> StepResult:
        if step.num_steps == 1:
            return self.executor.launch(step).finish()
        self._lease = self._lease or self.executor.begin_lease(step)
        pending = None
        if step.step_id >= self._taken_over_by:
            pending = self.executor.launch_iteration(self._lease)
        return (pending or self.executor.end_lease(self._lease)).finish()

    def _fold(self, data: bytes) -> None:
        for result in result_from_pb(pb.StepResult.FromString(data)).parts():
            outputs = self.core.update(result)
            for handle, token_id in zip(outputs.handles.tolist(), outputs.token_ids.tolist(), strict=True):
                self.tokens[handle].append(token_id)
            for finished in outputs.finished:
                assert finished.request_id not in self.finished, "every request ends once"
                self.finished[finished.request_id] = finished


def core_limits(limits: TableLimits) -> CoreLimits:
    """Take all that the worker can hold."""
    return CoreLimits(
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
    )
