"""Checks what a client asked against every limit of protos/stepwire/v1/types.proto; pure.

Each refusal names the field by its full path, its value and the limit. Options that cannot be
honoured are refused, never ignored. Knows nothing about protobuf, the tokenizer, the engine or what a
prompt holds (prompt_check.py).
"""

from dataclasses import dataclass, replace

import numpy as np

from scheduler_svc.core.types import Int32Array
from scheduler_svc.errors import InvalidRequestError, WorkerUnavailableError
from scheduler_svc.frontend.prompt_check import (
    DEFAULT_MAX_PROMPT_BYTES,
    ENTRY_BYTES,
    check_token_ids,
    outside_vocabulary,
)
from scheduler_svc.frontend.tenants import ANYBODY, Tenant
from scheduler_svc.frontend.values import (
    AskedCounts,
    AskedOutput,
    AskedRequest,
    AskedSampling,
    AskedStop,
    CheckedRequest,
    PromptInput,
    TextInput,
    TokenIdsInput,
)

_MAX_REQUEST_ID_CHARACTERS = 128
_MAX_CACHE_SALT_CHARACTERS = 256
_MAX_BIASES = 1024
_MAX_STOP_STRINGS = 16
_MAX_STOP_STRING_CHARACTERS = 1024
_MAX_STOP_TOKEN_IDS = 64
_MAX_LOGPROBS = 20

# field -> lowest, highest, whether the lowest itself is allowed
_SAMPLING_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0, 100, True),
    "top_p": (0, 1, False),
    "min_p": (0, 1, True),
    "presence_penalty": (-2, 2, True),
    "frequency_penalty": (-2, 2, True),
    "repetition_penalty": (0, 100, False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What the model and the engine allow."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    """Most tokens of prompt and output together."""
    max_pool_tokens: int
    """Most tokens of one request that the KV cache can hold; 0 while no worker told it."""
    max_prompt_tokens: int = 0
    """Most tokens of a prompt; 0: as many as leave room for output."""
    max_quota_tokens: int = 0
    """Most tokens that the caller may have in flight at all; 0: as many as it likes."""
    num_unknown_groups: int = 0
    """Worker groups that have not told their limits yet: one of them may allow more."""
    widest_model_len: int = 0
    """Most tokens of prompt and output together on any group; counts where some group is unknown."""
    max_prompt_bytes: int = DEFAULT_MAX_PROMPT_BYTES
    """Most bytes of a prompt as text or chat."""

    def widest(self) -> "RequestLimits":
        """Return what some group may allow: these limits, where all groups have told theirs."""
        if not self.num_unknown_groups:
            return self
        return replace(self, max_model_len=self.widest_model_len, max_pool_tokens=0)

    def capacities(self) -> dict[str, int]:
        """Tell, by its name, each limit that is known and that prompt and output share, in tokens."""
        known = {
            "max_model_len": self.max_model_len,
            "KV cache": self.max_pool_tokens,
            "tenant's quota": self.max_quota_tokens,
        }
        return {name: limit for name, limit in known.items() if limit}


def check_counts(counts: AskedCounts, limits: RequestLimits) -> None:
    """Check how much there is of a message before any of it is read: a full one takes a second to read.

    Raises:
        InvalidRequestError: naming the first field that has more than any request may have.
    """
    limits = limits.widest()  # what only the groups known so far cannot take is told apart by check_request
    max_messages = limits.max_prompt_bytes // ENTRY_BYTES
    if counts.num_messages > max_messages:
        limit = f"be at most {max_messages}: each counts as {ENTRY_BYTES} bytes of max_prompt_bytes"
        raise InvalidRequestError.of("number of entries in chat.messages", counts.num_messages, limit)
    check_num_prompt_tokens("token_ids", counts.num_prompt_tokens, limits=limits)
    most_output = min(limits.capacities().values()) - 1
    _check_count("resume.token_ids", counts.num_resumed_tokens, most_output)
    _check_count("sampling.logit_bias", counts.num_biases, _MAX_BIASES)
    _check_count("stop.stop_strings", counts.num_stop_strings, _MAX_STOP_STRINGS)
    _check_count("stop.stop_token_ids", counts.num_stop_token_ids, _MAX_STOP_TOKEN_IDS)


def check_options(asked: AskedRequest, limits: RequestLimits) -> None:
    """Check all but the prompt.

    Raises:
        InvalidRequestError: naming the first field that does not fit.
    """
    check_request_id("request_id", asked.request_id)
    _check_length("cache_salt", asked.cache_salt, _MAX_CACHE_SALT_CHARACTERS)
    if asked.priority is not None:
        raise InvalidRequestError.of("priority", asked.priority, "be unset: priorities are not supported yet")
    _check_sampling(asked.sampling, limits.vocab_size)
    _check_stop(asked.stop, limits.vocab_size)
    _check_output(asked.output, limits.vocab_size)
    if asked.resume is not None:
        check_token_ids("resume.token_ids", asked.resume.token_ids, vocab_size=limits.vocab_size)


def check_request_id(field: str, request_id: str) -> None:
    """Check the length of an id, in ``field``, that a request has or that one is aborted by.

    Raises:
        InvalidRequestError: if no request can have it.
    """
    _check_length(field, request_id, _MAX_REQUEST_ID_CHARACTERS)


def check_aborted_id(field: str, request_id: str) -> None:
    """Check an id, in ``field``, to abort by: the engine remembers it for a while, whether known or not.

    Raises:
        InvalidRequestError: if it is empty, or so long that no request can have it.
    """
    if not request_id:
        raise InvalidRequestError.of(field, "", "not be empty")
    check_request_id(field, request_id)


def check_num_prompt_tokens(
    field: str, num_prompt_tokens: int, *, limits: RequestLimits, max_tokens: int | None = None
) -> None:
    """Check that a prompt of so many tokens leaves room for ``max_tokens`` of output; None: for one.

    Raises:
        InvalidRequestError: if it does not.
    """
    if limits.max_prompt_tokens and num_prompt_tokens > limits.max_prompt_tokens:
        limit_text = f"be at most max_prompt_tokens, {limits.max_prompt_tokens}"
        raise InvalidRequestError.of(f"number of tokens in {field}", num_prompt_tokens, limit_text)
    for limit_name, limit in limits.capacities().items():
        _check_room(field, num_prompt_tokens, max_tokens=max_tokens, limit=limit, limit_name=limit_name)


def check_request(
    asked: AskedRequest, prompt_token_ids: Int32Array, *, limits: RequestLimits, tenant: Tenant = ANYBODY
) -> CheckedRequest:
    """Check what depends on the prompt's length; the rest is checked already, and who the tenant is.

    Raises:
        InvalidRequestError: if prompt and output cannot fit the context or the KV cache.
        WorkerUnavailableError: if that is so of the worker groups that are known, and others may allow more.
    """
    try:
        return _check_lengths(asked, prompt_token_ids, limits=limits, tenant=tenant)
    except InvalidRequestError as error:
        if not limits.num_unknown_groups:
            raise
        refusal = error
    # What no group could ever take is refused for good.
    _check_lengths(asked, prompt_token_ids, limits=limits.widest(), tenant=tenant)
    raise WorkerUnavailableError.so_far(refusal, limits.num_unknown_groups) from refusal


def _check_lengths(
    asked: AskedRequest, prompt_token_ids: Int32Array, *, limits: RequestLimits, tenant: Tenant
) -> CheckedRequest:
    field = _prompt_field(asked.prompt)
    num_prompt_tokens = len(prompt_token_ids)
    if not num_prompt_tokens:
        raise InvalidRequestError.of(f"{field} as tokens", [], "not be empty")
    min_tokens, max_tokens = asked.stop.min_tokens, asked.stop.max_tokens
    check_num_prompt_tokens(field, num_prompt_tokens, limits=limits, max_tokens=max_tokens)
    room = min(limits.capacities().values()) - num_prompt_tokens
    if max_tokens is None and min_tokens > room:
        limit_text = f"be at most {room}, what is left of the context"
        raise InvalidRequestError.of("stop.min_tokens", min_tokens, limit_text)
    eos_token_ids = () if asked.stop.ignores_eos else limits.eos_token_ids
    checked = CheckedRequest(
        request_id=asked.request_id,
        prompt_token_ids=prompt_token_ids,
        asked=asked,
        stop_token_ids=tuple(dict.fromkeys((*asked.stop.stop_token_ids, *eos_token_ids))),
        max_output_tokens=max_tokens or room,
        tenant=tenant,
    )
    _check_resume(checked)
    return checked


def _check_resume(checked: CheckedRequest) -> None:
    """Refuse output that this request could not have: too long, or going on after its end."""
    if checked.asked.resume is None:
        return
    token_ids = checked.asked.resume.token_ids
    _check_count("resume.token_ids", len(token_ids), checked.max_output_tokens)
    earlier = token_ids[checked.asked.stop.min_tokens : -1]
    stops = np.flatnonzero(np.isin(earlier, checked.stop_token_ids))
    if len(stops):
        index = checked.asked.stop.min_tokens + int(stops[0])
        limit = "be the last one, because it ends the request"
        raise InvalidRequestError.of(f"resume.token_ids[{index}]", int(token_ids[index]), limit)


def _check_room(
    field: str, num_prompt_tokens: int, *, max_tokens: int | None, limit: int, limit_name: str
) -> None:
    room = limit - num_prompt_tokens
    shared = f"prompt and output share the {limit_name}, {limit} tokens"
    if room < 1:
        limit_text = f"be at most {limit - 1}: {shared}"
        raise InvalidRequestError.of(f"number of tokens in {field}", num_prompt_tokens, limit_text)
    if max_tokens is not None and max_tokens > room:
        limit_text = f"be at most {room} after a prompt of {num_prompt_tokens} tokens: {shared}"
        raise InvalidRequestError.of("stop.max_tokens", max_tokens, limit_text)


def _check_sampling(sampling: AskedSampling, vocab_size: int) -> None:
    for name, (lowest, highest, is_lowest_allowed) in _SAMPLING_RANGES.items():
        value = getattr(sampling, name)
        # Written so that NaN fails too.
        if not (lowest <= value <= highest) or (value == lowest and not is_lowest_allowed):
            bracket = "[" if is_lowest_allowed else "("
            raise InvalidRequestError.of(f"sampling.{name}", value, f"be in {bracket}{lowest}, {highest}]")
    if sampling.top_k > vocab_size:
        raise InvalidRequestError.of("sampling.top_k", sampling.top_k, f"be in [0, {vocab_size}]")
    _check_count("sampling.logit_bias", len(sampling.logit_bias), _MAX_BIASES)
    for token_id, bias in sampling.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise outside_vocabulary("a key of sampling.logit_bias", token_id, vocab_size=vocab_size)
        if not -100 <= bias <= 100:
            raise InvalidRequestError.of(f"sampling.logit_bias[{token_id}]", bias, "be in [-100, 100]")


def _check_stop(stop: AskedStop, vocab_size: int) -> None:
    _check_count("stop.stop_strings", len(stop.stop_strings), _MAX_STOP_STRINGS)
    for index, stop_string in enumerate(stop.stop_strings):
        if not stop_string:
            raise InvalidRequestError.of(f"stop.stop_strings[{index}]", stop_string, "not be empty")
        _check_length(f"stop.stop_strings[{index}]", stop_string, _MAX_STOP_STRING_CHARACTERS)
    _check_count("stop.stop_token_ids", len(stop.stop_token_ids), _MAX_STOP_TOKEN_IDS)
    for index, token_id in enumerate(stop.stop_token_ids):
        if token_id >= vocab_size:
            raise outside_vocabulary(f"stop.stop_token_ids[{index}]", token_id, vocab_size=vocab_size)
    if stop.max_tokens is not None:
        if stop.max_tokens < 1:
            raise InvalidRequestError.of("stop.max_tokens", stop.max_tokens, "be at least 1")
        if stop.min_tokens > stop.max_tokens:
            limit = f"be at most stop.max_tokens, {stop.max_tokens}"
            raise InvalidRequestError.of("stop.min_tokens", stop.min_tokens, limit)


def _check_output(output: AskedOutput, vocab_size: int) -> None:
    highest = min(_MAX_LOGPROBS, vocab_size)
    if output.num_logprobs is not None and not 0 <= output.num_logprobs <= highest:
        raise InvalidRequestError.of("output.num_logprobs", output.num_logprobs, f"be in [0, {highest}]")


def _check_length(field: str, text: str, highest: int) -> None:
    if len(text) > highest:
        # Of a long text the length is told: the text itself would flood logs and trailers.
        raise InvalidRequestError.of(f"number of characters in {field}", len(text), f"be at most {highest}")


def _check_count(field: str, num_entries: int, highest: int) -> None:
    if num_entries > highest:
        raise InvalidRequestError.of(f"number of entries in {field}", num_entries, f"be at most {highest}")


def _prompt_field(prompt: PromptInput | None) -> str:
    match prompt:
        case TextInput():
            return "text"
        case TokenIdsInput():
            return "token_ids"
        case _:
            return "chat"
