"""What clients get from both services, compared with transformers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from stepwire_client import (
    Cancelled,
    Completion,
    DeadlineExceeded,
    FinishReason,
    GenerationRequest,
    InvalidRequest,
    ResourceExhausted,
    StepwireClient,
    StepwireClientError,
)

from tools.services import Services

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="session")
def greedy_ids(model_folder: Path) -> Callable[[list[int], int], list[int]]:
    """Return a function: prompt ids and a count -> transformers' greedy ids."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)

    def generate(prompt: list[int], num_tokens: int) -> list[int]:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            eos_token_id=None,
        )
        ids_out: list[int] = output[0, len(prompt) :].tolist()
        return ids_out

    return generate


def _ids(number: int, num_tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(number).integers(3, 320, num_tokens).tolist()
    return ids


def test_text_in_text_out(client: StepwireClient, greedy_ids: Callable[[list[int], int], list[int]]) -> None:
    prompt = list(client.tokenize(QUESTION).token_ids)
    expected = greedy_ids(prompt, 24)
    completion = client.complete(QUESTION, temperature=0, max_tokens=24, ignore_eos=True)
    assert list(completion.token_ids) == expected
    assert completion.text == client.detokenize(expected, skip_special_tokens=True)
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.usage.num_prompt_tokens == len(prompt)
    assert completion.usage.num_output_tokens == 24


def test_many_at_once_each_get_their_own(
    client: StepwireClient, greedy_ids: Callable[[list[int], int], list[int]]
) -> None:
    prompts = [_ids(i, 3 + 2 * i) for i in range(24)]

    def run(prompt: list[int]) -> Completion:
        return client.complete(prompt, temperature=0, max_tokens=20, ignore_eos=True)

    with ThreadPoolExecutor(24) as pool:
        completions = list(pool.map(run, prompts))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert list(completion.token_ids) == greedy_ids(prompt, 20)


def test_a_bulk_stream_gives_the_same(
    client: StepwireClient, greedy_ids: Callable[[list[int], int], list[int]]
) -> None:
    prompts = {f"bulk-{i}": _ids(50 + i, 5 + i) for i in range(6)}
    requests = [
        GenerationRequest.of(prompt, request_id=name, temperature=0, max_tokens=8, ignore_eos=True)
        for name, prompt in prompts.items()
    ]
    tokens: dict[str, list[int]] = {name: [] for name in prompts}
    with client.generate_many(requests) as stream:
        for name, event in stream:
            tokens[name] += getattr(event, "token_ids", ())
    assert tokens == {name: greedy_ids(prompt, 8) for name, prompt in prompts.items()}


def test_a_prefix_is_computed_once_and_only_for_the_same_salt(client: StepwireClient) -> None:
    prompt = _ids(99, 40)
    first = client.complete(prompt, temperature=0, max_tokens=4, cache_salt="a")
    again = client.complete(prompt, temperature=0, max_tokens=4, cache_salt="a")
    other = client.complete(prompt, temperature=0, max_tokens=4, cache_salt="b")
    unsalted = client.complete(prompt, temperature=0, max_tokens=4)
    assert [each.usage.num_cached_tokens for each in (first, again, other, unsalted)] == [0, 32, 0, 0]
    assert len({each.token_ids for each in (first, again, other, unsalted)}) == 1


def test_a_seed_repeats_and_another_differs(client: StepwireClient) -> None:
    def run(seed: int) -> tuple[int, ...]:
        return client.complete(QUESTION, seed=seed, max_tokens=24, ignore_eos=True).token_ids

    assert run(5) == run(5) != run(6)


def test_a_stop_string_ends_the_engine_too(client: StepwireClient) -> None:
    whole = client.complete(QUESTION, temperature=0, max_tokens=40, ignore_eos=True)
    stop = whole.text[10:14]
    cut = client.complete(QUESTION, temperature=0, max_tokens=40, ignore_eos=True, stop=[stop])
    assert cut.finish_reason is FinishReason.STOP
    assert cut.matched_stop == stop
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.usage.num_output_tokens == len(cut.token_ids) < 40
    assert whole.token_ids[: len(cut.token_ids)] == cut.token_ids


def test_a_stop_token_ends_and_is_named(client: StepwireClient) -> None:
    whole = client.complete(QUESTION, temperature=0, max_tokens=20, ignore_eos=True)
    stop = whole.token_ids[7]
    index = whole.token_ids.index(stop)
    cut = client.complete(QUESTION, temperature=0, max_tokens=20, ignore_eos=True, stop_token_ids=[stop])
    assert cut.finish_reason is FinishReason.STOP
    assert cut.matched_stop == stop
    assert cut.token_ids == whole.token_ids[: index + 1]


def test_logprobs_tell_the_sampled_token_and_the_likeliest(client: StepwireClient) -> None:
    completion = client.complete(QUESTION, temperature=0, max_tokens=5, ignore_eos=True, logprobs=3)
    assert len(completion.logprobs) == 5
    for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True):
        assert position.sampled.token_id == token_id == position.top[0].token_id
        values = [each.logprob for each in position.top]
        assert values == sorted(values, reverse=True)
        assert len(values) == 3


def test_chat_is_rendered_by_the_models_template(client: StepwireClient) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    rendered = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    assert client.tokenize(messages).text == rendered
    by_chat = client.complete(messages, temperature=0, max_tokens=8)
    by_text = client.complete(rendered, temperature=0, max_tokens=8)
    assert by_chat.token_ids == by_text.token_ids


def test_an_abort_ends_the_stream_with_its_reason(client: StepwireClient) -> None:
    with client.generate(QUESTION, request_id="to-abort", max_tokens=200, ignore_eos=True) as stream:
        next(stream)
        client.abort("to-abort")
        assert sum(len(delta.token_ids) for delta in stream) < 199
        assert stream.final.finish_reason is FinishReason.ABORT
    client.abort("to-abort")  # idempotent
    client.abort("never-there")


def test_leaving_a_stream_frees_it(client: StepwireClient) -> None:
    # The client fixture waits until nothing is held: 200 tokens would take seconds more.
    with client.generate(QUESTION, max_tokens=200, ignore_eos=True) as stream:
        next(stream)


def test_a_deadline_ends_a_running_request(client: StepwireClient) -> None:
    with pytest.raises(DeadlineExceeded):
        client.complete(QUESTION, max_tokens=240, ignore_eos=True, timeout_seconds=0.05)


def test_a_deadline_ends_a_queued_request(client: StepwireClient) -> None:
    streams = [client.generate(_ids(i, 4), max_tokens=240, ignore_eos=True) for i in range(20)]
    for stream in streams:
        next(stream)
    with pytest.raises(DeadlineExceeded):
        client.complete(QUESTION, max_tokens=4, timeout_seconds=0.03)
    for stream in streams:
        stream.close()


VOCAB = 320
BAD_REQUESTS: list[tuple[dict[str, object], str]] = [
    ({"prompt": ""}, "text"),
    ({"prompt": []}, "token_ids"),
    ({"prompt": [3, VOCAB]}, "token_ids"),
    ({"prompt": [3] * 257}, "prompt"),
    ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
    ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
    ({"logit_bias": {3: 101.0}}, "logit_bias"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": -1.0}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": VOCAB + 1}, "top_k"),
    ({"min_p": float("inf")}, "min_p"),
    ({"presence_penalty": 3.0}, "presence_penalty"),
    ({"frequency_penalty": -3.0}, "frequency_penalty"),
    ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ({"logprobs": 21}, "num_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 300}, "max_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"stop": [""]}, "stop_strings"),
    ({"stop": ["x"] * 17}, "stop_strings"),
    ({"priority": 1}, "priority"),
    ({"request_id": "x" * 129}, "request_id"),
    ({"cache_salt": "x" * 257}, "cache_salt"),
    ({"prompt": [{"role": "user", "content": "x"}], "template_arguments": {"messages": 3}}, "chat"),
]


@pytest.mark.parametrize(("options", "field"), BAD_REQUESTS)
def test_bad_input_names_field_and_limit(
    client: StepwireClient, options: dict[str, object], field: str
) -> None:
    arguments: dict[str, object] = {"prompt": [5, 6, 7], **options}
    with pytest.raises(InvalidRequest) as caught:
        client.complete(**arguments)  # type: ignore[arg-type]
    assert field in caught.value.message
    assert "must" in caught.value.message
    assert client.complete([5, 6, 7], temperature=0, max_tokens=1).usage.num_output_tokens == 1


def test_an_id_in_use_is_refused(client: StepwireClient) -> None:
    with client.generate([5, 6], request_id="twice", max_tokens=200, ignore_eos=True) as stream:
        next(stream)
        with pytest.raises(InvalidRequest, match="request_id"):
            client.complete([5, 6], request_id="twice", max_tokens=1)


def test_a_message_over_the_limit_is_refused_by_grpc(services: Services) -> None:
    with (
        StepwireClient(services.address, max_message_bytes=256 * 1024 * 1024) as client,
        pytest.raises(ResourceExhausted, match="larger than max"),
    ):
        client.complete("x" * (65 * 1024 * 1024))


def test_a_message_well_over_grpcs_default_is_read(client: StepwireClient) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        client.complete([5] * (5 * 1024 * 1024), max_tokens=1)


def test_cancelling_by_grpc_frees_the_request(client: StepwireClient) -> None:
    stream = client.generate(QUESTION, max_tokens=200, ignore_eos=True)
    next(stream)
    stream.close()
    with pytest.raises((Cancelled, StepwireClientError)) as caught:
        for _ in stream:
            pass
    assert caught.value.code is grpc.StatusCode.CANCELLED
