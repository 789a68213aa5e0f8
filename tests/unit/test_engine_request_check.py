"""Requests that no worker could take are refused one by one, before any step."""

from typing import Any

import numpy as np
import pytest

from scheduler_svc.core.types import Request, SamplingParams
from scheduler_svc.engine.request_check import check_request
from scheduler_svc.errors import InvalidRequestError


def request(prompt: tuple[int, ...] = (0, 9), known: tuple[int, ...] = (), **sampling: Any) -> Request:
    return Request(
        request_id="x",
        prompt_token_ids=np.array(prompt, np.int32),
        known_output_token_ids=np.array(known, np.int32),
        sampling=SamplingParams(**sampling),
    )


def test_all_that_a_worker_can_take_is_taken() -> None:
    check_request(request(), 10)
    check_request(request(top_p=0.0, repetition_penalty=0.0, num_logprobs_plus_one=21, top_k=10), 10)
    check_request(request(logit_bias=((0, -100.0), (9, 100.0)), stop_token_ids=tuple(range(10))), 10)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"prompt": (1, 10)}, r"prompt_token_ids hold ids outside \[0, 10\), the vocabulary"),
        ({"prompt": (-1, 1)}, r"prompt_token_ids hold ids outside"),
        ({"known": (10,)}, r"output_token_ids hold ids outside"),
        ({"temperature": float("nan")}, r"sampling.temperature is nan, but must be in \[0, 100\]"),
        ({"temperature": float("inf")}, r"sampling.temperature is inf"),
        ({"top_p": 1.5}, r"sampling.top_p is 1.5, but must be in \[0, 1\]"),
        ({"min_p": -0.5}, r"sampling.min_p is -0.5"),
        ({"presence_penalty": 3.0}, r"sampling.presence_penalty is 3.0, but must be in \[-2, 2\]"),
        ({"top_k": 2**32 - 1}, r"sampling.top_k is 4294967295, but must be in \[0, 10\]"),
        ({"min_tokens": 2**32 - 1}, r"sampling.min_tokens is 4294967295, but must be in"),
        ({"num_logprobs_plus_one": 22}, r"sampling.num_logprobs_plus_one is 22, but must be in \[0, 21\]"),
        (
            {"stop_token_ids": (3,) * 129},
            r"number of sampling.stop_token_ids is 129, but must be at most 128",
        ),
        ({"stop_token_ids": (3, -2)}, r"one of sampling.stop_token_ids is -2, but must be in \[0, 10\)"),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, r"sampling.bias_token_ids name a token twice"),
        ({"logit_bias": ((3, float("nan")),)}, r"one of sampling.bias_values is nan, but must be in"),
        ({"logit_bias": ((10, 1.0),)}, r"one of sampling.bias_token_ids is 10, but must be in \[0, 10\)"),
    ],
)
def test_what_no_worker_can_take_is_named(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        check_request(request(**fields), 10)
