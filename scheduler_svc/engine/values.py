"""The engine's own values: what comes into its loop, what goes out of it.

Plain data: nothing here knows protobuf (the converters turn these values into it and back), and
nothing here decides anything.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from scheduler_svc.core.cache_events import CacheEvent
from scheduler_svc.core.plan import CoreState, Logprobs, StepResult
from scheduler_svc.core.types import CoreLimits, FinishReason, Int32Array, Request
from scheduler_svc.engine.quotas import Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """What the scheduler expects a worker's model to be."""

    config_hash: str
    """SHA-256 of config.json, hex."""
    vocab_size: int
    tokenizer_hash: str
    """SHA-256 of tokenizer.json, hex; empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What a worker said of itself in its hello."""

    protocol_version: int
    worker_epoch: int
    model: ModelIdentity
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_steps_in_flight: int
    max_lease_steps: int
    device: str
    dtype: str
    attention_backend: str
    tp_size: int


class StepTimes(NamedTuple):
    """What a worker measured of the iterations that one result tells.

    A named tuple, since each step has one.
    """

    num_iterations: int
    busy_seconds: float
    """How long the device computed them."""
    idle_seconds: float
    """How long it had nothing to do before, while lanes were held."""
    held_seconds: float
    """How long the worker had the step for until this result."""


@dataclass(frozen=True, slots=True)
class AnsweredStep:
    """What measurements need of a step that was answered, if only in part."""

    seconds_since_sent: float
    is_decode: bool
    """Whether its rows compute one token each."""


# ---- into the loop ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivedRequest:
    """A request as a front end sent it."""

    request: Request
    deadline_ns: int | None
    """On the engine's monotonic clock."""
    takes_over: bool = False
    """A request of the same id that still lives is aborted first."""
    claim: Claim | None = None
    """What it counts for, where its tenant has a quota."""
    traceparent: str = ""
    """What the request's spans belong under; empty where it is not traced."""
    asked_ns: int = 0
    """When the client's call came, on the machine's monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedEnd:
    """A front end ends one of its requests."""

    handle: int
    reason: FinishReason
    num_output_tokens: int | None
    """Output tokens that count, for a stop string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAbort:
    """A client aborts a request of any front end."""

    request_id: str
    num_requests_before: int
    """How many requests of the same batch came before: later ones are not meant."""
    asked_ns: int = 0
    """When the client's call came, likewise: requests that came later are not meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendBatch:
    """All that one message of a front end holds."""

    owner: int
    arrival_ns: int
    requests: tuple[ArrivedRequest, ...]
    ends: tuple[AskedEnd, ...]
    aborts: tuple[AskedAbort, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendGone:
    """A front end's stream broke or was cut off."""

    owner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUp:
    """A worker epoch began."""

    group: int
    """Number of the worker group, in the order of the flags."""
    facts: WorkerFacts
    limits: CoreLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultArrived:
    """The oldest step in flight of a worker group was answered."""

    group: int
    result: StepResult
    answered: AnsweredStep | None = None
    """The step, as it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDown:
    """The worker epoch ended, or another attempt to begin one failed for a new reason."""

    group: int
    reason: str
    refusal: Exception | None = None
    """The worker that answered does not fit: an UnfitWorkerError, or a ConfigError of ours."""
    is_orderly: bool = False
    """The worker left by itself, as on SIGTERM: nothing that it ran is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlushAsked:
    """The prefix caches shall forget all, once no request lives."""

    answer: asyncio.Future[int]
    """Is told how many live; 0: the caches were flushed."""
    is_patient: bool
    """Whether it waits for the last request to end."""


Event = FrontendBatch | FrontendGone | WorkerUp | ResultArrived | WorkerDown | FlushAsked


# ---- out of the loop ----


class RequestEnd(Enum):
    """Why a request ended, as its owner is told; names as in the proto's enum."""

    STOP = auto()
    LENGTH = auto()
    ABORT = auto()
    DEADLINE = auto()
    INVALID = auto()
    DUPLICATE_ID = auto()
    QUEUE_FULL = auto()
    UNAVAILABLE = auto()
    INTERNAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """One request ended, or was refused."""

    handle: int
    end: RequestEnd
    matched_stop_token_id: int | None = None
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    queue_time_ns: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRequest:
    """One request was admitted for the first time."""

    handle: int
    num_cached_tokens: int
    queue_time_ns: int


class LiveStatus(Enum):
    """Whether a live request can go on; names as in the proto's enum."""

    WAITING_FOR_WORKER = auto()
    RUNNING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOutputs:
    """What one front end is told at once: statuses, started, then tokens, then ended."""

    handles: Int32Array
    token_ids: Int32Array
    logprobs: Logprobs | None = None
    started: tuple[StartedRequest, ...] = ()
    ended: tuple[EndedRequest, ...] = ()
    statuses: tuple[tuple[int, LiveStatus], ...] = ()
    """Handles and what is told of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CacheBatch:
    """What changed in one worker group's prefix cache."""

    group: int
    sequence_number: int
    """Counts the group's batches."""
    events: tuple[CacheEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """Whether one worker group serves."""

    address: str
    is_serving: bool
    reason: str
    """Why it does not; empty where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Whether requests can run, and how large they may be."""

    is_ready: bool
    reason: str
    max_model_len: int
    max_pool_tokens: int
    groups: tuple[GroupInfo, ...]
    num_unknown_groups: int = 0
    """Groups whose limits are not known yet: one of them may allow more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """One worker group, for people."""

    info: GroupInfo
    facts: WorkerFacts | None
    core: CoreState | None
    """None before its first worker came."""
    num_steps_in_flight: int
    num_steps: int
    """Iterations of leases counted one by one."""
    num_epochs_lost: int
    device_idle_ratio: float = 0.0
    decode_time_ns: int = 0
    round_trip_time_ns: int = 0
    max_num_seqs: int = 0
    """The most requests that run at once; 0 before its first worker came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """The engine's counts, for people."""

    core: CoreState | None
    """Of all groups together; None before the first worker came."""
    workers: tuple[WorkerStatus, ...]
    uptime_ns: int
    num_frontends: int = 0
    """Front ends that are attached."""
