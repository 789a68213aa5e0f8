"""Between protobuf messages of clients and the front end's own values.

Fills in defaults of unset fields on the way in. Knows nothing about limits (request_check.py),
about the engine's messages (engine_convert.py) or about how messages travel.
"""

from typing import Any

import numpy as np
from stepwire.v1 import generation_service_pb2, types_pb2

from scheduler_svc.core.types import FinishReason
from scheduler_svc.frontend.values import (
    AskedCounts,
    AskedOutput,
    AskedRequest,
    AskedResume,
    AskedSampling,
    AskedStop,
    ChatInput,
    Delta,
    Final,
    Output,
    PromptInput,
    RequestStatus,
    TextInput,
    TokenIdsInput,
    TokenLogprobs,
    Told,
)

_FINISH_REASONS = {
    FinishReason.STOP_TOKEN: types_pb2.FINISH_REASON_STOP,
    FinishReason.STOP_STRING: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: types_pb2.FINISH_REASON_ABORT,
}


_STATUSES = {
    RequestStatus.WAITING_FOR_WORKER: types_pb2.REQUEST_STATUS_WAITING_FOR_WORKER,
    RequestStatus.RUNNING: types_pb2.REQUEST_STATUS_RUNNING,
}


def count_entries(message: generation_service_pb2.GenerateRequest) -> AskedCounts:
    """Count what a client's message holds, without reading it."""
    return AskedCounts(
        num_messages=len(message.chat.messages),
        num_prompt_tokens=len(message.token_ids.ids),
        num_resumed_tokens=len(message.resume.token_ids),
        num_biases=len(message.sampling.logit_bias),
        num_stop_strings=len(message.stop.stop_strings),
        num_stop_token_ids=len(message.stop.stop_token_ids),
    )


def read_request(message: generation_service_pb2.GenerateRequest) -> AskedRequest:
    """Read what a client asked."""
    return AskedRequest(
        request_id=message.request_id,
        prompt=_read_prompt(message),
        sampling=_read_sampling(message.sampling),
        stop=_read_stop(message.stop),
        output=_read_output(message.output),
        cache_salt=message.cache_salt,
        priority=message.priority if message.HasField("priority") else None,
        resume=_read_resume(message.resume) if message.HasField("resume") else None,
    )


def count_tokenize_entries(message: generation_service_pb2.TokenizeRequest) -> AskedCounts:
    """Count what shall be tokenized, without reading it."""
    return AskedCounts(num_messages=len(message.chat.messages))


def read_tokenize_prompt(message: generation_service_pb2.TokenizeRequest) -> TextInput | ChatInput | None:
    """Read what shall be tokenized."""
    match message.WhichOneof("input"):
        case "text":
            return TextInput(text=message.text)
        case "chat":
            return _read_chat(message.chat)
    return None


def write_response(told: Told) -> generation_service_pb2.GenerateResponse:
    """Write a message of Generate."""
    response = generation_service_pb2.GenerateResponse(request_id=told.request_id, seed=told.seed)
    _set_event(response, told.output)
    return response


def write_many_response(told: Told) -> generation_service_pb2.GenerateManyResponse:
    """Write a message of GenerateMany."""
    response = generation_service_pb2.GenerateManyResponse(request_id=told.request_id, seed=told.seed)
    _set_event(response, told.output)
    return response


def _set_event(
    response: generation_service_pb2.GenerateResponse | generation_service_pb2.GenerateManyResponse,
    output: Output,
) -> None:
    match output:
        case Delta():
            # Written in place: half the cost of a message of its own, with 10,000 a second.
            delta = response.delta
            delta.text = output.text
            delta.token_ids.extend(output.token_ids)
            if output.logprobs:
                delta.logprobs.extend(map(_write_logprobs, output.logprobs))
        case Final():
            response.final.CopyFrom(write_final(output))
        case RequestStatus():
            response.status.status = _STATUSES[output]


def write_final(final: Final) -> types_pb2.FinalOutput:
    """Write the end of a request that is no error."""
    message = types_pb2.FinalOutput(
        finish_reason=_FINISH_REASONS[final.reason],
        usage=types_pb2.Usage(
            num_prompt_tokens=final.num_prompt_tokens,
            num_output_tokens=final.num_output_tokens,
            num_cached_tokens=final.num_cached_tokens,
        ),
        matched_stop_string=final.matched_stop_string,
        matched_stop_token_id=final.matched_stop_token_id,
    )
    message.timings.queue.FromNanoseconds(final.queue_time_ns)
    message.timings.first_token.FromNanoseconds(final.first_token_time_ns)
    message.timings.total.FromNanoseconds(final.total_time_ns)
    return message


def _read_prompt(message: generation_service_pb2.GenerateRequest) -> PromptInput | None:
    match message.WhichOneof("input"):
        case "text":
            return TextInput(text=message.text)
        case "token_ids":
            return TokenIdsInput(token_ids=np.array(message.token_ids.ids, np.int64))
        case "chat":
            return _read_chat(message.chat)
    return None


def _read_resume(message: generation_service_pb2.Resume) -> AskedResume:
    return AskedResume(
        token_ids=np.array(message.token_ids, np.int64),
        num_text_bytes=message.num_text_bytes if message.HasField("num_text_bytes") else None,
    )


def _read_chat(message: types_pb2.ChatInput) -> ChatInput:
    return ChatInput(
        messages=tuple((entry.role, entry.content) for entry in message.messages),
        adds_generation_prompt=message.add_generation_prompt
        if message.HasField("add_generation_prompt")
        else True,
        template_arguments_json=message.template_arguments_json,
    )


def _read_sampling(message: types_pb2.SamplingParams) -> AskedSampling:
    # All fields but the map are optional and named as ours: those that were set are listed.
    given: dict[str, Any] = {field.name: value for field, value in message.ListFields()}
    if "logit_bias" in given:
        given["logit_bias"] = tuple(given["logit_bias"].items())
    return AskedSampling(**given)


def _read_stop(message: types_pb2.StopParams) -> AskedStop:
    return AskedStop(
        stop_strings=tuple(message.stop_strings),
        stop_token_ids=tuple(message.stop_token_ids),
        ignores_eos=message.ignore_eos,
        min_tokens=message.min_tokens,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        includes_stop_string=message.include_stop_str_in_output,
    )


def _read_output(message: types_pb2.OutputParams) -> AskedOutput:
    return AskedOutput(
        skips_special_tokens=message.skip_special_tokens if message.HasField("skip_special_tokens") else True,
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
    )


def _write_logprobs(logprobs: TokenLogprobs) -> types_pb2.PositionLogprobs:
    entries = [
        types_pb2.TokenLogprob(token_id=token_id, logprob=value)
        for token_id, value in zip(logprobs.token_ids, logprobs.values, strict=True)
    ]
    return types_pb2.PositionLogprobs(sampled=entries[0], top=entries[1:])
