"""Every limit of a request: each bad input gets a message that names field, value and limit."""

import math
from typing import Any

import numpy as np
import pytest
from stepwire.v1 import generation_service_pb2 as pb

from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend import convert
from scheduler_svc.frontend.prompt_check import check_prompt_input
from scheduler_svc.frontend.request_check import RequestLimits, check_options, check_request
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

VOCAB_SIZE = 100_000
LIMITS = RequestLimits(vocab_size=VOCAB_SIZE, eos_token_ids=(7, 8), max_model_len=64, max_pool_tokens=48)
NAN, INF = math.nan, math.inf


def check(asked: AskedRequest, num_prompt_tokens: int = 4, limits: RequestLimits = LIMITS) -> CheckedRequest:
    check_options(asked, limits)
    return check_request(asked, np.arange(num_prompt_tokens, dtype=np.int32), limits=limits)


def ids(*token_ids: int) -> TokenIdsInput:
    return TokenIdsInput(token_ids=np.array(token_ids, np.int64))


# ---- what is refused: (where, the value, the whole message) ----

BAD_SAMPLING: list[tuple[str, Any, str]] = [
    ("temperature", -0.5, "sampling.temperature is -0.5, but must be in [0, 100]"),
    ("temperature", 100.5, "sampling.temperature is 100.5, but must be in [0, 100]"),
    ("temperature", NAN, "sampling.temperature is nan, but must be in [0, 100]"),
    ("temperature", INF, "sampling.temperature is inf, but must be in [0, 100]"),
    ("top_k", VOCAB_SIZE + 1, "sampling.top_k is 100001, but must be in [0, 100000]"),
    ("top_p", 0.0, "sampling.top_p is 0.0, but must be in (0, 1]"),
    ("top_p", 1.5, "sampling.top_p is 1.5, but must be in (0, 1]"),
    ("top_p", NAN, "sampling.top_p is nan, but must be in (0, 1]"),
    ("min_p", -0.5, "sampling.min_p is -0.5, but must be in [0, 1]"),
    ("min_p", 1.5, "sampling.min_p is 1.5, but must be in [0, 1]"),
    ("min_p", NAN, "sampling.min_p is nan, but must be in [0, 1]"),
    ("presence_penalty", -2.5, "sampling.presence_penalty is -2.5, but must be in [-2, 2]"),
    ("presence_penalty", INF, "sampling.presence_penalty is inf, but must be in [-2, 2]"),
    ("frequency_penalty", 2.5, "sampling.frequency_penalty is 2.5, but must be in [-2, 2]"),
    ("frequency_penalty", NAN, "sampling.frequency_penalty is nan, but must be in [-2, 2]"),
    ("repetition_penalty", 0.0, "sampling.repetition_penalty is 0.0, but must be in (0, 100]"),
    ("repetition_penalty", 101.0, "sampling.repetition_penalty is 101.0, but must be in (0, 100]"),
    ("repetition_penalty", -INF, "sampling.repetition_penalty is -inf, but must be in (0, 100]"),
    ("logit_bias", ((100_000, 1.0),),
     "a key of sampling.logit_bias is 100000, but must be in [0, 100000), the vocabulary"),
    ("logit_bias", ((5, 100.5),), "sampling.logit_bias[5] is 100.5, but must be in [-100, 100]"),
    ("logit_bias", ((5, NAN),), "sampling.logit_bias[5] is nan, but must be in [-100, 100]"),
    ("logit_bias", ((5, -INF),), "sampling.logit_bias[5] is -inf, but must be in [-100, 100]"),
    ("logit_bias", tuple((token_id, 1.0) for token_id in range(1025)),
     "number of entries in sampling.logit_bias is 1025, but must be at most 1024"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), BAD_SAMPLING)
def test_bad_sampling_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(AskedRequest(sampling=AskedSampling(**{field: value})))
    assert str(caught.value) == message


BAD_STOP: list[tuple[dict[str, Any], str]] = [
    ({"stop_strings": ("x",) * 17}, "number of entries in stop.stop_strings is 17, but must be at most 16"),
    ({"stop_strings": ("a", "")}, "stop.stop_strings[1] is '', but must not be empty"),
    ({"stop_strings": ("a" * 1025,)},
     "number of characters in stop.stop_strings[0] is 1025, but must be at most 1024"),
    ({"stop_token_ids": (1,) * 65}, "number of entries in stop.stop_token_ids is 65, but must be at most 64"),
    ({"stop_token_ids": (1, 100_000)},
     "stop.stop_token_ids[1] is 100000, but must be in [0, 100000), the vocabulary"),
    ({"max_tokens": 0}, "stop.max_tokens is 0, but must be at least 1"),
    ({"min_tokens": 6, "max_tokens": 5}, "stop.min_tokens is 6, but must be at most stop.max_tokens, 5"),
    ({"min_tokens": 61}, "stop.min_tokens is 61, but must be at most 44, what is left of the context"),
    ({"max_tokens": 61},
     "stop.max_tokens is 61, but must be at most 60 after a prompt of 4 tokens: "
     "prompt and output share the max_model_len, 64 tokens"),
    ({"max_tokens": 45},
     "stop.max_tokens is 45, but must be at most 44 after a prompt of 4 tokens: "
     "prompt and output share the KV cache, 48 tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), BAD_STOP)
def test_bad_stop_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(AskedRequest(stop=AskedStop(**fields)))
    assert str(caught.value) == message


BAD_REQUEST: list[tuple[AskedRequest, str]] = [
    (
        AskedRequest(request_id="r" * 129),
        "number of characters in request_id is 129, but must be at most 128",
    ),
    (
        AskedRequest(cache_salt="s" * 257),
        "number of characters in cache_salt is 257, but must be at most 256",
    ),
    (AskedRequest(priority=0), "priority is 0, but must be unset: priorities are not supported yet"),
    (AskedRequest(output=AskedOutput(num_logprobs=21)), "output.num_logprobs is 21, but must be in [0, 20]"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "message"), BAD_REQUEST)
def test_other_bad_fields_are_refused(asked: AskedRequest, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(asked)
    assert str(caught.value) == message


BAD_PROMPT: list[tuple[PromptInput | None, str]] = [
    (None, "input is None, but must be one of text, token_ids and chat"),
    (TextInput(text=""), "text is '', but must not be empty"),
    (ids(), "token_ids.ids is [], but must hold at least one token id"),
    (ids(1, 100_000), "token_ids.ids[1] is 100000, but must be in [0, 100000), the vocabulary"),
    (ids(1, 4_294_967_295), "token_ids.ids[1] is 4294967295, but must be in [0, 100000), the vocabulary"),
    (ChatInput(messages=()), "chat.messages is [], but must hold at least one message"),
    (ChatInput(messages=(("user", "x"), ("", "y"))), "chat.messages[1].role is '', but must not be empty"),
]


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPT)
def test_bad_prompts_are_refused(prompt: PromptInput | None, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt_input(prompt, VOCAB_SIZE)
    assert str(caught.value) == message


def test_a_prompt_that_has_no_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^text as tokens is \[\], but must not be empty$"):
        check(AskedRequest(prompt=TextInput(text="\u200b")), 0)


@pytest.mark.parametrize(
    ("prompt", "num_tokens", "message"),
    [
        (TextInput(text="x"), 64, "number of tokens in text is 64, but must be at most 63: "
         "prompt and output share the max_model_len, 64 tokens"),
        (ids(1), 48, "number of tokens in token_ids is 48, but must be at most 47: "
         "prompt and output share the KV cache, 48 tokens"),
        (ChatInput(messages=(("user", "x"),)), 1000,
         "number of tokens in chat is 1000, but must be at most 63: "
         "prompt and output share the max_model_len, 64 tokens"),
    ],
)  # fmt: skip
def test_a_prompt_that_cannot_fit_is_refused(prompt: PromptInput, num_tokens: int, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check(AskedRequest(prompt=prompt), num_tokens)
    assert str(caught.value) == message


# ---- what is taken ----


@pytest.mark.parametrize(
    "sampling",
    [
        AskedSampling(),
        AskedSampling(temperature=0.0, top_k=VOCAB_SIZE, top_p=1.0, min_p=1.0),
        AskedSampling(
            temperature=100.0, presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=100.0
        ),
        AskedSampling(logit_bias=((0, -100.0), (99_999, 100.0)), seed=2**64 - 1, top_p=1e-6),
    ],
)
def test_the_limits_themselves_are_taken(sampling: AskedSampling) -> None:
    assert check(AskedRequest(sampling=sampling)).asked.sampling == sampling


def test_prompt_and_output_may_fill_the_pool_exactly() -> None:
    assert check(AskedRequest(stop=AskedStop(max_tokens=44))).asked.stop.max_tokens == 44
    assert len(check(AskedRequest(), 47).prompt_token_ids) == 47


def test_before_a_worker_came_only_the_model_limits() -> None:
    limits = RequestLimits(vocab_size=10, eos_token_ids=(), max_model_len=64, max_pool_tokens=0)
    assert len(check(AskedRequest(), 63, limits).prompt_token_ids) == 63


def test_the_model_s_eos_ids_stop_unless_ignored() -> None:
    asked = AskedRequest(stop=AskedStop(stop_token_ids=(5, 7)))
    assert check(asked).stop_token_ids == (5, 7, 8)
    ignoring = AskedRequest(stop=AskedStop(stop_token_ids=(5, 7), ignores_eos=True))
    assert check(ignoring).stop_token_ids == (5, 7)


def test_unset_fields_keep_their_defaults() -> None:
    assert convert.read_request(pb.GenerateRequest(text="x")) == AskedRequest(
        request_id="",
        prompt=TextInput(text="x"),
        sampling=AskedSampling(
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            seed=None,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            logit_bias=(),
        ),
        stop=AskedStop(
            stop_strings=(),
            stop_token_ids=(),
            ignores_eos=False,
            min_tokens=0,
            max_tokens=None,
            includes_stop_string=False,
        ),
        output=AskedOutput(skips_special_tokens=True, num_logprobs=None),
        cache_salt="",
        priority=None,
    )


def test_set_fields_are_read_zeros_too() -> None:
    message = pb.GenerateRequest(request_id="r", cache_salt="s", priority=0)
    message.chat.messages.add(role="user", content="x")
    message.chat.add_generation_prompt = False
    message.chat.template_arguments_json = "{}"
    message.sampling.temperature = 0
    message.sampling.seed = 0
    message.sampling.logit_bias[3] = -1.5
    message.stop.stop_strings.append("a")
    message.stop.stop_token_ids.append(9)
    message.stop.ignore_eos = True
    message.stop.min_tokens = 2
    message.stop.max_tokens = 0
    message.stop.include_stop_str_in_output = True
    message.output.skip_special_tokens = False
    message.output.num_logprobs = 0
    assert convert.read_request(message) == AskedRequest(
        request_id="r",
        prompt=ChatInput(
            messages=(("user", "x"),), adds_generation_prompt=False, template_arguments_json="{}"
        ),
        sampling=AskedSampling(temperature=0.0, seed=0, logit_bias=((3, -1.5),)),
        stop=AskedStop(
            stop_strings=("a",),
            stop_token_ids=(9,),
            ignores_eos=True,
            min_tokens=2,
            max_tokens=0,
            includes_stop_string=True,
        ),
        output=AskedOutput(skips_special_tokens=False, num_logprobs=0),
        cache_salt="s",
        priority=0,
    )


def test_token_ids_of_four_bytes_are_kept_whole() -> None:
    message = pb.GenerateRequest()
    message.token_ids.ids.extend([0, 70_000, 2**32 - 1])
    prompt = convert.read_request(message).prompt
    assert isinstance(prompt, TokenIdsInput)
    assert prompt.token_ids.tolist() == [0, 70_000, 4_294_967_295]
