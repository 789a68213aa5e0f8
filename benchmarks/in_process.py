"""The scheduler core and a worker's executor in one process, with no gRPC between them.

Runs requests as the engine would: some steps are launched ahead of their results. Times what the host
does. Knows nothing about models or what is timed.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scheduler_svc.core import plan as core_plan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreLimits, Request, SamplingParams
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.step import Admission, LaneSampling, Step
from worker_svc.runner.executor import Executor
from worker_svc.runner.step_executor import PendingStep


@dataclass(slots=True)
class Timing:
    """What one run took."""

    total_seconds: float = 0.0
    """From the requests' arrival until their last token is folded."""
    num_steps: int = 0
    """Those with rows."""
    num_tokens: int = 0
    launch_ns: list[int] = field(default_factory=list)
    """Host time of each launch of a decode step."""
    core_ns: list[int] = field(default_factory=list)
    """Host time of planning and folding each step."""


class InProcess:
    """A core and an executor in one epoch, in which requests run again and again.

    Args:
        executor: The worker's.
        limits: The worker's.
        max_num_waiting: The most requests that are run at once.
    """

    def __init__(self, executor: Executor, limits: TableLimits, *, max_num_waiting: int) -> None:
        self.core = Scheduler(_core_limits(limits, max_num_waiting))
        self._executor = executor
        executor.start_epoch()

    def run(
        self, requests: list[Request], *, depth: int, before_step: Callable[[int], None] = lambda _: None
    ) -> Timing:
        """Run the requests to their ends.

        Args:
            requests: All arrive at once.
            depth: Steps in flight before the oldest result is folded.
            before_step: Told each step's number, from 0.
        """
        core, executor, timing = self.core, self._executor, Timing()
        pending: deque[PendingStep] = deque()
        start_seconds = time.perf_counter()
        for request in requests:
            core.add(request)
        while True:
            while len(pending) < depth and (
                launched := _launch(core, executor, timing, before_step=before_step)
            ):
                pending.append(launched)
            if not pending:
                break
            if _fold(core, pending.popleft(), timing):
                timing.total_seconds = time.perf_counter() - start_seconds
        return timing


def run_requests(
    executor: Executor,
    limits: TableLimits,
    *,
    requests: list[Request],
    depth: int,
    before_step: Callable[[int], None] = lambda _: None,
) -> Timing:
    """Run the requests to their ends in a new epoch; see InProcess."""
    process = InProcess(executor, limits, max_num_waiting=len(requests))
    return process.run(requests, depth=depth, before_step=before_step)


def _launch(
    core: Scheduler, executor: Executor, timing: Timing, *, before_step: Callable[[int], None]
) -> PendingStep | None:
    start_ns = time.perf_counter_ns()
    plan = core.schedule()
    if plan is None:
        return None
    before_step(timing.num_steps)
    planned_ns = time.perf_counter_ns()
    launched = executor.launch(_step(plan))
    timing.num_steps += len(plan.row_lanes) > 0  # what only releases lanes is no step of the model
    timing.core_ns.append(planned_ns - start_ns)
    if not plan.admissions and len(plan.row_lanes) == plan.row_num_tokens.sum():
        timing.launch_ns.append(time.perf_counter_ns() - planned_ns)
    return launched


def _fold(core: Scheduler, pending: PendingStep, timing: Timing) -> bool:
    """Wait for a step; tell whether there are tokens of it."""
    result = pending.finish()
    start_ns = time.perf_counter_ns()
    outputs = core.update(core_plan.StepResult(step_id=result.step_id, token_ids=result.sampled.token_ids))
    timing.num_tokens += len(outputs.token_ids)
    timing.core_ns.append(time.perf_counter_ns() - start_ns)
    return len(outputs.token_ids) > 0


def _core_limits(limits: TableLimits, num_requests: int) -> CoreLimits:
    return CoreLimits(
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        max_num_waiting=max(num_requests, 1),
    )


def _step(plan: core_plan.StepPlan) -> Step:
    return Step(
        step_id=plan.step_id,
        released_lanes=plan.released_lanes,
        admissions=tuple(map(_admission, plan.admissions)),
        append_lanes=plan.append_lanes,
        append_block_ids=plan.append_block_ids,
        row_lanes=plan.row_lanes,
        row_num_tokens=plan.row_num_tokens,
        row_samples=plan.row_samples,
    )


def _admission(admission: core_plan.Admission) -> Admission:
    return Admission(
        lane=admission.lane,
        incarnation=admission.incarnation,
        token_ids=admission.token_ids,
        num_prompt_tokens=admission.num_prompt_tokens,
        num_computed_tokens=admission.num_computed_tokens,
        block_ids=admission.block_ids,
        max_total_tokens=admission.max_total_tokens,
        sampling=_lane_sampling(admission.sampling),
    )


def _lane_sampling(sampling: SamplingParams) -> LaneSampling:
    return LaneSampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias_token_ids=np.array([key for key, _ in sampling.logit_bias], np.int32),
        bias_values=np.array([value for _, value in sampling.logit_bias], np.float32),
        stop_token_ids=np.array(sampling.stop_token_ids, np.int32),
        min_tokens=sampling.min_tokens,
        num_logprobs_plus_one=sampling.num_logprobs_plus_one,
    )
