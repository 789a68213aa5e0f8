"""The gRPC methods of a worker: check, call, reply.

Keeps at most one step stream: a newer engine's supersedes an older one's. An older engine is refused
while a newer one's stream lives and a while after it: that one may only have lost its connection.
Knows nothing about what a step does. A silent engine is left alone: it holds nothing that the next
engine's hello does not free.
"""

import logging
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1 import worker_service_pb2_grpc as pb_grpc

from service.readable import checked, readable
from worker_svc.errors import NotReadyError, ProtocolError, SupersededError, WorkerError
from worker_svc.rpc.compute_thread import ComputeThread
from worker_svc.rpc.convert import worker_hello
from worker_svc.rpc.hello import check_hello, hello_of
from worker_svc.rpc.status import status_code_of, status_message_of
from worker_svc.rpc.step_stream import StepStream
from worker_svc.runner.worker_info import WorkerInfo

_logger = logging.getLogger(__name__)

FENCING_HOLD_SECONDS = 10.0
"""How long after the end of its stream an engine keeps older ones away: it tries again every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What streams are served with."""

    info: WorkerInfo
    compute: ComputeThread


class WorkerServicer(pb_grpc.WorkerServiceServicer):
    """Serves one worker group. All of it runs on the asyncio loop."""

    def __init__(
        self, *, heartbeat_seconds: float = 1.0, fencing_hold_seconds: float = FENCING_HOLD_SECONDS
    ) -> None:
        self._heartbeat_seconds = heartbeat_seconds
        self._fencing_hold_seconds = fencing_hold_seconds
        self._serving: Serving | None = None
        self._reason_not_ready = "the worker still loads the model"
        self._stream: StepStream | None = None
        self._fencing_number = 0
        self._stream_ended_seconds = math.inf
        self._worker_epoch = 0

    @property
    def is_streaming(self) -> bool:
        """Whether an engine's stream is open."""
        return self._stream is not None and not self._stream.is_ended

    def start_serving(self, serving: Serving) -> None:
        """Take streams from now on."""
        self._serving = serving

    def stop_serving(self, *, is_orderly: bool) -> None:
        """End the present stream and take no more.

        Args:
            is_orderly: The stream ends without an error, which tells the engine that nothing it sent is
                to blame.
        """
        if is_orderly:
            _logger.info("stopping")
        self._serving = None
        self._reason_not_ready = "the worker stops"
        if self._stream is not None:
            self._stream.end(None if is_orderly else NotReadyError(self._reason_not_ready))

    async def RunSteps(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.RunStepsRequest],
        context: Any,
    ) -> AsyncIterator[pb.RunStepsResponse]:
        """Check the hello, then run the stream until either side ends it."""
        try:
            requests = readable(request_iterator)
            hello = hello_of(await anext(requests, None))
            serving = self._loaded()
            check_hello(hello, serving.info)
            stream = self._supersede(hello.fencing_number, serving)
            # The generator's own end comes late where gRPC drops it half-way: this is on time.
            context.add_done_callback(lambda _: self._end(stream))
            worker_epoch = self._worker_epoch
            _logger.info("epoch %d: engine %d connected", worker_epoch, hello.fencing_number)
            async for response in stream.responses(worker_hello(serving.info, worker_epoch), requests):
                yield response
            _logger.info("epoch %d: the stream was closed", worker_epoch)
        except WorkerError as error:
            level = logging.INFO if isinstance(error, NotReadyError) else logging.WARNING
            _logger.log(level, "step stream ended: %s", error)
            await context.abort(status_code_of(error), status_message_of(error))

    async def GetWorkerInfo(  # noqa: N802
        self, request: pb.GetWorkerInfoRequest, context: Any
    ) -> pb.GetWorkerInfoResponse:
        """Tell what this worker is and does."""
        try:
            checked(request)
            serving = self._loaded()
        except (NotReadyError, ProtocolError) as error:
            await context.abort(status_code_of(error), status_message_of(error))
        return pb.GetWorkerInfoResponse(
            hello=worker_hello(serving.info, self._worker_epoch if self.is_streaming else 0),
            num_lanes_held=serving.compute.num_lanes_held,
            num_steps=serving.compute.num_steps,
        )

    def _loaded(self) -> Serving:
        if self._serving is None:
            raise NotReadyError(self._reason_not_ready)
        return self._serving

    def _end(self, stream: StepStream) -> None:
        stream.end(None)
        if stream is self._stream:
            self._stream_ended_seconds = time.monotonic()

    def _is_held(self) -> bool:
        """Whether the engine that came last has a stream, or may only have lost it."""
        if self._stream is None:
            return False
        return time.monotonic() - self._stream_ended_seconds < self._fencing_hold_seconds

    def _supersede(self, fencing_number: int, serving: Serving) -> StepStream:
        """Make the new stream, ending the old one; the same engine may come again."""
        if fencing_number < self._fencing_number and self._is_held():
            raise SupersededError(
                f"fencing_number is {fencing_number}, but must be at least {self._fencing_number}: "
                "a newer engine has taken over"
            )
        if self._stream is not None:
            self._stream.end(
                SupersededError(f"superseded by the engine with fencing_number {fencing_number}")
            )
        self._fencing_number = fencing_number
        self._stream_ended_seconds = math.inf
        self._worker_epoch = max(time.time_ns(), self._worker_epoch + 1)
        self._stream = StepStream(
            serving.compute,
            max_steps_in_flight=serving.info.max_steps_in_flight,
            heartbeat_seconds=self._heartbeat_seconds,
            keeps_bytes=serving.info.tp_size > 1,
        )
        return self._stream
