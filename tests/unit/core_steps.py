"""Short words for tests of the scheduler core: limits, requests, rows of a plan, a result by hand.

Knows nothing about what the core should decide: the tests say so.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from scheduler_svc.core.plan import StepOutputs, StepPlan, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.types import CoreLimits, Request, SamplingParams

LIMITS = CoreLimits(block_size=4, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=32)


def make_core(**changes: int) -> Scheduler:
    """Make a core that checks itself, with LIMITS but for ``changes``."""
    return Scheduler(replace(LIMITS, **changes), is_checked=True)


def make_request(request_id: str, token_ids: list[int], **options: Any) -> Request:
    """Make a request; ``stop_token_ids`` and ``min_tokens`` go to its sampling parameters."""
    sampling = SamplingParams(
        stop_token_ids=options.pop("stop_token_ids", ()), min_tokens=options.pop("min_tokens", 0)
    )
    return Request(
        request_id=request_id, prompt_token_ids=np.array(token_ids, np.int32), sampling=sampling, **options
    )


def plan_next(core: Scheduler) -> StepPlan:
    """Schedule a step that there must be."""
    plan = core.schedule()
    assert plan is not None
    return plan


def rows(plan: StepPlan) -> list[tuple[int, int, bool]]:
    """List a plan's rows as (lane, tokens, samples)."""
    columns = (plan.row_lanes.tolist(), plan.row_num_tokens.tolist(), plan.row_samples.tolist())
    return list(zip(*columns, strict=True))


def fold(core: Scheduler, plan: StepPlan, *token_ids: int) -> StepOutputs:
    """Answer a plan with these tokens, one for each sampling row."""
    return core.update(StepResult(step_id=plan.step_id, token_ids=np.array(token_ids, np.int32)))
