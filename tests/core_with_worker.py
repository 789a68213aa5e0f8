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
from scheduler_svc.core.types import CoreLimits, Request
from scheduler_svc.engine.convert import plan_to_pb, result_from_pb
from worker_svc.batch.checks import TableLimits
from worker_svc.rpc.convert import result_to_proto, step_from_proto
from worker_svc.runner.step_executor import StepExecutor

MAX_STEPS = 10_000


@dataclass(slots=True)
class CoreWithWorker:
    """One core, one executor and the results between them."""

    executor: StepExecutor
    limits: CoreLimits
    depth: int = 1
    """Steps in flight before the oldest result is folded."""
    before_schedule: Callable[[Scheduler], None] = lambda _: None
    core: Scheduler = field(init=False)
    finished: dict[str, FinishedRequest] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """What each handle was told."""

    def __post_init__(self) -> None:
        self.core = Scheduler(self.limits, is_checked=True)
        self.executor.start_epoch()

    def run(self, requests: Iterable[Request]) -> list[list[int]]:
        """Run these requests to their ends and return each one's tokens."""
        requests = list(requests)
        for request in requests:
            self.tokens[request.handle] = []
            self.core.add(request)
        results: deque[bytes] = deque()
        for _ in range(MAX_STEPS):
            while len(results) < self.depth and (plan := self._schedule()) is not None:
                results.append(self._execute(plan))
            if not results:
                break
            self._fold(results.popleft())
        assert all(request.request_id in self.finished for request in requests), "every request ends"
        assert not self.executor.num_lanes_held, "when idle, nothing is held"
        return [self.tokens[request.handle] for request in requests]

    def _schedule(self) -> StepPlan | None:
        self.before_schedule(self.core)
        return self.core.schedule()

    def _execute(self, plan: StepPlan) -> bytes:
        data = plan_to_pb(plan).SerializeToString()
        step = step_from_proto(pb.RunStepsRequest.FromString(data).step)
        return result_to_proto(self.executor.launch(step).finish()).SerializeToString()

    def _fold(self, data: bytes) -> None:
        outputs = self.core.update(result_from_pb(pb.StepResult.FromString(data)))
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
