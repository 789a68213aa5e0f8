"""What the driver and its client processes tell each other, as plain values over pipes.

Knows nothing about who sends what when: driver.py and client_process.py do.
"""

from dataclasses import dataclass, field

from stepwire_client.security import Metadata, Tls

from stepwire_cli.bench.jobs import Job
from stepwire_cli.bench.records import ClientUsage, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What a client process needs to know once."""

    address: str
    num_channels: int
    is_many: bool
    timeout_seconds: float | None
    tls: Tls | None = None
    metadata: Metadata = field(default=(), repr=False)
    """What each call carries: a token, where the server asks for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundShare:
    """One process's part of a round."""

    jobs: tuple[Job, ...]
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAt:
    """Begin the round at this time of the machine's monotonic clock, which all processes share."""

    monotonic_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Connected, or done with unpacking a round: the next word is the driver's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What has come so far in this round."""

    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareDone:
    """A process's part of a round has ended."""

    records: tuple[RequestRecord, ...]
    usage: ClientUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFailed:
    """A client process cannot go on, and why."""

    reason: str


FromClient = Ready | Progress | ShareDone | ClientFailed
