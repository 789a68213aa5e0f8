"""The front end's own words: what a client asked, what was checked, what is told.

Plain frozen values between the protobuf edge (convert.py) and the pure parts. Knows nothing about
gRPC, protobuf or the tokenizer.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from scheduler_svc.core.types import FinishReason, Int32Array, Int64Array
from scheduler_svc.frontend.tenants import ANYBODY, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class TextInput:
    """A prompt as plain text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenIdsInput:
    """A prompt as token ids, not yet checked."""

    token_ids: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """A conversation: (role, content) pairs, oldest first."""

    messages: tuple[tuple[str, str], ...]
    adds_generation_prompt: bool = True
    template_arguments_json: str = ""


PromptInput = TextInput | TokenIdsInput | ChatInput


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSampling:
    """How tokens shall be chosen; ranges as in stepwire.v1.SamplingParams."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedStop:
    """When the generation shall end; ranges as in stepwire.v1.StopParams."""

    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignores_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    """None: up to the end of the context."""
    includes_stop_string: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedOutput:
    """What shall be told."""

    skips_special_tokens: bool = True
    num_logprobs: int | None = None
    """None: no log-probabilities; 0: the sampled token's own only."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AskedResume:
    """Where a broken stream had got to, not yet checked."""

    token_ids: Int64Array
    """Output that was told."""
    num_text_bytes: int | None = None
    """How much text was told, in UTF-8; None: as much as the tokens make certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCounts:
    """How many entries the fields of a client's message have, known before any is read."""

    num_messages: int = 0
    num_prompt_tokens: int = 0
    """As ids: those of text and chat are known later."""
    num_resumed_tokens: int = 0
    num_biases: int = 0
    num_stop_strings: int = 0
    num_stop_token_ids: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRequest:
    """One generation as a client asked for it; unset fields hold their defaults."""

    request_id: str = ""
    prompt: PromptInput | None = None
    sampling: AskedSampling = field(default_factory=AskedSampling)
    stop: AskedStop = field(default_factory=AskedStop)
    output: AskedOutput = field(default_factory=AskedOutput)
    cache_salt: str = ""
    priority: int | None = None
    resume: AskedResume | None = None
    """Set where the request goes on after a broken stream."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CheckedRequest:
    """A request that fits every limit, with its prompt as token ids."""

    request_id: str
    prompt_token_ids: Int32Array
    asked: AskedRequest
    stop_token_ids: tuple[int, ...]
    """The client's, and the model's end-of-sequence ids unless they are ignored."""
    max_output_tokens: int
    """Most tokens of output, as far as the limits are known; those of ``resume`` are among them."""
    tenant: Tenant = ANYBODY
    """Whose it is: within a tenant, ids are unique and prefixes are shared."""
    traceparent: str = ""
    """What the engine's spans of it belong under; empty where it is not traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of one position: the sampled token first, then the likeliest."""

    token_ids: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New output since the last one."""

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    """One a token where they were asked for, else empty."""


class RequestStatus(Enum):
    """What a live request does, where something is told of it."""

    WAITING_FOR_WORKER = auto()
    RUNNING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the engine ended a request that is no error."""

    reason: FinishReason
    matched_stop_token_id: int | None = None
    num_cached_tokens: int = 0
    queue_time_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The end of a request that is no error."""

    reason: FinishReason
    matched_stop_string: str | None = None
    matched_stop_token_id: int | None = None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    queue_time_ns: int
    first_token_time_ns: int
    """From arrival to the first token; 0 where there was none."""
    total_time_ns: int


Output = Delta | RequestStatus | Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One message to a client about one of its requests."""

    request_id: str
    output: Output
    seed: int | None
    """The request's seed, in its first message only."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """As far as the engine told yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the engine tells of itself when it changes."""

    is_ready: bool
    """Whether some worker group takes steps now."""
    reason: str = ""
    """Why not, where it does not."""
    max_model_len: int = 0
    """Most tokens of one request; 0 before the first worker came."""
    max_pool_tokens: int = 0
    """Most tokens of one request that the KV cache can hold; 0 before the first worker came."""
    num_unknown_groups: int = 0
    """Worker groups that have not told their limits yet: one of them may allow more."""
    serving_workers: frozenset[str] = frozenset()
    """Addresses of the worker groups that take steps now."""
