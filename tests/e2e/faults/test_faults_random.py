"""Random faults at random moments: every request ends once, with the tokens of an undisturbed run.

`pytest tests/e2e/faults -k random --fault-seed 1017 --fault-runs 1` does one run again.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.conftest import SCHEDULER_FLAGS, WORKER_FLAGS
from tests.e2e.faults.fault_plan import FaultKind, FaultPlan, draw_plan
from tests.e2e.faults.fault_run import Catalogue, read_catalogue, run_plan
from tests.e2e.faults.fault_session import FaultSession, SessionShape, running_session
from tests.e2e.faults.tally import Tally

SHAPES = (
    SessionShape(num_groups=1, num_frontends=2, max_steps_in_flight=2),
    SessionShape(num_groups=2, num_frontends=1, max_steps_in_flight=2),
    SessionShape(num_groups=2, num_frontends=2, max_steps_in_flight=4),
)
LIMITS = (
    *("--step-limit-seconds", "1.5", "--first-step-limit-seconds", "10"),
    *("--silence-limit-seconds", "2", "--drain-seconds", "2"),
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


async def run_seeds(
    shape: SessionShape, model: Path, seeds: Sequence[int], tally: Tally, *, kinds: Sequence[FaultKind]
) -> list[str]:
    """Run these seeds in one session; return all that is wrong."""
    flags = (*SCHEDULER_FLAGS, *LIMITS)
    async with running_session(shape, model, worker_flags=WORKER_FLAGS, scheduler_flags=flags) as session:
        catalogue = await read_catalogue(session)
        wrong = await session.settle()
        for seed in seeds:
            plan = draw_plan(seed, catalogue.expected, kinds=kinds)
            wrong += [f"seed {seed}: {problem}" for problem in await _run(session, catalogue, plan, tally)]
    return wrong


async def _run(session: FaultSession, catalogue: Catalogue, plan: FaultPlan, tally: Tally) -> list[str]:
    started_seconds = time.monotonic()
    problems = await run_plan(session, catalogue, plan, tally)
    seconds = time.monotonic() - started_seconds
    print(f"seed {plan.seed}, {seconds:.1f} s:", "; ".join(fault.describe() for fault in plan.faults))  # noqa: T201
    for problem in problems:
        print(f"  WRONG: {problem}")  # noqa: T201
    return problems


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_random_faults_lose_no_request(
    model_folder: Path, fault_seeds: range, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally()
    of_shape = {shape: [seed for seed in fault_seeds if SHAPES[seed % 3] is shape] for shape in SHAPES}
    with capsys.disabled():
        wrong = await asyncio.gather(
            *(
                run_seeds(shape, model_folder, seeds, tally, kinds=tuple(FaultKind))
                for shape, seeds in of_shape.items()
                if seeds
            )
        )
        print(f"\n{tally.table()}")  # noqa: T201
    problems = [problem for of_session in wrong for problem in of_session]
    assert problems == []
    assert tally.num_runs == len(fault_seeds)
