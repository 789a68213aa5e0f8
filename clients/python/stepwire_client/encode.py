"""Requests to protobuf.

Knows nothing about channels or streams. Ranges are the server's to check; only what the protocol cannot
carry at all is refused here, naming the field.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb

from stepwire_client.errors import InvalidRequest
from stepwire_client.requests import (
    ChatMessage,
    GenerationRequest,
    OutputParams,
    Prompt,
    SamplingParams,
    StopParams,
)

_OPTIONAL_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)

_UINT32 = "must be a whole number in [0, 4294967295]"
_TOKEN_IDS = "must hold whole numbers in [0, 4294967295]"
_LIMIT_OF_TYPE = {
    FieldDescriptor.CPPTYPE_INT32: "must be a whole number in [-2147483648, 2147483647]",
    FieldDescriptor.CPPTYPE_UINT32: _UINT32,
    FieldDescriptor.CPPTYPE_UINT64: "must be a whole number in [0, 18446744073709551615]",
    FieldDescriptor.CPPTYPE_FLOAT: "must be a number",
    FieldDescriptor.CPPTYPE_DOUBLE: "must be a number",
}
"""What the protocol can carry, where its own word for it tells no limit."""


def encode_request(request: GenerationRequest) -> service_pb.GenerateRequest:
    """Turn ``request`` into the message of Generate.

    Raises:
        InvalidRequest: if a value has a type or size that the protocol cannot carry.
    """
    message = service_pb.GenerateRequest(
        sampling=_encode_sampling(request.sampling_params),
        stop=_encode_stop(request.stop_params),
        output=_encode_output(request.output_params),
    )
    _set(message, "request_id", request.request_id)
    _set(message, "cache_salt", request.cache_salt)
    _set_optional(message, "priority", request.priority)
    _fill_input(message, request)
    return message


def encode_tokenize(request: GenerationRequest) -> service_pb.TokenizeRequest:
    """Turn the input of ``request``, text or a conversation, into the message of Tokenize.

    Raises:
        InvalidRequest: if the prompt is token ids already, or cannot be carried.
    """
    message = service_pb.TokenizeRequest()
    if not isinstance(request.prompt, str) and not _is_conversation(request.prompt):
        raise _refuse("prompt", request.prompt, "must be text or chat messages")
    _fill_input(message, request)
    return message


def encode_detokenize(token_ids: Sequence[int], *, skip_special_tokens: bool) -> service_pb.DetokenizeRequest:
    """Turn ``token_ids`` into the message of Detokenize."""
    message = service_pb.DetokenizeRequest(skip_special_tokens=skip_special_tokens)
    with _carrying("token_ids", token_ids, _TOKEN_IDS):
        message.token_ids.extend(token_ids)
    return message


def _encode_sampling(params: SamplingParams) -> types_pb.SamplingParams:
    message = types_pb.SamplingParams()
    for name in _OPTIONAL_SAMPLING_FIELDS:
        _set_optional(message, name, getattr(params, name))
    with _carrying("logit_bias", params.logit_bias):
        message.logit_bias.update(params.logit_bias)
    return message


def _encode_stop(params: StopParams) -> types_pb.StopParams:
    message = types_pb.StopParams()
    # A lone string is a sequence of strings too, of its characters.
    strings = (params.stop,) if isinstance(params.stop, str) else params.stop
    with _carrying("stop", strings):
        message.stop_strings.extend(strings)
    with _carrying("stop_token_ids", params.stop_token_ids, _TOKEN_IDS):
        message.stop_token_ids.extend(params.stop_token_ids)
    _set(message, "ignore_eos", params.ignore_eos)
    _set(message, "min_tokens", params.min_tokens)
    _set_optional(message, "max_tokens", params.max_tokens)
    _set(message, "include_stop_str_in_output", params.include_stop_str_in_output)
    return message


def _encode_output(params: OutputParams) -> types_pb.OutputParams:
    message = types_pb.OutputParams()
    _set_optional(message, "skip_special_tokens", params.skip_special_tokens)
    if params.logprobs is not None:
        with _carrying("logprobs", params.logprobs, _UINT32):
            message.num_logprobs = params.logprobs
    return message


def _fill_input(
    message: service_pb.GenerateRequest | service_pb.TokenizeRequest, request: GenerationRequest
) -> None:
    prompt = request.prompt
    if _is_conversation(prompt):
        message.chat.CopyFrom(_encode_chat(request))
        return
    _refuse_chat_options(request)
    if isinstance(prompt, str):
        _set(message, "text", prompt)
        return
    assert isinstance(message, service_pb.GenerateRequest), "encode_tokenize refuses token ids"
    message.token_ids.SetInParent()  # an empty prompt is the server's to refuse
    with _carrying("prompt", prompt, _TOKEN_IDS):
        message.token_ids.ids.extend(cast(Sequence[int], prompt))


def _is_conversation(prompt: Prompt) -> bool:
    # Bytes are a sequence of numbers, but never meant as token ids.
    is_sequence = hasattr(prompt, "__len__") and hasattr(prompt, "__getitem__")
    if isinstance(prompt, (bytes, bytearray, Mapping)) or not is_sequence:
        raise _refuse("prompt", prompt, "must be text, token ids or chat messages")
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], (ChatMessage, Mapping))


def _encode_chat(request: GenerationRequest) -> types_pb.ChatInput:
    message = types_pb.ChatInput()
    for index, item in enumerate(cast(Sequence[ChatMessage | Mapping[str, str]], request.prompt)):
        with _carrying(f"prompt[{index}]", item):
            message.messages.append(_encode_chat_message(item))
    _set_optional(message, "add_generation_prompt", request.add_generation_prompt)
    if request.template_arguments is not None:
        with _carrying("template_arguments", request.template_arguments):
            message.template_arguments_json = json.dumps(dict(request.template_arguments))
    return message


def _encode_chat_message(item: ChatMessage | Mapping[str, str]) -> types_pb.ChatMessage:
    if not isinstance(item, ChatMessage):
        if set(item) != {"role", "content"}:
            raise ValueError(f"has the keys {sorted(item)}, but must have role and content")
        item = ChatMessage(role=item["role"], content=item["content"])
    for name, value in (("role", item.role), ("content", item.content)):
        if not isinstance(value, str):
            raise TypeError(f"{name} is of type {type(value).__name__}, but must be text")
    return types_pb.ChatMessage(role=item.role, content=item.content)


def _refuse_chat_options(request: GenerationRequest) -> None:
    for name in ("template_arguments", "add_generation_prompt"):
        value = getattr(request, name)
        if value is not None:
            raise _refuse(name, value, "must be left out where the prompt is no conversation")


def _set_optional(message: Message, name: str, value: object) -> None:
    if value is not None:
        _set(message, name, value)


def _set(message: Message, name: str, value: object) -> None:
    try:
        setattr(message, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        limit = _LIMIT_OF_TYPE.get(message.DESCRIPTOR.fields_by_name[name].cpp_type)
        raise _refuse(name, value, limit or f"cannot be sent: {error}") from error


@contextmanager
def _carrying(name: str, value: object, limit: str = "") -> Iterator[None]:
    """Name the field, and the limit where one is given, when protobuf or JSON cannot carry its value."""
    try:
        yield
    except (TypeError, ValueError, AttributeError) as error:
        raise _refuse(name, value, limit or f"cannot be sent: {error}") from error


def _refuse(name: str, value: object, limit: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is {_shorten(repr(value))}, but {limit}")


def _shorten(text: str) -> str:
    """Keep a whole prompt out of an error message."""
    return text if len(text) <= 100 else f"{text[:97]}..."
