"""What the leading rank tells the others: each thing its step executor does, as one short message.

A message is one byte that says what, and after ``STEP`` the step as the engine serialized it. Knows
nothing about how messages travel.
"""

from enum import IntEnum


class Command(IntEnum):
    """What to do next."""

    START_EPOCH = 1
    """Forget all lanes."""
    STEP = 2
    """Launch the step that follows; of a lease only begin it."""
    GO_ON = 3
    """Launch the next iteration of the lease under way."""
    END_LEASE = 4
    """End it: a step has taken over, or all its rows have ended."""
    FINISH = 5
    """Take the tokens of the oldest step, or iteration, that was launched."""


COMMAND_BYTES = tuple(bytes([number]) for number in range(len(Command) + 1))
"""By command, so that telling one makes nothing."""
