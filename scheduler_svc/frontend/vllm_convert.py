"""Between the messages of vllm.grpc.engine.VllmEngine and the front end's own values.

The contract is smg's (docs/backend.md): 0 means "unset" where it could mean nothing else. What we cannot
do is refused here by the contract's own field names. Knows nothing about limits (request_check.py) or
about how messages travel.
"""

import re

import numpy as np
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.values import (
    AskedCounts,
    AskedOutput,
    AskedRequest,
    AskedSampling,
    AskedStop,
    Delta,
    Final,
    PromptInput,
    TextInput,
    TokenIdsInput,
    TokenLogprobs,
    Told,
)

_REFUSED_FIELDS = {
    "kv_transfer_params": "KV cannot be moved between servers",
    "kv_transfer_params_json": "KV cannot be moved between servers",
    "mm_inputs": "only text models are served",
    "media_refs": "only text models are served",
    "data_parallel_rank": "the engine chooses among its worker groups itself",
}
_REFUSED_SAMPLING_FIELDS = {
    "prompt_logprobs": "log-probabilities of the prompt are not computed",
    "truncate_prompt_tokens": "prompts are never cut",
}
_SEED_MASK = 2**64 - 1

# Our own name of a field, or how it begins -> the contract's.
_THEIR_NAMES = {
    "stop.stop_strings": "sampling_params.stop",
    "stop.": "sampling_params.",
    "sampling.": "sampling_params.",
    "output.num_logprobs": "sampling_params.logprobs",
    "token_ids.ids": "tokenized.input_ids",
    "token_ids": "tokenized.input_ids",
}
_OUR_NAME = re.compile(
    r"(?<![\w.])(?:stop\.stop_strings\b|stop\.|sampling\.|output\.num_logprobs\b|token_ids\.ids\b|token_ids\b)"
)

_FINISH_REASONS = {
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
}


def count_entries(message: pb.GenerateRequest) -> AskedCounts:
    """Count what a gateway's message holds, without reading it."""
    params = message.sampling_params
    return AskedCounts(
        num_prompt_tokens=len(message.tokenized.input_ids),
        num_biases=len(params.logit_bias),
        num_stop_strings=len(params.stop),
        num_stop_token_ids=len(params.stop_token_ids),
    )


def read_request(message: pb.GenerateRequest) -> AskedRequest:
    """Read what a gateway asked.

    Raises:
        InvalidRequestError: naming a field that cannot be honoured.
    """
    for field, reason in _REFUSED_FIELDS.items():
        if message.HasField(field):
            raise InvalidRequestError.of(field, "set", f"be unset: {reason}")
    if message.extra_mm_inputs:
        raise InvalidRequestError.of("extra_mm_inputs", "set", "be empty: only text models are served")
    params = message.sampling_params
    _check_sampling_fields(params)
    return AskedRequest(
        request_id=message.request_id,
        prompt=_read_prompt(message),
        sampling=_read_sampling(params),
        stop=AskedStop(
            stop_strings=tuple(params.stop),
            stop_token_ids=tuple(params.stop_token_ids),
            ignores_eos=params.ignore_eos,
            min_tokens=params.min_tokens,
            max_tokens=params.max_tokens if params.HasField("max_tokens") else None,
            includes_stop_string=params.include_stop_str_in_output,
        ),
        output=AskedOutput(
            skips_special_tokens=params.skip_special_tokens,
            num_logprobs=params.logprobs if params.HasField("logprobs") else None,
        ),
    )


def with_their_names(error: InvalidRequestError) -> InvalidRequestError:
    """Return the error with its field and limit in the contract's words."""
    if error.parts is None:
        return error
    field, value, limit = error.parts
    return type(error).of(_rename(field), value, _rename(limit))


class Answer:
    """The messages of one request: chunks and an end, or one message with all of it."""

    def __init__(self, *, is_stream: bool) -> None:
        """Start with nothing told; without ``is_stream`` all is kept for the last message."""
        self._is_stream = is_stream
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    def take(self, told: Told) -> pb.GenerateResponse | None:
        """Take what is told of the request; return the message to send, if it makes one."""
        match told.output:
            case Delta(token_ids=token_ids, logprobs=logprobs):
                if self._is_stream and token_ids:
                    return _write_chunk(told, token_ids, logprobs)
                self._token_ids += token_ids
                self._logprobs += logprobs
            case Final():
                return self._write_complete(told.output)
        return None  # the contract has no word for a request that waits

    def _write_complete(self, final: Final) -> pb.GenerateResponse:
        complete = pb.GenerateComplete(
            output_ids=self._token_ids,
            finish_reason=_FINISH_REASONS[final.reason],
            prompt_tokens=final.num_prompt_tokens,
            completion_tokens=final.num_output_tokens,
            cached_tokens=final.num_cached_tokens,
            output_logprobs=_write_logprobs(self._logprobs),
        )
        if final.matched_stop_string is not None:
            complete.matched_stop_str = final.matched_stop_string
        if final.matched_stop_token_id is not None:
            complete.matched_token_id = final.matched_stop_token_id
        return pb.GenerateResponse(complete=complete)


def _check_sampling_fields(params: pb.SamplingParams) -> None:
    for field, reason in _REFUSED_SAMPLING_FIELDS.items():
        if params.HasField(field):
            limit = f"be unset: {reason}"
            raise InvalidRequestError.of(f"sampling_params.{field}", getattr(params, field), limit)
    if params.n > 1:
        limit = "be 0 or 1: send a request for each output that is wanted"
        raise InvalidRequestError.of("sampling_params.n", params.n, limit)
    constraint = params.WhichOneof("constraint")
    if constraint is not None and getattr(params, constraint) is not False:
        limit = "be unset: output cannot be constrained yet"
        raise InvalidRequestError.of(f"sampling_params.{constraint}", "set", limit)


def _read_prompt(message: pb.GenerateRequest) -> PromptInput:
    match message.WhichOneof("input"):
        case "tokenized":
            return TokenIdsInput(token_ids=np.array(message.tokenized.input_ids, np.int64))
        case "text":
            return TextInput(text=message.text)
    raise InvalidRequestError.of("input", None, "be one of tokenized and text")


def _read_sampling(params: pb.SamplingParams) -> AskedSampling:
    return AskedSampling(
        temperature=params.temperature if params.HasField("temperature") else 1.0,
        top_k=params.top_k,
        top_p=params.top_p or 1.0,
        min_p=params.min_p,
        # Theirs is a signed number, ours is not: each of theirs is one of ours.
        seed=params.seed & _SEED_MASK if params.HasField("seed") else None,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty or 1.0,
        logit_bias=tuple(params.logit_bias.items()),
    )


def _write_chunk(told: Told, token_ids: list[int], logprobs: list[TokenLogprobs]) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(
            token_ids=token_ids,
            prompt_tokens=told.num_prompt_tokens,
            completion_tokens=len(token_ids),  # of this chunk: the gateway adds them up
            cached_tokens=told.num_cached_tokens,
            output_logprobs=_write_logprobs(logprobs),
        )
    )


def _write_logprobs(logprobs: list[TokenLogprobs]) -> pb.OutputLogProbs | None:
    if not logprobs:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[one.values[0] for one in logprobs],
        token_ids=[one.token_ids[0] for one in logprobs],
        top_logprobs=[pb.TopLogProbs(values=one.values[1:], token_ids=one.token_ids[1:]) for one in logprobs],
    )


def _rename(text: str) -> str:
    return _OUR_NAME.sub(lambda match: _THEIR_NAMES[match[0]], text)
