"""What a server answers: deltas, the end of a generation, model, state, as frozen values.

Knows nothing about protobuf, channels or streams.
"""

from dataclasses import dataclass
from enum import Enum


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    """An end-of-sequence id, a stop token or a stop string."""
    LENGTH = "length"
    """max_tokens or the end of the context."""
    ABORT = "abort"
    """Somebody aborted it by its id."""
    ERROR = "error"
    """The server could not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability in the model's raw distribution."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogprobs:
    """Log-probabilities of one generated position."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]
    """The likeliest tokens, likeliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New output since the delta before."""

    text: str
    """May be empty while a character or a possible stop string is incomplete."""
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()
    """One entry a token where they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one request."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    """Prompt tokens that the prefix cache saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of one request went, measured on the server from its arrival; None: never came."""

    queue_seconds: float | None
    """To the first step that carried the request."""
    first_token_seconds: float | None
    total_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalOutput:
    """The end of one generation."""

    finish_reason: FinishReason
    matched_stop: str | int | None
    """The stop string or token id that matched, where the reason is STOP."""
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """All output of one generation, and its end."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    finish_reason: FinishReason
    matched_stop: str | int | None
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """The tokens of a text."""

    token_ids: tuple[int, ...]
    text: str
    """The text that was tokenized: the rendered prompt of a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The served model and its limits."""

    model_name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    """The most tokens of prompt and output together."""
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    server_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """State of one worker group."""

    address: str
    is_serving: bool
    reason: str
    """Why it does not serve, where it does not."""
    worker_epoch: int
    device: str
    attention_backend: str
    num_steps_in_flight: int
    num_steps: int
    num_waiting: int = 0
    num_running: int = 0
    num_preempted: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    kv_cache_usage_ratio: float = 0.0
    num_epochs_lost: int = 0
    """How often its worker was lost."""
    device_idle_ratio: float = 0.0
    """Share of its time, lately, in which the device had nothing to do though requests were running."""
    decode_seconds: float = 0.0
    """What one step of decodes takes the device, lately."""
    round_trip_seconds: float = 0.0
    """What a step and its result are on their way for, lately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """Queues, KV cache and workers."""

    num_waiting: int
    num_running: int
    num_preempted: int
    num_blocks: int
    num_free_blocks: int
    """Blocks that hold nothing of use."""
    num_cached_blocks: int
    """Blocks that no request holds and that the prefix cache can still serve."""
    kv_cache_usage_ratio: float
    num_prompt_tokens_total: int
    num_cached_tokens_total: int
    num_output_tokens_total: int
    num_finished_total: int
    num_preemptions_total: int
    workers: tuple[WorkerState, ...]
    uptime_seconds: float
