"""Where a worker group is and how patient the link to it is.

Plain data: knows nothing about streams.
"""

from dataclasses import dataclass

import grpc

from scheduler_svc.engine.step_clock import StepLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Where the worker is and how patient the link is."""

    group: int
    """Number of the worker group, which every event carries."""
    address: str
    max_steps_in_flight: int
    max_lease_steps: int
    """The most iterations of one step."""
    step_limits: StepLimits
    """How long a step may be the oldest in flight."""
    silence_seconds: float
    """How long a worker may send nothing at all."""
    heartbeat_seconds: float = 1.0
    credentials: grpc.ChannelCredentials | None = None
    """What the worker is connected to with; None: without TLS."""
    first_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 1.0
