"""What waits to be sent to the engine: all that gathers while a write is in progress goes as one message.

Keeps the order that matters: a request's end never overtakes its start. Knows nothing about the
stream that carries the messages.
"""

import asyncio
from collections import deque

from stepwire.engine.v1 import engine_service_pb2 as pb

_MAX_BATCH_BYTES = 8 * 1024 * 1024
"""New requests of one message together, so that many long prompts do not make one huge message."""


class Outbox:
    """New requests, ends and aborts on their way out."""

    def __init__(self) -> None:
        self._new_requests: deque[pb.NewRequest] = deque()
        self._ends: list[pb.EndRequest] = []
        self._aborts: list[tuple[str, int, int]] = []
        """Request ids, the new requests in all that were added before each, and when each was asked."""
        self._num_requests_added = 0
        self._num_requests_taken = 0
        self._wake = asyncio.Event()

    def add_request(self, request: pb.NewRequest) -> None:
        """Send a new request."""
        self._new_requests.append(request)
        self._num_requests_added += 1
        self._wake.set()

    def add_end(self, end: pb.EndRequest) -> None:
        """Send a request's end."""
        self._ends.append(end)
        self._wake.set()

    def add_abort(self, request_id: str, *, asked_ns: int) -> None:
        """Send an abort of any front end's request that came before it."""
        self._aborts.append((request_id, self._num_requests_added, asked_ns))
        self._wake.set()

    def clear(self) -> None:
        """Forget everything: the stream it was meant for is gone."""
        self._num_requests_taken += len(self._new_requests)
        self._new_requests.clear()
        self._ends, self._aborts = [], []
        self._wake.clear()

    async def take(self) -> pb.AttachRequest:
        """Wait for something to send and take one message of it."""
        await self._wake.wait()
        num_taken_before = self._num_requests_taken
        message = pb.AttachRequest(new_requests=self._take_requests())
        if self._new_requests:
            return message  # ends wait until all starts before them are sent
        message.end_requests.extend(self._ends)
        message.aborts.extend(
            pb.AbortById(
                request_id=request_id,
                num_requests_before=max(0, num_added - num_taken_before),
                asked_ns=asked_ns,
            )
            for request_id, num_added, asked_ns in self._aborts
        )
        self._ends, self._aborts = [], []
        self._wake.clear()
        return message

    def _take_requests(self) -> list[pb.NewRequest]:
        taken: list[pb.NewRequest] = []
        num_bytes = 0
        while self._new_requests:
            num_bytes += len(self._new_requests[0].prompt_token_ids)
            if taken and num_bytes > _MAX_BATCH_BYTES:
                break
            taken.append(self._new_requests.popleft())
        self._num_requests_taken += len(taken)
        return taken
