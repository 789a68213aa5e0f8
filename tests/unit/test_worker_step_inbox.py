"""Slots of decode steps' inputs: their turns on the host and on the device, after a failed launch, too."""

import pytest
import torch

from worker_svc.runner.step_inbox import NUM_SLOTS, StepInbox


def send(inbox: StepInbox, first_word: int) -> None:
    buffer = inbox.take()
    buffer.words[:4] = range(first_word, first_word + 4)
    inbox.send(buffer, 4)


def test_words_arrive_in_turns() -> None:
    inbox = StepInbox(8, device=torch.device("cpu"))
    for step in range(NUM_SLOTS + 2):
        send(inbox, 10 * step)
        inbox.launched()
    expected = [80, 90, *(10 * step for step in range(2, NUM_SLOTS))]
    assert inbox.slots.slots_NW[:, :4].tolist() == [list(range(first, first + 4)) for first in expected]
    assert (inbox.slots.slots_NW[:, 4:] == 0).all()
    # The device counts by itself.
    assert inbox.slots.turns_2.tolist() == [0, 0]


def test_the_device_is_told_the_turn_after_a_step_that_was_not_launched() -> None:
    inbox = StepInbox(4, device=torch.device("cpu"))
    for step in range(3):
        send(inbox, step)
        inbox.launched()
    send(inbox, 3)
    # One program had begun.
    inbox.slots.turns_2.copy_(torch.tensor([3, 1]))
    send(inbox, 4)
    assert inbox.slots.turns_2.tolist() == [4, 0]
    assert inbox.slots.slots_NW[4].tolist() == [4, 5, 6, 7]
    inbox.launched()


def test_only_what_was_sent_is_launched() -> None:
    with pytest.raises(AssertionError, match="nothing was sent"):
        StepInbox(4, device=torch.device("cpu")).launched()
