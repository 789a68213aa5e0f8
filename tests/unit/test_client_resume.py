"""When a client goes on after a break, from where, and when it gives up; the clock is the test's."""

import grpc
import pytest
from stepwire.v1 import generation_service_pb2 as service_pb
from stepwire.v1 import types_pb2 as types_pb
from stepwire_client import ConnectionFailed, DeadlineExceeded, ResourceExhausted, Unavailable
from stepwire_client.errors import StepwireClientError, error_of_number
from stepwire_client.resume import MAX_BREAKS, Patience, ResumePoint

LOST = Unavailable("Socket closed", is_resumable=True)
LET_GO = Unavailable("the engine is gone", is_resumable=True, retry_after_seconds=0.4)
TRY_LATER = Unavailable("no worker", retry_after_seconds=1.0)
NOBODY = ConnectionFailed("failed to connect to all addresses")
REQUEST = service_pb.GenerateRequest(request_id="r", text="x", sampling=types_pb.SamplingParams(top_k=3))


def make_patience(**options: float) -> Patience:
    return Patience(**{"now_seconds": 0.0, "draw": lambda: 1.0, **options})  # type: ignore[arg-type]


def point_after(*messages: service_pb.GenerateResponse) -> ResumePoint:
    point = ResumePoint(REQUEST)
    assert point.next_request() == REQUEST
    for message in messages:
        point.take(message)
    return point


def delay(
    patience: Patience, error: StepwireClientError, now_seconds: float = 0.0, *, is_resumed: bool = False
) -> float | None:
    return patience.delay_after(error, now_seconds, points=(point_after(),), is_resumed=is_resumed)


def test_the_next_request_tells_what_was_told() -> None:
    deltas = [types_pb.OutputDelta(text="é", token_ids=[5, 6]), types_pb.OutputDelta(text="", token_ids=[7])]
    point = point_after(
        service_pb.GenerateResponse(delta=deltas[0], seed=0),
        service_pb.GenerateResponse(status=types_pb.StatusUpdate(status=types_pb.REQUEST_STATUS_RUNNING)),
        service_pb.GenerateResponse(delta=deltas[1]),
    )
    expected = service_pb.GenerateRequest()
    expected.CopyFrom(REQUEST)
    expected.sampling.seed = 0
    expected.resume.CopyFrom(service_pb.Resume(token_ids=[5, 6, 7], num_text_bytes=2))
    assert (point.can_resume, point.is_resumed) == (True, False)
    assert point.next_request() == expected
    assert point.is_resumed
    assert not REQUEST.HasField("resume")


def test_a_server_that_tells_no_seed_cannot_go_on_once_it_told_tokens() -> None:
    assert point_after().can_resume
    told = point_after(service_pb.GenerateResponse(delta=types_pb.OutputDelta(token_ids=[1])))
    assert not told.can_resume
    assert make_patience().delay_after(LOST, 0.0, points=(told,), is_resumed=False) is None


@pytest.mark.parametrize(
    ("error", "first", "later"),
    [
        (LOST, 0.1, 0.1),
        (LET_GO, 0.4, 0.4),
        (TRY_LATER, None, 1.0),
        (NOBODY, None, 0.1),
        (Unavailable("refused"), None, None),
        (ResourceExhausted("full", retry_after_seconds=1.0), None, None),
        (DeadlineExceeded("late"), None, None),
        (error_of_number(14, "why", is_resumable=True, retry_after_ms=250), 0.25, 0.25),
    ],
)
def test_only_what_was_let_go_of_is_tried_again(
    error: StepwireClientError, first: float | None, later: float | None
) -> None:
    assert delay(make_patience(), error) == first
    assert delay(make_patience(), error, is_resumed=True) == later


def test_tries_come_ever_slower_until_there_is_output() -> None:
    patience = make_patience()
    delays = [delay(patience, LOST), *(delay(patience, NOBODY, is_resumed=True) for _ in range(6))]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    patience.note_output()
    assert delay(patience, LOST) == 0.1


def test_clients_do_not_come_back_all_at_once() -> None:
    assert delay(Patience(now_seconds=0.0, draw=lambda: 0.0), LET_GO) == 0.2


def test_patience_ends_when_a_generation_gets_nowhere() -> None:
    patience = make_patience(resume_seconds=10.0)
    assert delay(patience, LOST, 100.0) == 0.1
    assert delay(patience, NOBODY, 109.0, is_resumed=True) == 0.2
    assert delay(patience, NOBODY, 109.8, is_resumed=True) is None
    patience.note_output()
    assert delay(patience, LOST, 109.8) == 0.1
    assert delay(make_patience(resume_seconds=0.0), LOST) is None
    for timeout_seconds, gives_up in ((None, True), (1000.0, False)):
        patience = Patience(now_seconds=0.0, timeout_seconds=timeout_seconds)
        assert delay(patience, LOST, 0.0) is not None
        assert (delay(patience, NOBODY, 61.0, is_resumed=True) is None) == gives_up


def test_the_deadline_is_of_all_tries_together() -> None:
    patience = make_patience(timeout_seconds=5.0)
    assert patience.seconds_left(1.0) == 4.0
    assert delay(patience, LOST, 4.85) == 0.1
    with pytest.raises(DeadlineExceeded, match="timeout_seconds pass before the next try: no worker"):
        delay(patience, TRY_LATER, 4.85, is_resumed=True)
    assert patience.seconds_left(6.0) == 0.0
    assert make_patience().seconds_left(6.0) is None


def test_a_request_whose_streams_break_too_often_ends() -> None:
    patience, point = make_patience(), point_after()
    for _ in range(MAX_BREAKS):
        assert patience.delay_after(LOST, 0.0, points=(point,), is_resumed=True) is not None
        patience.note_output()
    assert patience.delay_after(TRY_LATER, 0.0, points=(point,), is_resumed=True) is not None
    assert patience.delay_after(LOST, 0.0, points=(point,), is_resumed=True) is None


def test_a_failure_to_connect_is_no_broken_stream() -> None:
    refused = error_of_number(14, "failed to connect to all addresses; x", is_resumable=True)
    assert (type(refused), refused.is_resumable) == (ConnectionFailed, False)
    assert refused.code is grpc.StatusCode.UNAVAILABLE
