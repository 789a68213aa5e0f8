"""Proof that the machine can fail: each fault planted in the core is found, by the books outside it.

The faulty cores do not check themselves, so that it is the naive worker and the driver's own books
that find what is wrong. Each fault also has a directed run that the right core passes.
"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from scheduler_svc.core import folding, leasing, planning
from scheduler_svc.core.draft import Draft
from scheduler_svc.core.leasing import LeaseGrant
from scheduler_svc.core.plan import FinishedRequest
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.types import CoreLimits, FinishReason, Int64Array, Request, RequestStatus
from tests.machines.core_driver import CoreDriver, make_checked_scheduler
from tests.machines.core_machine import CoreMachine

LIMITS = CoreLimits(block_size=2, num_blocks=4, max_num_seqs=2, max_num_batched_tokens=8, max_model_len=8)


class LeakyState(SchedulerState):
    """Forgets one release: the last block of a request that is aborted with a row in flight."""

    def end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        matched_stop_token_id: int | None = None,
        num_tokens: int | None = None,
        message: str = "",
    ) -> FinishedRequest:
        """End a request, but keep the block its row in flight writes."""
        is_running = request.status is RequestStatus.RUNNING
        if is_running and reason is FinishReason.ABORT and self.lanes.num_rows_in_flight[request.lane]:
            self.lanes.block_ids[request.lane].pop()
        return super().end(
            request,
            reason,
            matched_stop_token_id=matched_stop_token_id,
            num_tokens=num_tokens,
            message=message,
        )


def num_sampled_blocks(state: SchedulerState, lane: int) -> int:
    """Count a block once its last token is sampled, one token before that token's KV is written."""
    num_sampled = int(state.lanes.num_folded[lane]) // state.limits.block_size
    return min(num_sampled, len(state.lanes.block_ids[lane]))


def admit_at_once(state: SchedulerState, draft: Draft) -> None:
    """Admit as the core does, but for one condition: that no row of the request is in flight."""
    while draft.budget_left > 0 and state.lanes.has_free_lane:
        request = state.queues.peek()
        if request is None or not planning._try_admit(state, draft, request):
            return


def wait_for_leases(state: SchedulerState) -> bool:
    """Find nothing urgent."""
    del state
    return False


def grant_past_the_limit(state: SchedulerState, rows: Int64Array, *, num_steps: int) -> LeaseGrant | None:
    """Grant as the core does, then one token more, where there is a slot and an iteration for it."""
    grant = leasing.grant_lease(state, rows, num_steps=num_steps)
    if grant is None:
        return None
    num_free_slots = state.lanes.num_slots[rows] - state.lanes.num_scheduled[rows]
    num_tokens = np.minimum(grant.num_tokens + 1, np.minimum(num_free_slots, num_steps))
    return LeaseGrant(
        num_tokens=num_tokens, append_lanes=grant.append_lanes, append_block_ids=grant.append_block_ids
    )


def make_leaky_scheduler(limits: CoreLimits) -> Scheduler:
    """Make a core with LeakyState."""
    scheduler = Scheduler(limits)
    scheduler._state = LeakyState(limits)
    return scheduler


def find_by_machine(make_scheduler: Callable[[CoreLimits], Scheduler]) -> str:
    """Run the machine on a faulty core until it fails; give the message."""

    class FaultyMachine(CoreMachine):
        def make_scheduler(self, limits: CoreLimits) -> Scheduler:
            return make_scheduler(limits)

    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(
            FaultyMachine,
            settings=settings(
                max_examples=2_000,
                stateful_step_count=40,
                derandomize=True,
                deadline=None,
                database=None,
                phases=(Phase.generate,),
                report_multiple_bugs=False,
                suppress_health_check=tuple(HealthCheck),
            ),
        )
    return str(caught.value)


def abort_with_a_row_in_flight(driver: CoreDriver) -> None:
    """Abort a running request whose first step is not folded."""
    handle = driver.add([1, 2, 3], max_tokens=2)
    driver.schedule()
    driver.finish(handle, FinishReason.ABORT)
    driver.drain(2)


def go_on_from_a_full_last_block(driver: CoreDriver) -> None:
    """End at LENGTH with a full block whose last token was never computed; then go on from there."""
    first = driver.requests[driver.add([1, 2], max_tokens=2)]
    driver.drain(1)
    second = driver.add([1, 2, *first.output, 3], max_tokens=1)
    driver.drain(1)
    assert driver.requests[second].request.num_prefix_hit_tokens == 2


def free_blocks_for_one_with_late_rows(driver: CoreDriver) -> None:
    """Preempt with three rows in flight, free all blocks, then fold up to the last late row."""
    first = driver.add([1, 2], max_tokens=6)
    driver.add([3, 3], max_tokens=6)
    for _ in range(4):
        driver.schedule()
    assert driver.num_preemptions == 1
    driver.finish(first, FinishReason.ABORT)
    driver.update()
    driver.update()
    driver.schedule()
    assert driver.core.state().num_preempted == 1
    driver.drain(4)


def end_a_lease_early(driver: CoreDriver) -> None:
    """Have an admission end a lease after its second iteration."""
    first = driver.add([1], max_tokens=6)
    driver.schedule()
    driver.update()
    plan = driver.schedule(4)
    assert plan is not None
    assert plan.num_steps == 4
    driver.update()
    second = driver.add([2], max_tokens=1)
    driver.take_over_delay = 1
    assert driver.may_schedule(1)
    plan = driver.schedule(4)
    assert plan is not None
    assert plan.takes_over
    driver.drain(2, 4)
    assert driver.num_leases_ended_early == 1
    assert len(driver.requests[first].output) == 6
    assert len(driver.requests[second].output) == 1


DIRECTED_RUNS = (
    end_a_lease_early,
    abort_with_a_row_in_flight,
    go_on_from_a_full_last_block,
    free_blocks_for_one_with_late_rows,
)


@pytest.mark.parametrize("directed_run", DIRECTED_RUNS)
def test_the_right_core_passes(directed_run: Callable[[CoreDriver], None]) -> None:
    directed_run(CoreDriver(LIMITS, make_checked_scheduler))


def test_a_missing_release_is_found() -> None:
    with pytest.raises(AssertionError, match="free"):
        abort_with_a_row_in_flight(CoreDriver(LIMITS, make_leaky_scheduler))
    assert "free" in find_by_machine(make_leaky_scheduler)


def test_a_hash_registered_a_token_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchedulerState, "num_written_blocks", num_sampled_blocks)
    with pytest.raises(AssertionError, match="reads None at 3"):
        go_on_from_a_full_last_block(CoreDriver(LIMITS, Scheduler))
    assert "reads" in find_by_machine(Scheduler)


def test_an_admission_with_a_row_in_flight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_admit", admit_at_once)
    with pytest.raises(AssertionError, match="admitted again with a row in flight"):
        free_blocks_for_one_with_late_rows(CoreDriver(LIMITS, Scheduler))
    assert "admitted again with a row in flight" in find_by_machine(Scheduler)


def test_a_lease_whose_unused_tokens_stay_scheduled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_take_back_unused", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="nothing runs, nor is due"):
        end_a_lease_early(CoreDriver(LIMITS, Scheduler))
    assert find_by_machine(Scheduler)


def test_an_admission_that_waits_for_a_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "is_take_over_due", wait_for_leases)
    assert "waits for a lease" in find_by_machine(Scheduler)


def test_a_grant_past_the_length_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "grant_lease", grant_past_the_limit)
    assert "past the length limit" in find_by_machine(Scheduler)
