"""Checks what a client asked against every limit of protos/stepwire/v1/types.proto; pure.

Each refusal names the field by its full path, its value and the limit. Options that cannot be
honoured are refused, never ignored. Knows nothing about protobuf, the tokenizer or the engine.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from scheduler_svc.core.types import Int32Array, Int64Array
from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.tenants import ANYBODY, Tenant
from scheduler_svc.frontend.values import (
    AskedOutput,
    AskedRequest,
    AskedSampling,
    AskedStop,
    ChatInput,
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
_DEFAULT_MAX_PROMPT_BYTES = 8 * 1024 * 1024

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


def check_prompt_input(
    prompt: PromptInput | None, vocab_size: int, *, max_bytes: int = _DEFAULT_MAX_PROMPT_BYTES
) -> None:
    """Check a prompt as it was given, before it is rendered and tokenized.

    Raises:
        InvalidRequestError: if there is none, an empty or too long one, or ids outside the vocabulary.
    """
    match prompt:
        case None:
            raise InvalidRequestError.of("input", None, "be one of text, token_ids and chat")
        case TextInput(text=text):
            if not text:
                raise InvalidRequestError.of("text", text, "not be empty")
            _check_bytes("text", _num_bytes(text), max_bytes)
        case TokenIdsInput(token_ids=token_ids):
            if not len(token_ids):
                raise InvalidRequestError.of("token_ids.ids", [], "hold at least one token id")
            check_token_ids("token_ids.ids", token_ids, vocab_size=vocab_size)
        case ChatInput(messages=messages):
            if not messages:
                raise InvalidRequestError.of("chat.messages", [], "hold at least one message")
            _check_bytes("chat", _num_chat_bytes(prompt), max_bytes)
            for index, (role, _) in enumerate(messages):
                if not role:
                    raise InvalidRequestError.of(f"chat.messages[{index}].role", role, "not be empty")


def check_token_ids(field: str, token_ids: Int64Array, *, vocab_size: int) -> None:
    """Check that all ids are in the vocabulary.

    Raises:
        InvalidRequestError: naming the first that is not.
    """
    outside = np.flatnonzero((token_ids < 0) | (token_ids >= vocab_size))
    if len(outside):
        index = int(outside[0])
        raise _outside_vocabulary(f"{field}[{index}]", int(token_ids[index]), vocab_size)


def check_request(
    asked: AskedRequest, prompt_token_ids: Int32Array, *, limits: RequestLimits, tenant: Tenant = ANYBODY
) -> CheckedRequest:
    """Check what depends on the prompt's length; the rest is checked already, and who the tenant is.

    Raises:
        InvalidRequestError: if prompt and output cannot fit the context or the KV cache.
    """
    field = _prompt_field(asked.prompt)
    num_prompt_tokens = len(prompt_token_ids)
    if not num_prompt_tokens:
        raise InvalidRequestError.of(f"{field} as tokens", [], "not be empty")
    if limits.max_prompt_tokens and num_prompt_tokens > limits.max_prompt_tokens:
        limit_text = f"be at most max_prompt_tokens, {limits.max_prompt_tokens}"
        raise InvalidRequestError.of(f"number of tokens in {field}", num_prompt_tokens, limit_text)
    min_tokens, max_tokens = asked.stop.min_tokens, asked.stop.max_tokens
    capacities = {
        "max_model_len": limits.max_model_len,
        "KV cache": limits.max_pool_tokens,
        "tenant's quota": limits.max_quota_tokens,
    }
    for limit_name, limit in capacities.items():
        if limit:
            _check_room(field, num_prompt_tokens, max_tokens=max_tokens, limit=limit, limit_name=limit_name)
    room = min(filter(None, capacities.values())) - num_prompt_tokens
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
    _check_count("resume.token_ids", token_ids.tolist(), checked.max_output_tokens)
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
    _check_count("sampling.logit_bias", sampling.logit_bias, _MAX_BIASES)
    for token_id, bias in sampling.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise _outside_vocabulary("a key of sampling.logit_bias", token_id, vocab_size)
        if not -100 <= bias <= 100:
            raise InvalidRequestError.of(f"sampling.logit_bias[{token_id}]", bias, "be in [-100, 100]")


def _check_stop(stop: AskedStop, vocab_size: int) -> None:
    _check_count("stop.stop_strings", stop.stop_strings, _MAX_STOP_STRINGS)
    for index, stop_string in enumerate(stop.stop_strings):
        if not stop_string:
            raise InvalidRequestError.of(f"stop.stop_strings[{index}]", stop_string, "not be empty")
        _check_length(f"stop.stop_strings[{index}]", stop_string, _MAX_STOP_STRING_CHARACTERS)
    _check_count("stop.stop_token_ids", stop.stop_token_ids, _MAX_STOP_TOKEN_IDS)
    for index, token_id in enumerate(stop.stop_token_ids):
        if token_id >= vocab_size:
            raise _outside_vocabulary(f"stop.stop_token_ids[{index}]", token_id, vocab_size)
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


def _check_bytes(field: str, num_bytes: int, highest: int) -> None:
    if num_bytes > highest:
        raise InvalidRequestError.of(
            f"number of bytes in {field}", num_bytes, f"be at most max_prompt_bytes, {highest}"
        )


def _num_bytes(text: str) -> int:
    return len(text.encode())


def _num_chat_bytes(chat: ChatInput) -> int:
    texts = (text for message in chat.messages for text in message)
    return _num_bytes(chat.template_arguments_json) + sum(map(_num_bytes, texts))


def _check_count(field: str, entries: Collection[object], highest: int) -> None:
    if len(entries) > highest:
        raise InvalidRequestError.of(f"number of entries in {field}", len(entries), f"be at most {highest}")


def _outside_vocabulary(field: str, token_id: int, vocab_size: int) -> InvalidRequestError:
    return InvalidRequestError.of(field, token_id, f"be in [0, {vocab_size}), the vocabulary")


def _prompt_field(prompt: PromptInput | None) -> str:
    match prompt:
        case TextInput():
            return "text"
        case TokenIdsInput():
            return "token_ids"
        case _:
            return "chat"
