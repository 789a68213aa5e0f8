"""Which requests of a bulk are sent, and when."""

from collections.abc import Iterator

import pytest
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire_client import AlreadyExists, Delta, Internal, InvalidRequest
from stepwire_client.bulk_window import BulkWindow
from stepwire_client.requests import GenerationRequest

FINAL = types_pb.FinalOutput(finish_reason=types_pb.FINISH_REASON_LENGTH)


def numbered(count: int, taken: list[int]) -> Iterator[GenerationRequest]:
    for index in range(count):
        taken.append(index)
        yield GenerationRequest.of("hi", request_id=f"r{index}")


def pulled_ids(window: BulkWindow) -> list[str]:
    ids = []
    while (message := window.pull()) is not None:
        ids.append(message.generate.request_id)
    return ids


def test_a_full_window_takes_no_more_requests_until_one_ends() -> None:
    taken: list[int] = []
    window = BulkWindow(numbered(3, taken), 2)
    assert pulled_ids(window) == ["r0", "r1"]
    assert (taken, window.is_exhausted) == ([0, 1], False)
    delta = types_pb.OutputDelta(text="x", token_ids=[1])
    fed = window.feed(service_pb.GenerateManyResponse(request_id="r1", delta=delta))
    assert fed == ("r1", Delta(text="x", token_ids=(1,)))
    assert pulled_ids(window) == []
    window.feed(service_pb.GenerateManyResponse(request_id="r1", final=FINAL))
    assert pulled_ids(window) == ["r2"]
    assert window.pull() is None


def test_an_error_makes_room_too() -> None:
    window = BulkWindow(numbered(2, []), 1)
    assert pulled_ids(window) == ["r0"]
    request_id, event = window.feed(
        service_pb.GenerateManyResponse(request_id="r0", error=service_pb.RequestError(code=3, message="bad"))
    )
    assert (request_id, type(event)) == ("r0", InvalidRequest)
    assert pulled_ids(window) == ["r1"]


def test_a_request_that_cannot_be_sent_ends_alone() -> None:
    good = GenerationRequest.of("hi", request_id="good")
    window = BulkWindow([GenerationRequest.of("hi", request_id="bad", top_k=-1), good], 1)
    assert pulled_ids(window) == ["good"]
    refused = window.take_refused()
    assert refused is not None
    assert (refused[0], type(refused[1])) == ("bad", InvalidRequest)
    assert window.take_refused() is None


def test_missing_ids_are_drawn_and_differ() -> None:
    window = BulkWindow([GenerationRequest.of("a"), GenerationRequest.of("b")], 2)
    first, second = pulled_ids(window)
    assert len(first) == len(second) == 32
    assert first != second


def test_an_id_that_is_open_is_refused() -> None:
    request = GenerationRequest.of("hi", request_id="same")
    window = BulkWindow([request, request], 2)
    with pytest.raises(AlreadyExists, match=r"^request_id is 'same', but must not be in use on the stream$"):
        pulled_ids(window)


def test_the_end_is_checked() -> None:
    window = BulkWindow(numbered(1, []), 1)
    with pytest.raises(Internal, match="while 0 requests were open"):
        window.end()
    pulled_ids(window)
    with pytest.raises(Internal, match="while 1 requests were open"):
        window.end()
    window.feed(service_pb.GenerateManyResponse(request_id="r0", final=FINAL))
    assert window.pull() is None
    window.end()
    with pytest.raises(Internal, match="request 'r0', which is not open"):
        window.feed(service_pb.GenerateManyResponse(request_id="r0", final=FINAL))


def test_a_window_must_have_room() -> None:
    with pytest.raises(InvalidRequest, match="max_concurrent is 0, but must be at least 1"):
        BulkWindow([], 0)
