"""One bounded, merging buffer between the engine's tokens and a client's stream.

Tokens come in one by one and leave as one message for all that gathered. Past its bound the buffer
ends the request: a client that does not read costs nobody else. The first output is written at
once; after each write a stream waits a delay of its own, so that many streams share a core without
a common tick; its end is not delayed. Knows nothing about gRPC, protobuf or the engine's socket.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import SlowConsumerError, StepwireError
from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.meter import TokenMeter
from scheduler_svc.frontend.values import Ended, Final, Output, RequestStatus, TokenLogprobs
from scheduler_svc.frontend.write_turns import WriteTurns

MAX_PENDING = 16384
"""Tokens and log-probability entries that may wait for one client: minutes of output, about 2 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The front end ended a request by itself: why, and how many tokens count."""

    reason: FinishReason
    num_output_tokens: int = 0


class RequestStream:
    """One request between its acceptance and its end."""

    def __init__(
        self,
        generation: Generation,
        *,
        num_prompt_tokens: int,
        arrival_ns: int,
        max_pending: int = MAX_PENDING,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        meter: TokenMeter,
    ) -> None:
        """Start empty; ``arrival_ns`` is what ``clock_ns`` said when the request came."""
        self._generation = generation
        self.num_prompt_tokens = num_prompt_tokens
        self._arrival_ns = arrival_ns
        self._max_pending = max_pending
        self._clock_ns = clock_ns
        self._meter = meter
        self._first_token_time_ns = 0
        self._last_token_ns = 0
        self.num_cached_tokens = 0
        """Of the prompt, as far as the engine told yet."""
        self._queue_time_ns = 0
        self._final: Final | None = None
        self._error: StepwireError | None = None
        self._status: RequestStatus | None = None
        """The last one that the client does not know of."""
        self._waiter: asyncio.Future[None] | None = None
        self.on_end: Callable[[], None] | None = None
        """Called when nothing more will come in."""

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will come in."""
        return self._final is not None or self._error is not None

    def started(self, *, num_cached_tokens: int, queue_time_ns: int) -> None:
        """Note what the engine told with the request's first step."""
        self.num_cached_tokens = num_cached_tokens
        self._queue_time_ns = queue_time_ns
        self._meter.note_started(queue_time_ns / 1e9)

    def told_status(self, status: RequestStatus) -> None:
        """Tell the client what the request does, after the output that waits already."""
        self._status = status
        self._notify()

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> Verdict | None:
        """Take one token; return a verdict if it ends the request here."""
        assert self._final is None, "a token after the end"
        assert self._error is None, "a token after an error"
        meter = self._meter
        if not self._first_token_time_ns:
            self._first_token_time_ns = self._clock_ns() - self._arrival_ns
            meter.note_first(self._first_token_time_ns / 1e9)
        else:
            meter.note_next(self._last_token_ns)
        self._last_token_ns = meter.now_ns
        if self._waiter is not None:
            self._notify()
        if self._generation.push(token_id, logprobs):
            self._finish(FinishReason.STOP_STRING, None)
            return Verdict(reason=FinishReason.STOP_STRING, num_output_tokens=self._generation.num_tokens)
        num_pending = self._generation.num_pending
        if num_pending <= self._max_pending:
            return None
        self._generation.drop()
        self.failed(
            SlowConsumerError(
                f"the client does not read: {num_pending} tokens wait, but at most {self._max_pending} may"
            )
        )
        return Verdict(reason=FinishReason.SLOW_CONSUMER)

    def ended(self, ended: Ended) -> None:
        """Take the engine's word that the request ended without an error."""
        assert not self.is_ended, "a request ends once"
        self._generation.close()
        self.num_cached_tokens = ended.num_cached_tokens
        self._queue_time_ns = ended.queue_time_ns
        is_stop_string = self._generation.matched_stop_string is not None
        reason = FinishReason.STOP_STRING if is_stop_string else ended.reason
        self._finish(reason, None if is_stop_string else ended.matched_stop_token_id)

    def failed(self, error: StepwireError) -> None:
        """End with an error, after what waits already."""
        assert not self.is_ended, "a request ends once"
        self._error = error
        self._notify_end()

    @property
    def has_output(self) -> bool:
        """Whether there is something to take."""
        return self._generation.has_output or self._status is not None or self.is_ended

    async def wait(self) -> None:
        """Wait until there is something to take."""
        if not self.has_output:
            assert self._waiter is None, "one task writes a stream"
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def take(self) -> Output:
        """Take all output that is there; after the last comes the end.

        Raises:
            StepwireError: where the request ended with an error.
        """
        delta = self._generation.take()
        if delta is not None:
            return delta
        if self._status is not None:
            status, self._status = self._status, None
            return status
        if self._error is not None:
            raise self._error
        assert self._final is not None, "takes what is there"
        return self._final

    def _notify(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():  # cancelled: the client is gone
                self._waiter.set_result(None)
            self._waiter = None

    def _notify_end(self) -> None:
        self._notify()
        if self.on_end is not None:
            self.on_end()

    def _finish(self, reason: FinishReason, matched_stop_token_id: int | None) -> None:
        self._final = Final(
            reason=reason,
            matched_stop_string=self._generation.matched_stop_string,
            matched_stop_token_id=matched_stop_token_id,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self._generation.num_tokens,
            num_cached_tokens=self.num_cached_tokens,
            queue_time_ns=self._queue_time_ns,
            first_token_time_ns=self._first_token_time_ns,
            total_time_ns=self._clock_ns() - self._arrival_ns,
        )
        self._notify_end()


async def deliver(
    stream: RequestStream,
    write: Callable[[Output], Awaitable[None]],
    *,
    turns: WriteTurns,
    delay_seconds: Callable[[], float],
) -> Final:
    """Write a stream's output as it comes and its turns allow, until its end.

    Raises:
        StepwireError: where the request ended with an error, after its output.
    """
    while True:
        if not stream.has_output:
            await stream.wait()
            await turns.take()
        output = stream.take()
        await write(output)
        if isinstance(output, Final):
            return output
        seconds = delay_seconds()
        if seconds and not stream.is_ended:
            turn = turns.rest(seconds)
            stream.on_end = partial(turns.end_rest, turn)
            await turn
            stream.on_end = None
