"""How a generation goes on after its stream broke: from where, when, and when no more.

Only what the server or the network lets go of is tried again, never what was refused, and no token is
told twice. Pure: knows nothing about channels, threads, event loops or clocks (the caller says what
time it is).
"""

import math
import random
from collections.abc import Callable, Collection

import grpc
from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.errors import ConnectionFailed, DeadlineExceeded, StepwireClientError

RESUME_SECONDS_WITHOUT_DEADLINE = 60.0
"""How long a generation without a deadline may get nowhere: most servers restart within this time."""

MAX_BREAKS = 10
"""A stream that was under way may break this often: a request may be what the server dies of."""

_FIRST_DELAY_SECONDS = 0.1
_MAX_DELAY_SECONDS = 2.0


class ResumePoint:
    """One request, and where its output has got to."""

    def __init__(self, request: service_pb.GenerateRequest) -> None:
        self._request = request
        self._seed: int | None = None
        self._token_ids: list[int] = []
        self._num_text_bytes = 0
        self._num_sent = 0
        self._num_breaks = 0

    @property
    def is_resumed(self) -> bool:
        """Whether it was sent more than once."""
        return self._num_sent > 1

    @property
    def num_resumes(self) -> int:
        """How often it was sent again."""
        return max(0, self._num_sent - 1)

    @property
    def can_resume(self) -> bool:
        """Whether it may go on: its streams did not break too often, and the server knows how.

        One that tells no seed does not.
        """
        return self._num_breaks <= MAX_BREAKS and (self._seed is not None or not self._token_ids)

    def note_break(self) -> None:
        """Note that its stream broke while it was under way."""
        self._num_breaks += 1

    def take(self, message: service_pb.GenerateResponse | service_pb.GenerateManyResponse) -> bool:
        """Note what a message tells; return whether it brought tokens or the end."""
        if message.HasField("seed"):
            self._seed = message.seed
        self._token_ids += message.delta.token_ids
        self._num_text_bytes += len(message.delta.text.encode())
        return bool(message.delta.token_ids) or message.HasField("final")

    def next_request(self) -> service_pb.GenerateRequest:
        """Return what to send: the request itself, later where it goes on."""
        self._num_sent += 1
        if not self.is_resumed:
            return self._request
        request = service_pb.GenerateRequest()
        request.CopyFrom(self._request)
        if self._seed is not None:
            request.sampling.seed = self._seed
        request.resume.token_ids.extend(self._token_ids)
        request.resume.num_text_bytes = self._num_text_bytes
        return request


class Patience:
    """When to try again after a break, and when to give up."""

    def __init__(
        self,
        *,
        now_seconds: float,
        timeout_seconds: float | None = None,
        resume_seconds: float | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Begin a call that has ``timeout_seconds`` for all its tries together.

        Args:
            now_seconds: what the caller's clock says.
            timeout_seconds: until the deadline; None: no deadline.
            resume_seconds: how long to get nowhere; 0: never try again; None: until the deadline, and
                without one for 60 s.
            draw: gives a number in [0, 1), so that many clients do not come back all at once.
        """
        self._deadline_seconds = None if timeout_seconds is None else now_seconds + timeout_seconds
        if resume_seconds is None:
            resume_seconds = RESUME_SECONDS_WITHOUT_DEADLINE if timeout_seconds is None else math.inf
        self._resume_seconds = resume_seconds
        self._draw = draw
        self._num_failures = 0
        """Tries since the last output."""
        self._paused_since_seconds = now_seconds

    def seconds_left(self, now_seconds: float) -> float | None:
        """Tell the time until the deadline; None without one."""
        return None if self._deadline_seconds is None else max(0.0, self._deadline_seconds - now_seconds)

    def note_output(self) -> None:
        """Note that the server told something: the generation gets on."""
        self._num_failures = 0

    def delay_after(
        self,
        error: StepwireClientError,
        now_seconds: float,
        *,
        points: Collection[ResumePoint],
        is_resumed: bool,
    ) -> float | None:
        """Tell how long to wait before the next try; None: the error is the end.

        Args:
            error: how the stream broke, or why it was not taken.
            now_seconds: what the caller's clock says.
            points: what would go on.
            is_resumed: whether what failed was under way before; what never was is tried again only
                where the server, or the network, let go of it.

        Raises:
            DeadlineExceeded: if the deadline comes before the next try.
        """
        can_wait = error.retry_after_seconds is not None or isinstance(error, ConnectionFailed)
        if error.code is not grpc.StatusCode.UNAVAILABLE or not (
            error.is_resumable or (is_resumed and can_wait)
        ):
            return None
        for point in points:
            if error.is_resumable:
                point.note_break()
        if not self._num_failures:
            self._paused_since_seconds = now_seconds
        delay_seconds = self._next_delay_seconds(error.retry_after_seconds)
        is_too_long = now_seconds + delay_seconds - self._paused_since_seconds > self._resume_seconds
        if is_too_long or not all(point.can_resume for point in points):
            return None
        left_seconds = self.seconds_left(now_seconds)
        if left_seconds is not None and left_seconds <= delay_seconds:
            raise DeadlineExceeded(f"timeout_seconds pass before the next try: {error.message}") from error
        return delay_seconds

    def _next_delay_seconds(self, retry_after_seconds: float | None) -> float:
        """Double from try to try: the server's own hint counts for the first one only."""
        first_seconds = _FIRST_DELAY_SECONDS
        if not self._num_failures and retry_after_seconds is not None:
            first_seconds = retry_after_seconds
        longest = min(_MAX_DELAY_SECONDS, first_seconds * 2.0**self._num_failures)
        self._num_failures += 1
        return longest * (0.5 + 0.5 * self._draw())
