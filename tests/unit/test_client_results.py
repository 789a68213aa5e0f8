"""Answers of a server as values of the client, the table of errors, and the gathering of a stream."""

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire_client import (
    AlreadyExists,
    Cancelled,
    Completion,
    ConnectionFailed,
    DeadlineExceeded,
    Delta,
    FinalOutput,
    FinishReason,
    Internal,
    InvalidRequest,
    ModelInfo,
    NotFound,
    PermissionDenied,
    PositionLogprobs,
    ResourceExhausted,
    StepwireClientError,
    StreamNotFinished,
    Timings,
    TlsFailed,
    TokenLogprob,
    Unavailable,
    Unimplemented,
    Usage,
)
from stepwire_client import errors as errors_module
from stepwire_client.collector import OutputCollector
from stepwire_client.decode import FINISH_REASON_OF_NUMBER, decode_event, decode_model_info
from stepwire_client.errors import ERROR_OF_CODE, error_of_number, error_of_status

FINAL = FinalOutput(
    finish_reason=FinishReason.LENGTH,
    matched_stop=None,
    usage=Usage(num_prompt_tokens=1, num_output_tokens=2, num_cached_tokens=0),
    timings=Timings(queue_seconds=None, first_token_seconds=None, total_seconds=0.5),
)


def test_every_status_code_but_ok_has_an_error() -> None:
    assert set(ERROR_OF_CODE) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


def test_every_error_of_the_tree_is_raised_for_some_status() -> None:
    tree = {
        item
        for item in vars(errors_module).values()
        if isinstance(item, type) and issubclass(item, StepwireClientError)
    }
    raised_without_a_status_of_their_own = {
        StepwireClientError,
        ConnectionFailed,
        TlsFailed,
        StreamNotFinished,
    }
    assert set(ERROR_OF_CODE.values()) == tree - raised_without_a_status_of_their_own


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        (grpc.StatusCode.CANCELLED, Cancelled),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.ALREADY_EXISTS, AlreadyExists),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, ResourceExhausted),
        (grpc.StatusCode.UNAUTHENTICATED, PermissionDenied),
        (grpc.StatusCode.UNIMPLEMENTED, Unimplemented),
        (grpc.StatusCode.INTERNAL, Internal),
        (grpc.StatusCode.UNKNOWN, Internal),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
    ],
)
def test_an_error_keeps_message_and_code(
    code: grpc.StatusCode, error_type: type[StepwireClientError]
) -> None:
    error = error_of_status(code, "why")
    assert type(error) is error_type
    assert (str(error), error.message, error.code) == ("why", "why", code)
    assert type(error_of_number(code.value[0], "why")) is error_type


def test_a_failure_to_connect_is_told_from_a_server_that_drains() -> None:
    refused = error_of_status(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; x")
    assert type(refused) is ConnectionFailed
    assert type(error_of_status(grpc.StatusCode.UNAVAILABLE, "the server drains")) is Unavailable


def test_numbers_that_are_no_error_codes() -> None:
    unknown = error_of_number(99, "new")
    assert (type(unknown), unknown.code) == (Internal, grpc.StatusCode.UNKNOWN)
    assert error_of_number(0, "x").message == "the server told an error with code OK: x"


def test_an_error_without_a_message_names_its_code() -> None:
    assert error_of_status(grpc.StatusCode.INTERNAL, "").message == "INTERNAL"


def test_every_finish_reason_of_the_protocol_is_known() -> None:
    sent = set(types_pb.FinishReason.values()) - {types_pb.FINISH_REASON_UNSPECIFIED}
    assert set(FINISH_REASON_OF_NUMBER) == sent
    assert set(FINISH_REASON_OF_NUMBER.values()) == set(FinishReason)


def test_decode_delta_with_logprobs() -> None:
    sampled = types_pb.TokenLogprob(token_id=70_000, logprob=-0.5)
    likeliest = types_pb.TokenLogprob(token_id=3, logprob=-0.25)
    position = types_pb.PositionLogprobs(sampled=sampled, top=[likeliest, sampled])
    delta = types_pb.OutputDelta(text="é", token_ids=[70_000], logprobs=[position])
    expected_sampled = TokenLogprob(token_id=70_000, logprob=-0.5)
    assert decode_event(service_pb.GenerateResponse(delta=delta)) == Delta(
        text="é",
        token_ids=(70_000,),
        logprobs=(
            PositionLogprobs(
                sampled=expected_sampled, top=(TokenLogprob(token_id=3, logprob=-0.25), expected_sampled)
            ),
        ),
    )


@pytest.mark.parametrize(
    ("matched", "expected"),
    [({}, None), ({"matched_stop_string": "end"}, "end"), ({"matched_stop_token_id": 0}, 0)],
)
def test_decode_final(matched: dict[str, str | int], expected: str | int | None) -> None:
    final = types_pb.FinalOutput(
        finish_reason=types_pb.FINISH_REASON_STOP,
        usage=types_pb.Usage(num_prompt_tokens=5, num_output_tokens=3, num_cached_tokens=4),
        timings=types_pb.Timings(queue=Duration(), total=Duration(seconds=2, nanos=250_000_000)),
        **matched,  # type: ignore[arg-type]
    )
    assert decode_event(service_pb.GenerateManyResponse(request_id="a", final=final)) == FinalOutput(
        finish_reason=FinishReason.STOP,
        matched_stop=expected,
        usage=Usage(num_prompt_tokens=5, num_output_tokens=3, num_cached_tokens=4),
        timings=Timings(queue_seconds=0.0, first_token_seconds=None, total_seconds=2.25),
    )


def test_decode_an_error_event() -> None:
    error = service_pb.RequestError(code=8, message="full")
    event = decode_event(service_pb.GenerateManyResponse(request_id="a", error=error))
    assert isinstance(event, ResourceExhausted)
    assert event.message == "full"


def test_events_that_tell_a_caller_nothing_are_left_out() -> None:
    assert decode_event(service_pb.GenerateResponse(request_id="a")) is None
    status = types_pb.StatusUpdate(status=types_pb.REQUEST_STATUS_WAITING_FOR_WORKER)
    assert decode_event(service_pb.GenerateManyResponse(request_id="a", status=status)) is None


def test_an_end_of_an_unknown_kind_is_the_servers_fault() -> None:
    with pytest.raises(Internal, match="unknown finish reason 0"):
        decode_event(service_pb.GenerateResponse(final=types_pb.FinalOutput()))


def test_decode_model_info() -> None:
    message = service_pb.GetModelInfoResponse(
        model_name="m",
        architecture="A",
        vocab_size=1,
        max_model_len=2,
        eos_token_ids=[3, 4],
        server_version="5",
    )
    assert decode_model_info(message) == ModelInfo(
        model_name="m",
        architecture="A",
        vocab_size=1,
        max_model_len=2,
        eos_token_ids=(3, 4),
        has_chat_template=False,
        server_version="5",
    )


def test_collector_joins_all_deltas() -> None:
    collector = OutputCollector("r")
    first, second = Delta(text="a", token_ids=(1, 2)), Delta(text="b", token_ids=(3,))
    assert collector.feed(first) is first
    with pytest.raises(StreamNotFinished, match="request 'r' has not ended"):
        collector.completion()
    with pytest.raises(Internal, match="request 'r': the stream ended without a final message"):
        collector.end()
    collector.feed(second)
    assert collector.feed(FINAL) is None
    collector.end()
    assert collector.completion() == Completion(
        request_id="r",
        text="ab",
        token_ids=(1, 2, 3),
        logprobs=(),
        finish_reason=FINAL.finish_reason,
        matched_stop=None,
        usage=FINAL.usage,
        timings=FINAL.timings,
    )
    with pytest.raises(Internal, match="more after the final message"):
        collector.feed(first)
