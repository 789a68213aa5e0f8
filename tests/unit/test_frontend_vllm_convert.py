"""VllmEngine's messages to and from the front end's own values: what unset means, and what is refused."""

from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import DuplicateRequestError, InvalidRequestError
from scheduler_svc.frontend.values import (
    AskedOutput,
    AskedSampling,
    AskedStop,
    Delta,
    Final,
    RequestStatus,
    TextInput,
    TokenIdsInput,
    TokenLogprobs,
    Told,
)
from scheduler_svc.frontend.vllm_convert import Answer, read_request, with_their_names


def request(**params: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="x", sampling_params=pb.SamplingParams(**params))


def final(reason: FinishReason = FinishReason.LENGTH, **fields: Any) -> Final:
    counts = {"num_prompt_tokens": 5, "num_output_tokens": 3, "num_cached_tokens": 4}
    times = {"queue_time_ns": 0, "first_token_time_ns": 0, "total_time_ns": 0}
    return Final(reason=reason, **{**counts, **times, **fields})


def told(output: Any) -> Told:
    return Told(request_id="r", output=output, seed=None, num_prompt_tokens=5, num_cached_tokens=4)


def test_unset_fields_keep_our_defaults() -> None:
    asked = read_request(pb.GenerateRequest(request_id="r", text="hello"))
    assert (asked.request_id, asked.prompt) == ("r", TextInput(text="hello"))
    assert (asked.sampling, asked.stop) == (AskedSampling(), AskedStop())
    assert asked.output == AskedOutput(skips_special_tokens=False)


def test_set_fields_are_taken() -> None:
    asked = read_request(
        request(
            temperature=0,
            top_p=0.5,
            top_k=7,
            min_p=0.25,
            frequency_penalty=1,
            presence_penalty=-1,
            repetition_penalty=1.5,
            max_tokens=9,
            min_tokens=2,
            stop=["a"],
            stop_token_ids=[3],
            skip_special_tokens=True,
            ignore_eos=True,
            n=1,
            logprobs=2,
            seed=11,
            logit_bias={4: -8},
            include_stop_str_in_output=True,
            spaces_between_special_tokens=True,
            json_object=False,
        )
    )
    assert asked.sampling == AskedSampling(
        temperature=0, top_k=7, top_p=0.5, min_p=0.25, seed=11, presence_penalty=-1, frequency_penalty=1,
        repetition_penalty=1.5, logit_bias=((4, -8),),
    )  # fmt: skip
    assert asked.stop == AskedStop(
        stop_strings=("a",), stop_token_ids=(3,), ignores_eos=True, min_tokens=2, max_tokens=9,
        includes_stop_string=True,
    )  # fmt: skip
    assert asked.output == AskedOutput(skips_special_tokens=True, num_logprobs=2)


def test_a_seed_below_zero_is_a_seed_of_its_own() -> None:
    assert [read_request(request(seed=seed)).sampling.seed for seed in (0, -1, -(2**31))] == [
        0,
        2**64 - 1,
        2**64 - 2**31,
    ]


def test_token_ids_are_taken_as_they_are() -> None:
    message = pb.GenerateRequest(tokenized=pb.TokenizedInput(original_text="?", input_ids=[1, 2**32 - 1]))
    prompt = read_request(message).prompt
    assert isinstance(prompt, TokenIdsInput)
    assert prompt.token_ids.tolist() == [1, 2**32 - 1]


@pytest.mark.parametrize(
    ("message", "refusal"),
    [
        (pb.GenerateRequest(), "input is None, but must be one of tokenized and text"),
        (request(n=2), "sampling_params.n is 2, but must be 0 or 1: send a request for each output"),
        (request(prompt_logprobs=0), "sampling_params.prompt_logprobs is 0, but must be unset: "),
        (request(truncate_prompt_tokens=-1), "sampling_params.truncate_prompt_tokens is -1, but must be"),
        (request(json_schema="{}"), "sampling_params.json_schema is 'set', but must be unset: output"),
        (request(json_object=True), "sampling_params.json_object is 'set', but must be unset: output"),
        (request(regex=""), "sampling_params.regex is 'set', but must be unset: output"),
        (request(choice=pb.ChoiceConstraint()), "sampling_params.choice is 'set', but must be unset: "),
        (pb.GenerateRequest(text="x", mm_inputs={}), "mm_inputs is 'set', but must be unset: only text"),
        (pb.GenerateRequest(text="x", extra_mm_inputs=[{}]), "extra_mm_inputs is 'set', but must be empty"),
        (pb.GenerateRequest(text="x", media_refs={}), "media_refs is 'set', but must be unset: only text"),
        (pb.GenerateRequest(text="x", kv_transfer_params={}), "kv_transfer_params is 'set', but must be"),
        (pb.GenerateRequest(text="x", kv_transfer_params_json=""), "kv_transfer_params_json is 'set', but"),
        (pb.GenerateRequest(text="x", data_parallel_rank=0), "data_parallel_rank is 'set', but must be"),
    ],
)
def test_what_we_cannot_do_is_refused_by_name(message: pb.GenerateRequest, refusal: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_request(message)
    assert str(caught.value).startswith(refusal)


@pytest.mark.parametrize(
    ("field", "limit", "message"),
    [
        ("stop.max_tokens", "be at least 1", "sampling_params.max_tokens is 7, but must be at least 1"),
        (
            "number of entries in stop.stop_strings",
            "be at most 16",
            "number of entries in sampling_params.stop is 7, but must be at most 16",
        ),
        ("stop.stop_token_ids[3]", "be", "sampling_params.stop_token_ids[3] is 7, but must be"),
        (
            "stop.min_tokens",
            "be at most stop.max_tokens, 5",
            "sampling_params.min_tokens is 7, but must be at most sampling_params.max_tokens, 5",
        ),
        ("a key of sampling.logit_bias", "be", "a key of sampling_params.logit_bias is 7, but must be"),
        ("output.num_logprobs", "be", "sampling_params.logprobs is 7, but must be"),
        ("token_ids.ids[2]", "be", "tokenized.input_ids[2] is 7, but must be"),
        ("number of tokens in token_ids", "be", "number of tokens in tokenized.input_ids is 7, but must be"),
        ("request_id", "be", "request_id is 7, but must be"),
    ],
)
def test_refusals_name_the_contract_s_fields(field: str, limit: str, message: str) -> None:
    renamed = with_their_names(DuplicateRequestError.of(field, 7, limit))
    assert (type(renamed), str(renamed)) == (DuplicateRequestError, message)


def test_a_value_is_never_renamed() -> None:
    renamed = with_their_names(InvalidRequestError.of("text", "stop.max_tokens", "be"))
    assert str(renamed) == "text is 'stop.max_tokens', but must be"
    plain = InvalidRequestError("sampling. is text")
    assert with_their_names(plain) is plain


def test_a_stream_is_told_in_chunks_and_an_end() -> None:
    answer = Answer(is_stream=True)
    logprobs = [TokenLogprobs(token_ids=(8, 9, 8), values=(-0.5, -0.25, -0.5))]
    assert answer.take(told(RequestStatus.WAITING_FOR_WORKER)) is None
    assert answer.take(told(Delta(text="a", token_ids=[8], logprobs=logprobs))) == pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(
            token_ids=[8],
            prompt_tokens=5,
            completion_tokens=1,
            cached_tokens=4,
            output_logprobs=pb.OutputLogProbs(
                token_logprobs=[-0.5],
                token_ids=[8],
                top_logprobs=[pb.TopLogProbs(values=[-0.25, -0.5], token_ids=[9, 8])],
            ),
        )
    )
    chunk = answer.take(told(Delta(text="", token_ids=[6, 7], logprobs=[])))
    assert chunk is not None
    assert (list(chunk.chunk.token_ids), chunk.chunk.completion_tokens) == ([6, 7], 2)
    assert not chunk.chunk.HasField("output_logprobs")
    assert answer.take(told(Delta(text="held back", token_ids=[], logprobs=[]))) is None
    assert answer.take(told(final(FinishReason.STOP_STRING, matched_stop_string="b"))) == pb.GenerateResponse(
        complete=pb.GenerateComplete(
            finish_reason="stop", prompt_tokens=5, completion_tokens=3, cached_tokens=4, matched_stop_str="b"
        )
    )


def test_without_a_stream_all_is_told_at_the_end() -> None:
    answer = Answer(is_stream=False)
    for token_id in (4, 5):
        logprobs = [TokenLogprobs(token_ids=(token_id,), values=(-token_id / 4,))]
        assert answer.take(told(Delta(text="a", token_ids=[token_id], logprobs=logprobs))) is None
    assert answer.take(told(final(FinishReason.STOP_TOKEN, matched_stop_token_id=5))) == pb.GenerateResponse(
        complete=pb.GenerateComplete(
            output_ids=[4, 5],
            finish_reason="stop",
            prompt_tokens=5,
            completion_tokens=3,
            cached_tokens=4,
            matched_token_id=5,
            output_logprobs=pb.OutputLogProbs(
                token_logprobs=[-1, -1.25],
                token_ids=[4, 5],
                top_logprobs=[pb.TopLogProbs(), pb.TopLogProbs()],
            ),
        )
    )


@pytest.mark.parametrize(("reason", "name"), [(FinishReason.LENGTH, "length"), (FinishReason.ABORT, "abort")])
def test_other_ends(reason: FinishReason, name: str) -> None:
    message = Answer(is_stream=True).take(told(final(reason)))
    assert message is not None
    assert message.complete.finish_reason == name
    assert message.complete.WhichOneof("matched_stop") is None
