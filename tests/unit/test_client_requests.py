"""Options of the client: each one reaches its own field of the protocol, and nothing else changes."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire_client import (
    ChatMessage,
    GenerationRequest,
    InvalidRequest,
    OutputParams,
    RequestOptions,
    SamplingParams,
    StopParams,
)
from stepwire_client.encode import encode_detokenize, encode_request, encode_tokenize

SAMPLING = types_pb.SamplingParams
STOP = types_pb.StopParams
OUTPUT = types_pb.OutputParams


def request_pb(**parts: Any) -> service_pb.GenerateRequest:
    """Return the message of the prompt "hi" with these parts instead of the empty ones."""
    all_parts: dict[str, Any] = {
        "text": "hi",
        "sampling": SAMPLING(),
        "stop": STOP(),
        "output": OUTPUT(),
        **parts,
    }
    return service_pb.GenerateRequest(**all_parts)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, request_pb()),
        ({"temperature": 0.0}, request_pb(sampling=SAMPLING(temperature=0.0))),
        ({"temperature": 0.5}, request_pb(sampling=SAMPLING(temperature=0.5))),
        ({"top_k": 0}, request_pb(sampling=SAMPLING(top_k=0))),
        ({"top_p": 0.25}, request_pb(sampling=SAMPLING(top_p=0.25))),
        ({"min_p": 0.125}, request_pb(sampling=SAMPLING(min_p=0.125))),
        ({"seed": 0}, request_pb(sampling=SAMPLING(seed=0))),
        ({"seed": 2**64 - 1}, request_pb(sampling=SAMPLING(seed=2**64 - 1))),
        ({"presence_penalty": -2.0}, request_pb(sampling=SAMPLING(presence_penalty=-2.0))),
        ({"frequency_penalty": 1.5}, request_pb(sampling=SAMPLING(frequency_penalty=1.5))),
        ({"repetition_penalty": 1.25}, request_pb(sampling=SAMPLING(repetition_penalty=1.25))),
        ({"logit_bias": {70_000: -100.0}}, request_pb(sampling=SAMPLING(logit_bias={70_000: -100.0}))),
        ({"stop": "end"}, request_pb(stop=STOP(stop_strings=["end"]))),
        ({"stop": ["a", "b"]}, request_pb(stop=STOP(stop_strings=["a", "b"]))),
        ({"stop_token_ids": [2, 70_000]}, request_pb(stop=STOP(stop_token_ids=[2, 70_000]))),
        ({"ignore_eos": True}, request_pb(stop=STOP(ignore_eos=True))),
        ({"min_tokens": 3}, request_pb(stop=STOP(min_tokens=3))),
        ({"max_tokens": 9}, request_pb(stop=STOP(max_tokens=9))),
        ({"include_stop_str_in_output": True}, request_pb(stop=STOP(include_stop_str_in_output=True))),
        ({"skip_special_tokens": False}, request_pb(output=OUTPUT(skip_special_tokens=False))),
        ({"logprobs": 0}, request_pb(output=OUTPUT(num_logprobs=0))),
        ({"logprobs": 20}, request_pb(output=OUTPUT(num_logprobs=20))),
        ({"request_id": "r1"}, request_pb(request_id="r1")),
        ({"cache_salt": "tenant"}, request_pb(cache_salt="tenant")),
        ({"priority": 0}, request_pb(priority=0)),
    ],
)
def test_each_option_sets_its_own_field(
    options: RequestOptions, expected: service_pb.GenerateRequest
) -> None:
    assert encode_request(GenerationRequest.of("hi", **options)) == expected


def test_every_field_of_the_protocol_has_an_option_and_every_option_a_field() -> None:
    message_fields = {
        descriptor.name
        for message in (SAMPLING, STOP, OUTPUT, service_pb.GenerateRequest)
        for descriptor in message.DESCRIPTOR.fields
    }
    chat_fields = {descriptor.name for descriptor in types_pb.ChatInput.DESCRIPTOR.fields}
    # The client resumes by itself. The input is the prompt argument; messages are grouped in the
    # protocol as the dataclasses are here.
    named_alike = (message_fields | chat_fields) - {"text", "token_ids", "chat", "messages", "resume"}
    renamed = {
        "stop_strings": "stop",
        "num_logprobs": "logprobs",
        "template_arguments_json": "template_arguments",
        "sampling": "sampling_params",
        "output": "output_params",
    }
    options = {renamed.get(name, name) for name in named_alike} | {"stop_params"}
    assert set(RequestOptions.__annotations__) == options
    flat = {item.name for params in (SamplingParams, StopParams, OutputParams) for item in fields(params)}
    assert flat | {item.name for item in fields(GenerationRequest)} - {"prompt"} == options


def test_a_plain_option_replaces_the_field_of_its_group() -> None:
    request = GenerationRequest.of(
        "hi",
        sampling_params=SamplingParams(temperature=0.5, top_k=3),
        temperature=0.25,
        stop_params=StopParams(max_tokens=4),
        min_tokens=2,
        output_params=OutputParams(logprobs=1),
        skip_special_tokens=False,
    )
    assert request.sampling_params == SamplingParams(temperature=0.25, top_k=3)
    assert request.stop_params == StopParams(max_tokens=4, min_tokens=2)
    assert request.output_params == OutputParams(logprobs=1, skip_special_tokens=False)


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"^unknown option: best_of, temprature$"):
        GenerationRequest.of("hi", temprature=1.0, best_of=2)  # type: ignore[call-arg]


def test_token_ids_are_taken_as_they_are() -> None:
    message = encode_request(GenerationRequest.of([0, 151_935]))
    assert message.WhichOneof("input") == "token_ids"
    assert list(message.token_ids.ids) == [0, 151_935]


def test_empty_prompts_are_left_to_the_server() -> None:
    assert encode_request(GenerationRequest.of([])).WhichOneof("input") == "token_ids"
    assert encode_request(GenerationRequest.of("")).WhichOneof("input") == "text"


def test_a_conversation_carries_messages_and_template_arguments() -> None:
    messages: list[ChatMessage | Mapping[str, str]] = [
        ChatMessage(role="system", content="Be brief."),
        {"role": "user", "content": "Hi"},
    ]
    request = GenerationRequest.of(
        messages,
        template_arguments={"enable_thinking": False},
        add_generation_prompt=False,
    )
    expected = types_pb.ChatInput(
        messages=[
            types_pb.ChatMessage(role="system", content="Be brief."),
            types_pb.ChatMessage(role="user", content="Hi"),
        ],
        add_generation_prompt=False,
        template_arguments_json='{"enable_thinking": false}',
    )
    assert encode_request(request).chat == expected
    assert encode_tokenize(request) == service_pb.TokenizeRequest(chat=expected)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("hi", {"top_k": -1}, "top_k is -1, but must be a whole number in [0, 4294967295]"),
        (
            "hi",
            {"max_tokens": 2**32},
            "max_tokens is 4294967296, but must be a whole number in [0, 4294967295]",
        ),
        ("hi", {"seed": -1}, "seed is -1, but must be a whole number in [0, 18446744073709551615]"),
        ("hi", {"seed": 1.5}, "seed is 1.5, but must be a whole number in [0, 18446744073709551615]"),
        ("hi", {"priority": 2**31}, "priority is 2147483648, but must be a whole number in [-2147483648, 2"),
        ("hi", {"ignore_eos": "x"}, "ignore_eos is 'x', but cannot be sent: "),
        ("hi", {"temperature": "hot"}, "temperature is 'hot', but must be a number"),
        ("hi", {"logit_bias": {-1: 0.0}}, "logit_bias is {-1: 0.0}, but cannot be sent: "),
        (
            "hi",
            {"stop_token_ids": [-2]},
            "stop_token_ids is [-2], but must hold whole numbers in [0, 4294967295]",
        ),
        ("hi", {"stop": [1]}, "stop is [1], but cannot be sent: "),
        ("hi", {"logprobs": -1}, "logprobs is -1, but must be a whole number in [0, 4294967295]"),
        ([-1], {}, "prompt is [-1], but must hold whole numbers in [0, 4294967295]"),
        ([1.5], {}, "prompt is [1.5], but must hold whole numbers in [0, 4294967295]"),
        (b"hi", {}, "prompt is b'hi', but must be text, token ids or chat messages"),
        (None, {}, "prompt is None, but must be text, token ids or chat messages"),
        ({"role": "user"}, {}, "prompt is {'role': 'user'}, but must be text, token ids or chat messages"),
        (
            "hi",
            {"template_arguments": {}},
            "template_arguments is {}, but must be left out where the",
        ),
        ([1], {"add_generation_prompt": True}, "add_generation_prompt is True, but must be left out where"),
        (
            [{"role": "user"}],
            {},
            "prompt[0] is {'role': 'user'}, but cannot be sent: has the keys",
        ),
        (
            [{"role": "user", "content": [{}]}],
            {},
            "prompt[0] is {'role': 'user', 'content': [{}]}, but cannot be sent: content is of type list",
        ),
        (
            [{"role": "user", "content": ""}],
            {"template_arguments": {"a": object}},
            "template_arguments is {'a': <class 'object'>}, but cannot be sent: ",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_by_field(
    prompt: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_request(GenerationRequest.of(prompt, **options))  # type: ignore[arg-type]
    assert caught.value.message.startswith(message)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_request(GenerationRequest.of([1] * 1000 + [-1]))
    assert len(caught.value.message) < 250


def test_token_ids_are_not_tokenized_again() -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt is \[1\], but must be text or chat messages$"):
        encode_tokenize(GenerationRequest.of([1]))
    assert encode_tokenize(GenerationRequest.of("hi")) == service_pb.TokenizeRequest(text="hi")


def test_detokenize_request() -> None:
    expected = service_pb.DetokenizeRequest(token_ids=[1, 70_000], skip_special_tokens=True)
    assert encode_detokenize([1, 70_000], skip_special_tokens=True) == expected
    with pytest.raises(InvalidRequest, match=r"^token_ids is \[-1\], but must hold whole numbers"):
        encode_detokenize([-1], skip_special_tokens=False)
