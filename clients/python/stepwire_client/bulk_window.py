"""Which requests of a bulk are sent, which are still open, and which go on after the stream broke.

Pure: knows nothing about channels, threads or event loops; both kinds of bulk streams share it.
"""

import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.decode import decode_event
from stepwire_client.encode import encode_request
from stepwire_client.errors import AlreadyExists, Internal, InvalidRequest, StepwireClientError
from stepwire_client.requests import GenerationRequest
from stepwire_client.results import Delta, FinalOutput
from stepwire_client.resume import Patience, ResumePoint

BulkEvent = tuple[str, Delta | FinalOutput | StepwireClientError]
"""Whose event, and the event: an error ends its own request only."""

DEFAULT_MAX_CONCURRENT = 256


@dataclass(frozen=True, slots=True)
class Pause:
    """The stream broke: after so many seconds a new one goes on with all that is open."""

    seconds: float


def with_request_id(request: GenerationRequest) -> GenerationRequest:
    """Return ``request`` with an id: its own, or a new one."""
    return request if request.request_id else replace(request, request_id=uuid.uuid4().hex)


class BulkWindow:
    """Hands requests out, at most ``max_concurrent`` open at a time, so that no queue limit is hit."""

    def __init__(
        self, requests: Iterable[GenerationRequest], max_concurrent: int, patience: Patience
    ) -> None:
        if max_concurrent < 1:
            raise InvalidRequest(f"max_concurrent is {max_concurrent}, but must be at least 1")
        self._requests = iter(requests)
        self._max_concurrent = max_concurrent
        self._patience = patience
        self._points: dict[str, ResumePoint] = {}
        self._resends: deque[str] = deque()
        """Open requests that the present stream does not know yet."""
        self._refused: deque[BulkEvent] = deque()
        self._has_taken_all = False
        self._is_under_way = False
        """Whether the server told anything."""

    @property
    def is_exhausted(self) -> bool:
        """Whether all requests were handed out to the present stream."""
        return self._has_taken_all and not self._resends

    @property
    def is_done(self) -> bool:
        """Whether every request has ended."""
        return self._has_taken_all and not self._points

    def seconds_left(self, now_seconds: float) -> float | None:
        """Tell the time until the deadline; None without one."""
        return self._patience.seconds_left(now_seconds)

    def pull(self) -> service_pb.GenerateManyRequest | None:
        """Return the next message to send; None while the window is full and after the last one.

        Raises:
            AlreadyExists: if a request has the id of one that is open.
        """
        while self._resends:
            point = self._points.get(self._resends.popleft())
            if point is not None:
                return service_pb.GenerateManyRequest(generate=point.next_request())
        while len(self._points) < self._max_concurrent and not self._has_taken_all:
            request = next(self._requests, None)
            if request is None:
                self._has_taken_all = True
                return None
            message = self._open(with_request_id(request))
            if message is not None:
                return message
        return None

    def _open(self, request: GenerationRequest) -> service_pb.GenerateManyRequest | None:
        if request.request_id in self._points:
            raise AlreadyExists(f"request_id is {request.request_id!r}, but must not be in use on the stream")
        try:
            point = ResumePoint(encode_request(request))
        except InvalidRequest as error:
            self._refused.append((request.request_id, error))
            return None
        self._points[request.request_id] = point
        return service_pb.GenerateManyRequest(generate=point.next_request())

    def take_refused(self) -> BulkEvent | None:
        """Return the next request that could not be encoded, and why."""
        return self._refused.popleft() if self._refused else None

    def feed(self, message: service_pb.GenerateManyResponse, now_seconds: float) -> BulkEvent | Pause | None:
        """Take a message of the server in, and return what it tells; None: nothing for a caller.

        Raises:
            Internal: if it is about no open request.
        """
        request_id = message.request_id
        point = self._points.get(request_id)
        if point is None:
            raise Internal(f"the server sent output of request {request_id!r}, which is not open")
        self._is_under_way = True
        event = decode_event(message)
        if isinstance(event, StepwireClientError):
            pause = self._pause_after(event, now_seconds, is_resumed=point.is_resumed)
            if pause is not None:
                return pause
        elif point.take(message):
            self._patience.note_output()
        if event is None:
            return None
        if not isinstance(event, Delta):
            del self._points[request_id]
        return request_id, event

    def break_off(self, error: StepwireClientError, now_seconds: float) -> Pause:
        """Take the break of the whole stream in.

        Where the bulk is under way, requests that the stream had not begun go on, too: a server that stops
        ends a stream of which nothing is open, and what was sent meanwhile is lost with it.

        Raises:
            StepwireClientError: the error itself where it is the end.
        """
        points = tuple(self._points.values())
        is_resumed = self._is_under_way or any(point.is_resumed for point in points)
        pause = self._pause_after(error, now_seconds, is_resumed=is_resumed)
        if pause is None:
            raise error
        return pause

    def _pause_after(
        self, error: StepwireClientError, now_seconds: float, *, is_resumed: bool
    ) -> Pause | None:
        """Have all that is open sent again after an error, unless that is the end."""
        delay_seconds = self._patience.delay_after(
            error, now_seconds, points=self._points.values(), is_resumed=is_resumed
        )
        if delay_seconds is None:
            return None
        self._resends = deque(self._points)
        return Pause(delay_seconds)

    def end(self) -> None:
        """Check, when the stream has ended without an error, that every request has.

        Raises:
            Internal: if one has not.
        """
        if not self.is_done:
            raise Internal(f"the stream ended while {len(self._points)} requests were open")
