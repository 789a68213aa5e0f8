"""Which requests of a bulk are sent, and when."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire_client import AlreadyExists, Delta, Internal, InvalidRequest, Unavailable
from stepwire_client.bulk_window import BulkEvent, BulkWindow, Pause
from stepwire_client.requests import GenerationRequest
from stepwire_client.resume import Patience

FINAL = types_pb.FinalOutput(finish_reason=types_pb.FINISH_REASON_LENGTH)


def make_window(requests: Iterable[GenerationRequest], max_concurrent: int) -> BulkWindow:
    return BulkWindow(requests, max_concurrent, Patience(now_seconds=0.0, draw=lambda: 1.0))


def feed(window: BulkWindow, now_seconds: float = 0.0, **fields: Any) -> BulkEvent | Pause | None:
    return window.feed(service_pb.GenerateManyResponse(**fields), now_seconds)


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
    window = make_window(numbered(3, taken), 2)
    assert pulled_ids(window) == ["r0", "r1"]
    assert (taken, window.is_exhausted) == ([0, 1], False)
    delta = types_pb.OutputDelta(text="x", token_ids=[1])
    fed = feed(window, request_id="r1", delta=delta)
    assert fed == ("r1", Delta(text="x", token_ids=(1,)))
    assert pulled_ids(window) == []
    feed(window, request_id="r1", final=FINAL)
    assert pulled_ids(window) == ["r2"]
    assert window.pull() is None


def test_an_error_makes_room_too() -> None:
    window = make_window(numbered(2, []), 1)
    assert pulled_ids(window) == ["r0"]
    fed = feed(window, request_id="r0", error=service_pb.RequestError(code=3, message="bad"))
    assert isinstance(fed, tuple)
    assert (fed[0], type(fed[1])) == ("r0", InvalidRequest)
    assert pulled_ids(window) == ["r1"]


def test_a_request_that_cannot_be_sent_ends_alone() -> None:
    good = GenerationRequest.of("hi", request_id="good")
    window = make_window([GenerationRequest.of("hi", request_id="bad", top_k=-1), good], 1)
    assert pulled_ids(window) == ["good"]
    refused = window.take_refused()
    assert refused is not None
    assert (refused[0], type(refused[1])) == ("bad", InvalidRequest)
    assert window.take_refused() is None


def test_missing_ids_are_drawn_and_differ() -> None:
    window = make_window([GenerationRequest.of("a"), GenerationRequest.of("b")], 2)
    first, second = pulled_ids(window)
    assert len(first) == len(second) == 32
    assert first != second


def test_an_id_that_is_open_is_refused() -> None:
    request = GenerationRequest.of("hi", request_id="same")
    window = make_window([request, request], 2)
    with pytest.raises(AlreadyExists, match=r"^request_id is 'same', but must not be in use on the stream$"):
        pulled_ids(window)


def test_the_end_is_checked() -> None:
    window = make_window(numbered(1, []), 1)
    with pytest.raises(Internal, match="while 0 requests were open"):
        window.end()
    pulled_ids(window)
    with pytest.raises(Internal, match="while 1 requests were open"):
        window.end()
    feed(window, request_id="r0", final=FINAL)
    assert window.pull() is None
    window.end()
    with pytest.raises(Internal, match="request 'r0', which is not open"):
        feed(window, request_id="r0", final=FINAL)


def test_a_window_must_have_room() -> None:
    with pytest.raises(InvalidRequest, match="max_concurrent is 0, but must be at least 1"):
        make_window([], 0)


LET_GO = service_pb.RequestError(code=14, message="the engine is gone", is_resumable=True, retry_after_ms=200)
TRY_LATER = service_pb.RequestError(code=14, message="no worker", retry_after_ms=1000)


def test_what_is_open_goes_on_together() -> None:
    window = make_window(numbered(4, []), 2)
    assert pulled_ids(window) == ["r0", "r1"]
    delta = types_pb.OutputDelta(text="é", token_ids=[1, 2])
    feed(window, request_id="r0", delta=delta, seed=7)
    assert feed(window, request_id="r0", error=LET_GO) == Pause(0.2)
    sent = [message.generate for message in iter(window.pull, None)]
    assert [request.request_id for request in sent] == ["r0", "r1"]
    assert (sent[0].sampling.seed, sent[0].text) == (7, "hi")
    assert sent[0].resume == service_pb.Resume(token_ids=[1, 2], num_text_bytes=2)
    assert sent[1].HasField("resume")
    assert sent[1].resume == service_pb.Resume(num_text_bytes=0)
    # The server is not back yet: what was under way waits, what is new would be told.
    assert isinstance(feed(window, request_id="r1", error=TRY_LATER), Pause)
    assert pulled_ids(window) == ["r0", "r1"]
    for request_id in ("r0", "r1"):
        feed(window, request_id=request_id, final=FINAL)
    assert pulled_ids(window) == ["r2", "r3"]
    fed = feed(window, request_id="r2", error=TRY_LATER)
    assert isinstance(fed, tuple)
    assert isinstance(fed[1], Unavailable)
    assert fed[1].retry_after_seconds == 1.0


def test_a_broken_stream_goes_on_until_patience_ends() -> None:
    window = make_window(numbered(1, []), 1)
    assert pulled_ids(window) == ["r0"]
    lost = Unavailable("Socket closed", is_resumable=True)
    assert window.break_off(lost, 100.0) == Pause(0.1)
    assert not window.is_exhausted
    assert pulled_ids(window) == ["r0"]
    with pytest.raises(Unavailable, match="Socket closed"):
        window.break_off(lost, 161.0)


def test_what_a_stopping_server_did_not_begin_goes_on_where_the_bulk_is_under_way() -> None:
    stopping = Unavailable("the server is stopping", retry_after_seconds=1.0)
    window = make_window(numbered(2, []), 1)
    assert pulled_ids(window) == ["r0"]
    feed(window, request_id="r0", final=FINAL)
    assert pulled_ids(window) == ["r1"]
    assert isinstance(window.break_off(stopping, 100.0), Pause)
    assert pulled_ids(window) == ["r1"]
    untouched = make_window(numbered(1, []), 1)
    pulled_ids(untouched)
    with pytest.raises(Unavailable, match="the server is stopping"):
        untouched.break_off(stopping, 100.0)


def test_a_status_is_nothing_for_a_caller() -> None:
    window = make_window(numbered(1, []), 1)
    pulled_ids(window)
    assert (
        feed(window, request_id="r0", status=types_pb.StatusUpdate(status=types_pb.REQUEST_STATUS_RUNNING))
        is None
    )
    assert feed(window, request_id="r0") is None
