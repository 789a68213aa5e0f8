"""What a client process measured: one record a request, and the process's own use of its core.

Plain values, small enough to travel between processes. Knows nothing about what they are summed up to.
"""

from array import array
from dataclasses import dataclass, field

WRONG_NUM_TOKENS = "WRONG_NUM_TOKENS"
"""The error of a request that ended well and yet without its exact number of tokens."""


def _floats() -> "array[float]":
    return array("d")


def _counts() -> "array[int]":
    return array("L")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request; times are seconds from the start of its round."""

    index: int
    num_expected_tokens: int
    due_seconds: float
    """When it should have been sent."""
    sent_seconds: float
    ended_seconds: float
    """When its status was there."""
    message_seconds: "array[float]" = field(default_factory=_floats)
    """When each message with tokens came."""
    message_num_tokens: "array[int]" = field(default_factory=_counts)
    """How many tokens each of them had."""
    num_prompt_tokens: int = 0
    """As the server counted them."""
    num_cached_tokens: int = 0
    error: str = ""
    """Name of the status that it ended with, or what was wrong with its output. Empty: nothing."""
    error_message: str = ""

    @property
    def num_output_tokens(self) -> int:
        """Tokens that came."""
        return sum(self.message_num_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientUsage:
    """What one client process needed for a round."""

    wall_seconds: float
    cpu_seconds: float
    """Of all its threads."""
    loop_cpu_seconds: float
    """Of the thread with the event loop: at 1 a wall second the process is the bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """All that one round gave."""

    requests: tuple[RequestRecord, ...]
    clients: tuple[ClientUsage, ...]
