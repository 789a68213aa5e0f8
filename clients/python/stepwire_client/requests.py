"""What a caller asks for: prompt, sampling, stopping and output options as frozen values.

Every option of the protocol is here under its own name; unset means the server's default.
Knows nothing about protobuf, channels or streams.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypedDict, TypeVar, Unpack

from stepwire_client.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    """Usually "system", "user", "assistant" or "tool", as the model's template knows it."""
    content: str


Params = TypeVar("Params", "SamplingParams", "StopParams", "OutputParams")

Prompt = str | Sequence[int] | Sequence[ChatMessage | Mapping[str, str]]
"""Plain text, token ids, or a conversation (messages, or mappings with role and content)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen; None keeps the server's default."""

    temperature: float | None = None
    """0 is greedy. Range: [0, 100]. Default: 1."""
    top_k: int | None = None
    """Keeps the k likeliest; 0 keeps all. Default: 0."""
    top_p: float | None = None
    """Keeps the likeliest tokens that make up this probability. Range: (0, 1]. Default: 1."""
    min_p: float | None = None
    """Drops tokens below this share of the likeliest one's probability. Range: [0, 1]. Default: 0."""
    seed: int | None = None
    """Makes sampling repeatable: an unsigned 64-bit number. Default: drawn by the server."""
    presence_penalty: float | None = None
    """Range: [-2, 2]. Default: 0."""
    frequency_penalty: float | None = None
    """Range: [-2, 2]. Default: 0."""
    repetition_penalty: float | None = None
    """Range: (0, 100]. Default: 1."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logit of each token id. Values: [-100, 100]. At most 1,024 entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopParams:
    """When a generation ends."""

    stop: str | Sequence[str] = ()
    """The text ends at the earliest of these. At most 16 strings of 1 to 1,024 characters."""
    stop_token_ids: Sequence[int] = ()
    """Ids that end the generation, besides the model's own end-of-sequence ids. At most 64."""
    ignore_eos: bool = False
    """The model's own end-of-sequence ids do not end the generation."""
    min_tokens: int = 0
    """Nothing stops the generation before this many tokens."""
    max_tokens: int | None = None
    """The most tokens to generate. Default: up to the end of the context."""
    include_stop_str_in_output: bool = False
    """The matched stop string stays in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParams:
    """What is told about the output."""

    skip_special_tokens: bool | None = None
    """Special tokens are left out of the text. Default: True."""
    logprobs: int | None = None
    """How many of the likeliest tokens are told for each position, besides the sampled one's own
    log-probability. Range: [0, 20]. Default: no log-probabilities."""


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of one request: the fields of the dataclasses of this module.

    A plain option replaces the same field of the group it belongs to (``sampling_params``, ...).
    """

    sampling_params: SamplingParams
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float]
    stop_params: StopParams
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    max_tokens: int | None
    include_stop_str_in_output: bool
    output_params: OutputParams
    skip_special_tokens: bool | None
    logprobs: int | None
    request_id: str
    cache_salt: str
    priority: int | None
    template_arguments: Mapping[str, object] | None
    add_generation_prompt: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation, ready to be sent."""

    prompt: Prompt
    request_id: str = ""
    """Names the request for abort() and logs. Default: drawn when it is sent."""
    sampling_params: SamplingParams = SamplingParams()
    stop_params: StopParams = StopParams()
    output_params: OutputParams = OutputParams()
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    priority: int | None = None
    """Refused by the server until priority scheduling works."""
    template_arguments: Mapping[str, object] | None = None
    """Given to the chat template by name, for example {"enable_thinking": False} for Qwen3."""
    add_generation_prompt: bool | None = None
    """Whether a rendered conversation ends with the header of a new answer. Default: True."""

    @classmethod
    def of(cls, prompt: Prompt, **options: Unpack[RequestOptions]) -> Self:
        """Build a request from plain keyword options.

        Raises:
            InvalidRequest: if an option is unknown.
        """
        rest: dict[str, Any] = dict(options)
        sampling = _take_fields(rest, rest.pop("sampling_params", SamplingParams()))
        stopping = _take_fields(rest, rest.pop("stop_params", StopParams()))
        output = _take_fields(rest, rest.pop("output_params", OutputParams()))
        unknown = sorted(set(rest) - {item.name for item in fields(cls)})
        if unknown:
            raise InvalidRequest(f"unknown option: {', '.join(unknown)}")
        return cls(
            prompt=prompt, sampling_params=sampling, stop_params=stopping, output_params=output, **rest
        )


def _take_fields(rest: dict[str, Any], params: Params) -> Params:
    """Move the options that are fields of ``params`` out of ``rest``, into a copy of ``params``."""
    given = {item.name: rest.pop(item.name) for item in fields(params) if item.name in rest}
    return replace(params, **given)
