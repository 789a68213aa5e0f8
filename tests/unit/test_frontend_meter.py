"""What a front end counts, worked out by hand."""

import asyncio

import grpc
import pytest
from stepwire.v1 import generation_service_pb2

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import (
    DeadlineError,
    DrainingError,
    InternalError,
    InvalidRequestError,
    QueueFullError,
    RequestInterruptedError,
    SlowConsumerError,
    UnsupportedError,
    WorkerUnavailableError,
)
from scheduler_svc.frontend.meter import FrontendMeter
from scheduler_svc.frontend.values import Final
from scheduler_svc.metrics import CODES, METHODS, OUTCOMES, frontend_metrics
from telemetry.board import Board

SECOND_NS = 10**9


@pytest.fixture
def board() -> Board:
    """Return where the meter counts."""
    return Board(frontend_metrics())


def final(reason: FinishReason = FinishReason.LENGTH, *, num_output_tokens: int = 5) -> Final:
    return Final(
        reason=reason,
        num_prompt_tokens=3,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=0,
        queue_time_ns=0,
        first_token_time_ns=SECOND_NS // 2,
        total_time_ns=5 * SECOND_NS // 2,
    )


def total(board: Board, name: str) -> tuple[float, float]:
    """Return how many values a histogram took, and their sum."""
    buckets = board.buckets(f"stepwire_frontend_{name}")
    return sum(buckets.counts()), buckets.sum


def test_a_request_that_ends_well(board: Board) -> None:
    FrontendMeter(board).note_final(final())
    assert total(board, "e2e_request_latency_seconds") == (1, 2.5)
    assert total(board, "time_per_output_token_seconds") == (1, 0.5)
    assert total(board, "request_prompt_tokens") == (1, 3)
    assert total(board, "request_output_tokens") == (1, 5)
    assert board.slot("stepwire_frontend_requests_total", "length").value == 1


def test_tokens_that_a_resumed_request_brought_took_no_time(board: Board) -> None:
    FrontendMeter(board).note_final(final(), num_known_tokens=3)
    assert total(board, "time_per_output_token_seconds") == (1, 2.0)


def test_one_token_has_no_time_per_token(board: Board) -> None:
    FrontendMeter(board).note_final(final(num_output_tokens=1))
    assert total(board, "time_per_output_token_seconds") == (0, 0)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (asyncio.CancelledError(), "cancelled"),
        (DeadlineError("late"), "deadline"),
        (DrainingError("stops"), "draining"),
        (InvalidRequestError("no"), "invalid"),
        (QueueFullError("full"), "queue_full"),
        (RequestInterruptedError("gone"), "interrupted"),
        (SlowConsumerError("slow"), "slow_consumer"),
        (UnsupportedError("not here"), "invalid"),
        (WorkerUnavailableError("none"), "unavailable"),
        (InternalError("ours"), "internal"),
        (KeyError("ours, too"), "internal"),
    ],
)
def test_every_end_is_counted_once_by_its_kind(board: Board, error: BaseException, outcome: str) -> None:
    meter = FrontendMeter(board)
    gauge = board.slot("stepwire_frontend_open_requests")

    def end() -> None:
        with meter.request():
            assert gauge.value == 1
            raise error

    with pytest.raises(type(error)):
        end()
    assert gauge.value == 0
    counts = {each: board.slot("stepwire_frontend_requests_total", each).value for each in OUTCOMES}
    assert {each for each, count in counts.items() if count} == {outcome}
    assert counts[outcome] == 1


def test_the_methods_are_those_of_the_service() -> None:
    service = generation_service_pb2.DESCRIPTOR.services_by_name["GenerationService"]
    assert [*(method.name for method in service.methods), "other"] == list(METHODS)
    assert [code.name for code in grpc.StatusCode] == list(CODES)


def test_calls_by_method_and_code(board: Board) -> None:
    meter = FrontendMeter(board)
    meter.note_call("/stepwire.v1.GenerationService/Generate", "OK")
    meter.note_call("/some.other.Service/Generate", "INTERNAL")
    counts = {
        (method, code): board.slot("stepwire_frontend_calls_total", method, code).value
        for method in METHODS
        for code in CODES
    }
    assert {key: count for key, count in counts.items() if count} == {
        ("Generate", "OK"): 1,
        ("other", "INTERNAL"): 1,
    }


def test_equal_gaps_of_one_message_are_counted_together(board: Board) -> None:
    tokens = FrontendMeter(board).tokens
    tokens.now_ns = 3 * SECOND_NS
    for last_second in (1, 1, 2, 3):
        tokens.note_next(last_second * SECOND_NS)
    tokens.end_message()
    tokens.end_message()
    # Twice 2 s, once 1 s, and one token that came with the one before it.
    assert total(board, "inter_token_latency_seconds") == (4, 5.0)
    tokens.begin_message()
    tokens.end_message()
    assert total(board, "inter_token_latency_seconds") == (4, 5.0)
