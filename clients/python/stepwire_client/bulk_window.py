"""Which requests of a bulk are sent, and which are still open.

Pure: knows nothing about channels, threads or event loops; both kinds of bulk streams share it.
"""

import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from stepwire.v1 import generation_service_pb2 as service_pb

from stepwire_client.decode import decode_event
from stepwire_client.encode import encode_request
from stepwire_client.errors import AlreadyExists, Internal, InvalidRequest, StepwireClientError
from stepwire_client.requests import GenerationRequest
from stepwire_client.results import Delta, FinalOutput

BulkEvent = tuple[str, Delta | FinalOutput | StepwireClientError]
"""Whose event, and the event: an error ends its own request only."""

DEFAULT_MAX_CONCURRENT = 256


def with_request_id(request: GenerationRequest) -> GenerationRequest:
    """Return ``request`` with an id: its own, or a new one."""
    return request if request.request_id else replace(request, request_id=uuid.uuid4().hex)


class BulkWindow:
    """Hands requests out, at most ``max_concurrent`` open at a time, so that no queue limit is hit."""

    def __init__(self, requests: Iterable[GenerationRequest], max_concurrent: int) -> None:
        if max_concurrent < 1:
            raise InvalidRequest(f"max_concurrent is {max_concurrent}, but must be at least 1")
        self._requests = iter(requests)
        self._max_concurrent = max_concurrent
        self._open_ids: set[str] = set()
        self._refused: deque[BulkEvent] = deque()
        self.is_exhausted = False
        """Whether all requests were handed out."""

    def pull(self) -> service_pb.GenerateManyRequest | None:
        """Return the next message to send; None while the window is full and after the last one.

        Raises:
            AlreadyExists: if a request has the id of one that is open.
        """
        while len(self._open_ids) < self._max_concurrent and not self.is_exhausted:
            request = next(self._requests, None)
            if request is None:
                self.is_exhausted = True
                return None
            message = self._open(with_request_id(request))
            if message is not None:
                return message
        return None

    def _open(self, request: GenerationRequest) -> service_pb.GenerateManyRequest | None:
        if request.request_id in self._open_ids:
            raise AlreadyExists(f"request_id is {request.request_id!r}, but must not be in use on the stream")
        try:
            message = service_pb.GenerateManyRequest(generate=encode_request(request))
        except InvalidRequest as error:
            self._refused.append((request.request_id, error))
            return None
        self._open_ids.add(request.request_id)
        return message

    def take_refused(self) -> BulkEvent | None:
        """Return the next request that could not be encoded, and why."""
        return self._refused.popleft() if self._refused else None

    def feed(self, message: service_pb.GenerateManyResponse) -> BulkEvent:
        """Take a message of the server in, and return what it tells.

        Raises:
            Internal: if it is about no open request.
        """
        request_id = message.request_id
        if request_id not in self._open_ids:
            raise Internal(f"the server sent output of request {request_id!r}, which is not open")
        event = decode_event(message)
        if not isinstance(event, Delta):
            self._open_ids.remove(request_id)
        return request_id, event

    def end(self) -> None:
        """Check, when the stream has ended without an error, that every request has.

        Raises:
            Internal: if one has not.
        """
        if self._open_ids or not self.is_exhausted:
            raise Internal(f"the stream ended while {len(self._open_ids)} requests were open")
