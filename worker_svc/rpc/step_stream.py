"""One RunSteps stream after the hellos: steps in, results and heartbeats out.

One writer: the generator ``responses``. All else puts messages, or the stream's end, into its queue;
iterations of one lease that wait there are joined to one message.
Lives on the asyncio loop; knows nothing about other streams, fencing or tensors.

    requests ──► _read ──► compute thread ──► _on_result ──┐
                                             heartbeats ───┼──► queue ──► responses ──► engine
                              end(error) from outside ─────┘
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator

from stepwire.worker.v1 import worker_service_pb2 as pb

from worker_svc.batch.step import StepResult
from worker_svc.errors import ProtocolError, StepFailedError, WorkerError
from worker_svc.rpc.compute_thread import ComputeThread, StepEpoch
from worker_svc.rpc.convert import join_results, result_to_proto, step_from_proto

_logger = logging.getLogger(__name__)


class _StreamEnd:
    """The last item of the queue; without an error the engine has closed its side, or the worker stops."""

    def __init__(self, error: WorkerError | None) -> None:
        self.error = error


class StepStream:
    """Joins one gRPC stream to one epoch of the compute thread."""

    def __init__(
        self,
        compute: ComputeThread,
        *,
        max_steps_in_flight: int,
        heartbeat_seconds: float,
        keeps_bytes: bool = False,
    ) -> None:
        """Make it inside the event loop; ``keeps_bytes`` where other ranks need the steps, too."""
        self._compute = compute
        self._keeps_bytes = keeps_bytes
        self._max_steps_in_flight = max_steps_in_flight
        self._heartbeat_seconds = heartbeat_seconds
        self._loop = asyncio.get_running_loop()
        self._outbox: asyncio.Queue[pb.RunStepsResponse | _StreamEnd] = asyncio.Queue()
        self._epoch = StepEpoch(
            on_result=lambda result: self._loop.call_soon_threadsafe(self._on_result, result),
            on_failure=lambda error: self._loop.call_soon_threadsafe(self.end, error),
        )
        self._arrivals_ns: deque[int] = deque()
        """When each step in flight came, the oldest first."""
        self._unsent: pb.RunStepsResponse | None = None
        """The newest result, while it waits in the queue."""
        self._num_heartbeats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Task[None] | None = None
        self._is_ended = False

    @property
    def is_ended(self) -> bool:
        """Whether the stream takes and sends nothing any more."""
        return self._is_ended

    async def responses(
        self, hello: pb.WorkerHello, requests: AsyncIterator[pb.RunStepsRequest]
    ) -> AsyncIterator[pb.RunStepsResponse]:
        """Yield what to send, the hello first, until the stream ends.

        Raises:
            WorkerError: the reason, unless the engine just closed its side, or the worker stops.
        """
        try:
            yield pb.RunStepsResponse(hello=hello)
            if not self._is_ended:
                self._reader = self._loop.create_task(self._read(requests))
                self._arm_heartbeat()
            while True:
                item = await self._outbox.get()
                if isinstance(item, _StreamEnd):
                    break
                if item is self._unsent:
                    self._unsent = None
                yield item
            if item.error is not None:
                raise item.error
        finally:
            self.end(None)

    def end(self, error: WorkerError | None) -> None:
        """End the stream for this reason, unless it has ended; its lanes are forgotten."""
        if self._is_ended:
            return
        self._is_ended = True
        self._compute.close_epoch(self._epoch)
        if self._timer is not None:
            self._timer.cancel()
        if self._reader is not None:
            self._reader.cancel()
        self._outbox.put_nowait(_StreamEnd(error))

    async def _read(self, requests: AsyncIterator[pb.RunStepsRequest]) -> None:
        try:
            async for request in requests:
                self._take(request)
        except WorkerError as error:
            self.end(error)
        except Exception as error:
            _logger.exception("reading the step stream failed")
            self.end(StepFailedError(f"reading the step stream failed: {type(error).__name__}: {error}"))
        finally:
            self.end(None)

    def _take(self, request: pb.RunStepsRequest) -> None:
        kind = request.WhichOneof("message")
        if kind == "step":
            step = step_from_proto(request.step, keeps_bytes=self._keeps_bytes)
            num_in_flight = len(self._arrivals_ns)
            if num_in_flight >= self._max_steps_in_flight + step.takes_over:
                limit = f"be at most max_steps_in_flight, {self._max_steps_in_flight}"
                raise ProtocolError.of("steps in flight", num_in_flight + 1, limit)
            self._arrivals_ns.append(time.monotonic_ns())
            self._compute.submit(self._epoch, step)
        elif kind != "heartbeat":
            raise ProtocolError.of("message", kind, "be a step or a heartbeat after the hello")

    def _on_result(self, result: StepResult) -> None:
        message = result_to_proto(result)
        message.held_time_ns = time.monotonic_ns() - self._arrivals_ns[0]
        if result.is_last:
            self._arrivals_ns.popleft()
        if self._unsent is not None and self._unsent.result.step_id == result.step_id:
            join_results(self._unsent.result, message)
            return
        self._unsent = pb.RunStepsResponse(result=message)
        self._outbox.put_nowait(self._unsent)

    def _beat(self) -> None:
        # Where messages wait to be written the engine does not read, and more would only pile up.
        if self._outbox.empty():
            self._num_heartbeats += 1
            beat = pb.Heartbeat(sequence=self._num_heartbeats)
            self._outbox.put_nowait(pb.RunStepsResponse(heartbeat=beat))
        self._arm_heartbeat()

    def _arm_heartbeat(self) -> None:
        self._timer = self._loop.call_later(self._heartbeat_seconds, self._beat)
