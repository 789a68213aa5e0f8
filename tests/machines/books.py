"""What the driver of a core remembers of each request and of each step in flight.

Written from plans and outputs alone; knows nothing about the core's insides.
"""

from dataclasses import dataclass, field, fields

import numpy as np

from scheduler_svc.core.block_hash import extend_block_hashes
from scheduler_svc.core.plan import Admission, FinishedRequest, StepPlan
from scheduler_svc.core.types import BlockHash, Request
from tests.machines.naive_worker import run_alone


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


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A plan as it was when it came, and whose its rows are, the sampling ones apart."""

    plan: StepPlan
    copy: list[object]
    row_handles: tuple[int, ...]
    sampling_handles: tuple[int, ...]


def copy_plan(plan: StepPlan) -> list[object]:
    """Copy all that a plan says into plain lists."""
    items: list[StepPlan | Admission] = [plan, *plan.admissions]
    values = [getattr(item, each.name) for item in items for each in fields(item)]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
