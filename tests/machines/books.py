"""What the driver of a core remembers of each request and of each step in flight.

Written from plans and outputs alone; knows nothing about the core's insides.
"""

from dataclasses import dataclass, field, fields

import numpy as np

from scheduler_svc.core.block_hash import extend_block_hashes
from scheduler_svc.core.plan import FinishedRequest, StepPlan, StepResult
from scheduler_svc.core.types import BlockHash, CoreLimits, FinishReason, Request
from tests.machines.naive_worker import run_alone
from tests.machines.plan_run import PlanRun


@dataclass(slots=True, kw_only=True)
class Tracked:
    """One request in the driver's books."""

    request: Request
    lane: int = -1
    blocks: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    num_admissions: int = 0
    ended: FinishedRequest | None = None

    def expected_output(self) -> list[int]:
        """Generate alone up to the present limit."""
        prompt = self.request.prompt_token_ids.tolist()
        return run_alone(prompt, self.request.max_total_tokens - len(prompt), self.request.sampling)

    def check_hashes(self) -> None:
        """Assert that the request's block hashes are those of its tokens, none of them guessed."""
        if not self.request.block_hashes:
            return
        block_size = self.request.hash_block_size
        token_ids = np.array([*self.request.prompt_token_ids.tolist(), *self.output], np.int32)
        expected: list[BlockHash] = []
        extend_block_hashes(
            expected,
            token_ids,
            num_blocks=len(token_ids) // block_size,
            block_size=block_size,
            cache_salt=self.request.cache_salt,
        )
        found = self.request.block_hashes
        assert found == expected[: len(found)], "a block is hashed by other tokens than it holds"

    def check_natural_end(self, finished: FinishedRequest) -> None:
        """Assert that it ended by its last token, for the right reason."""
        last = self.output[-1]
        if last in self.request.sampling.stop_token_ids:
            assert finished.reason is FinishReason.STOP_TOKEN
            assert finished.matched_stop_token_id == last
        else:
            assert finished.reason is FinishReason.LENGTH
            assert finished.matched_stop_token_id is None
        assert finished.num_output_tokens == len(self.output)

    def check_end_by_reset(self, finished: FinishedRequest, limits: CoreLimits) -> None:
        """Assert that it ended since the new worker cannot hold it, or since it lost too many."""
        num_prompt_tokens, max_tokens = self.request.num_prompt_tokens, self.request.max_tokens
        most = min(limits.max_model_len, limits.num_blocks * limits.block_size)
        if finished.reason is FinishReason.LENGTH:
            assert num_prompt_tokens < most <= num_prompt_tokens + len(self.output)
        elif finished.reason is FinishReason.DOES_NOT_FIT:
            assert num_prompt_tokens + (max_tokens or 1) > most
            assert str(limits.max_model_len) in finished.message
        else:
            assert finished.reason is FinishReason.WORKER_LOST
            assert self.num_admissions >= 3, "running when three workers were lost"
            assert finished.message
        assert finished.num_output_tokens == len(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A plan as it was when it came, and whose its rows are, the sampling ones apart."""

    run: PlanRun
    copy: list[object]
    row_handles: tuple[int, ...]
    sampling_handles: tuple[int, ...]

    @property
    def plan(self) -> StepPlan:
        """The plan itself."""
        return self.run.plan

    def tokens(self, result: StepResult) -> list[tuple[int, int]]:
        """Give (handle, token) of each row that a result must tell a token of, unless its request ended."""
        handles, told = self.sampling_handles, result.token_ids.tolist()
        if self.plan.num_steps == 1:
            return list(zip(handles, told, strict=True))
        assert len(told) == result.num_iterations * len(handles)
        rows = zip(handles, told, self.plan.row_num_tokens.tolist(), strict=False)
        return [(handle, token) for handle, token, num_granted in rows if result.iteration < num_granted]


def copy_plan(plan: StepPlan) -> list[object]:
    """Copy all that a plan says into plain lists."""
    values: list[object] = [getattr(plan, each.name) for each in fields(plan)]
    values += [value for admission in plan.admissions for value in admission]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
