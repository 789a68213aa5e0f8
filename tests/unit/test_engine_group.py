"""What a worker group sends at once, and what it leaves for the loop's next turn."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, patch

from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.engine.group import WorkerGroup
from scheduler_svc.engine.values import WorkerUp
from tests.unit.core_steps import LIMITS, make_request


def group_with_credits(num_credits: int) -> tuple[WorkerGroup, list[StepPlan]]:
    """Make a group whose link notes what is sent."""
    sent: list[StepPlan] = []

    def send(plan: StepPlan) -> None:
        sent.append(plan)
        link.has_credit = len(sent) < num_credits

    link: Any = SimpleNamespace(has_credit=True, may_take_over=False, lease_length=1, send=send)
    facts: Any = None
    group = WorkerGroup(link, is_checked=True)
    group.begin_epoch(WorkerUp(group=0, facts=facts, limits=LIMITS))
    return group, sent


def test_a_step_with_prompts_is_on_its_way_before_the_next_is_planned() -> None:
    group, sent = group_with_credits(3)
    group.core.add(make_request("a", [1, 2, 3], max_tokens=9))
    admitted: list[Any] = []
    assert group.pump(admitted.append)
    assert [len(plan.admissions) for plan in sent] == [1]
    assert len(admitted) == 1
    assert not group.pump(admitted.append)
    assert [len(plan.admissions) for plan in sent] == [1, 0, 0]


def test_without_a_credit_left_blocks_are_registered_before_a_result_comes() -> None:
    group, _ = group_with_credits(1)
    group.core.add(make_request("a", [*range(9)], max_tokens=9))
    with patch.object(SchedulerState, "register_blocks", autospec=True) as register:
        assert group.pump(lambda _: None)
        register.assert_not_called()
        assert not group.pump(lambda _: None)
        register.assert_called_once_with(ANY, 0, 2)


def test_a_group_with_nothing_to_do_sends_nothing() -> None:
    group, sent = group_with_credits(2)
    assert not group.pump(lambda _: None)
    assert sent == []
