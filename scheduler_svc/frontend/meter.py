"""What a front end counts: calls, requests, and the times of tokens.

The tokens that one message of the engine brings share one look at the clock, and the equal gaps among
them are counted as one. Knows nothing about where the board stands.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler_svc.errors import (
    DeadlineError,
    DrainingError,
    DuplicateRequestError,
    InvalidRequestError,
    QueueFullError,
    RequestInterruptedError,
    SlowConsumerError,
    UnsupportedError,
    WorkerUnavailableError,
)
from scheduler_svc.frontend.call_deadline import is_cancelled_by_deadline
from scheduler_svc.frontend.values import Final
from scheduler_svc.metrics import CODES, METHODS, OUTCOMES, frontend_board_path, frontend_metrics
from telemetry.board import Board

_PREFIX = "stepwire_frontend_"
OUTCOME_OF_ERROR: dict[type[BaseException], str] = {
    asyncio.CancelledError: "cancelled",
    DeadlineError: "deadline",
    DrainingError: "draining",
    DuplicateRequestError: "duplicate_id",
    InvalidRequestError: "invalid",
    QueueFullError: "queue_full",
    RequestInterruptedError: "interrupted",
    SlowConsumerError: "slow_consumer",
    UnsupportedError: "invalid",
    WorkerUnavailableError: "unavailable",
}
"""Any other error is our own fault: internal."""


def outcome_of(error: BaseException) -> str:
    """Tell how a request that raised ``error`` ended for its client."""
    if isinstance(error, asyncio.CancelledError) and is_cancelled_by_deadline():
        return OUTCOME_OF_ERROR[DeadlineError]
    return OUTCOME_OF_ERROR.get(type(error), "internal")


class FrontendMeter:
    """What is counted of one front end."""

    def __init__(self, board: Board) -> None:
        """Count on ``board``, which has a front end's metrics."""
        self.cpu_seconds = board.slot(_PREFIX + "cpu_seconds_total")
        self.tokens = TokenMeter(board)
        self._open = board.slot(_PREFIX + "open_requests")
        self._outcomes = {outcome: board.slot(_PREFIX + "requests_total", outcome) for outcome in OUTCOMES}
        self._calls = {
            (method, code): board.slot(_PREFIX + "calls_total", method, code)
            for method in METHODS
            for code in CODES
        }
        self._total_seconds = board.buckets(_PREFIX + "e2e_request_latency_seconds")
        self._token_seconds = board.buckets(_PREFIX + "time_per_output_token_seconds")
        self._num_prompt_tokens = board.buckets(_PREFIX + "request_prompt_tokens")
        self._num_output_tokens = board.buckets(_PREFIX + "request_output_tokens")

    @classmethod
    def on_board(cls, folder: Path | None = None, *, frontend_index: int = 0) -> "FrontendMeter":
        """Go on with the board in ``folder``; None: count where nobody else looks."""
        metrics = frontend_metrics()
        if folder is None:
            return cls(Board(metrics))
        return cls(Board.taken_over(metrics, frontend_board_path(folder, frontend_index)))

    def note_call(self, method: str, code: str) -> None:
        """Count a call that ended; ``method`` is its full name."""
        service, _, name = method.strip("/").partition("/")
        is_ours = service == "stepwire.v1.GenerationService" and name in METHODS
        self._calls[name if is_ours else "other", code].add()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request from its arrival to its end, whatever end that is."""
        self._open.add(1)
        try:
            yield
        except BaseException as error:
            self._outcomes[outcome_of(error)].add()
            raise
        finally:
            self._open.add(-1)

    def note_final(self, final: Final, *, num_known_tokens: int = 0) -> None:
        """Count a request that ended without an error; it had this much output when it came."""
        self._outcomes[final.reason.name.lower()].add()
        total_seconds = final.total_time_ns / 1e9
        self._total_seconds.observe(total_seconds)
        self._num_prompt_tokens.observe(final.num_prompt_tokens)
        self._num_output_tokens.observe(final.num_output_tokens)
        num_later_tokens = final.num_output_tokens - num_known_tokens - 1
        if num_later_tokens > 0 and final.first_token_time_ns:
            seconds = total_seconds - final.first_token_time_ns / 1e9
            self._token_seconds.observe(seconds / num_later_tokens)


class TokenMeter:
    """The times of tokens: between ``begin_message`` and ``end_message`` come those of one message."""

    def __init__(self, board: Board) -> None:
        self._first_seconds = board.buckets(_PREFIX + "time_to_first_token_seconds")
        self._queue_seconds = board.buckets(_PREFIX + "queue_seconds")
        self._gap_seconds = board.buckets(_PREFIX + "inter_token_latency_seconds")
        self._last_ns = 0
        self._num_equal = 0
        self.now_ns = 0
        """When the message that is being read came."""

    def begin_message(self) -> None:
        """Look at the clock."""
        self.now_ns = time.monotonic_ns()

    def note_next(self, last_ns: int) -> None:
        """Count one more token of a request whose last one came with the message of ``last_ns``."""
        if last_ns != self._last_ns:
            self.end_message()
            self._last_ns = last_ns
        self._num_equal += 1

    def end_message(self) -> None:
        """Count the gaps that gathered."""
        if self._num_equal:
            self._gap_seconds.observe((self.now_ns - self._last_ns) / 1e9, self._num_equal)
            self._num_equal = 0

    def note_first(self, seconds: float) -> None:
        """Count a request's first token, which came so long after the request."""
        self._first_seconds.observe(seconds)

    def note_started(self, queue_seconds: float) -> None:
        """Count a request's first step."""
        self._queue_seconds.observe(queue_seconds)
