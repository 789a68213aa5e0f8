"""A worker without a model, in this process: speaks the step stream and can be made to fail.

What a step does is in stand_in_lanes.py. Tests steer it: hold steps back, go silent, break the
stream, refuse the engine, die of a request; ``faults`` must be empty at the end of every test.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1 import worker_service_pb2_grpc

from tests.stand_in_lanes import Int32Array, ProtocolFaultError, StandInLimits
from tests.stand_in_leases import LeasingLanes, ended_lease

_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@dataclass(eq=False)
class _Epoch:
    """One RunSteps stream."""

    lanes: LeasingLanes
    steps: asyncio.Queue[pb.Step] = field(default_factory=asyncio.Queue)
    outgoing: asyncio.Queue[pb.RunStepsResponse | grpc.StatusCode] = field(default_factory=asyncio.Queue)
    num_in_flight: int = 0
    arrivals_ns: deque[int] = field(default_factory=deque)
    """When each unanswered step came."""
    taken_over_by: int = 0
    """Leases before this step end."""
    due_seconds: float = 0.0
    """When the last step ended, on the event loop's clock."""


@dataclass(slots=True)
class LeaseCounts:
    """What became of leases, since the start."""

    num_begun: int = 0
    num_ended_early: int = 0
    num_take_overs: int = 0
    """Steps that came and take over."""


class StandInWorker(worker_service_pb2_grpc.WorkerServiceServicer):
    """Serves one engine at a time."""

    counts_from_output = False
    """See StandInLanes; to be set before an engine comes."""

    def __init__(
        self,
        limits: StandInLimits | None = None,
        *,
        step_seconds: float = 0.0,
        checks_cache: bool = True,
        script: Int32Array | None = None,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        """Make a worker that is not listening yet.

        Args:
            limits: what it says it can hold.
            step_seconds: time each step takes, one after the other.
            checks_cache: see StandInLanes; load tests turn it off.
            script: see StandInLanes.
            heartbeat_seconds: time between heartbeats.
        """
        self.limits = limits or StandInLimits()
        self.faults: list[str] = []
        """How the engine broke the protocol; must stay empty."""
        self.hellos: list[pb.EngineHello] = []
        self.num_steps = 0
        self.num_tokens = 0
        self.seems_far_away = False
        """Whether all the time that the engine waits seems to be the link's, so that it sends leases."""
        self.leases = LeaseCounts()
        self.num_heartbeats = 0
        """Heartbeats that came from the engine."""
        self.max_num_in_flight = 0
        """The most steps that were unanswered at once."""
        self.may_run = asyncio.Event()
        """Steps, and iterations of leases, wait while this is not set."""
        self.may_run.set()
        self.is_held = False
        """Whether a step or iteration waits so now."""
        self.killing_token_id: int | None = None
        """A step that admits a request whose first token is this one breaks the stream."""
        self.checks_hello = True
        """Whether an engine that expects another model is refused."""
        self.is_silent = False
        """Nothing is sent while this is true, not even heartbeats."""
        self.address = ""
        self.step_seconds = step_seconds
        """Time each step takes; may be changed at any time."""
        self._checks_cache = checks_cache
        self._script = script
        self._heartbeat_seconds = heartbeat_seconds
        self._server: grpc.aio.Server | None = None
        self._epoch: _Epoch | None = None

    async def start(self, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listen, with TLS where there are credentials; ``address`` tells where."""
        self._server = grpc.aio.server(options=_OPTIONS)
        worker_service_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        address = f"127.0.0.1:{port}"
        if credentials is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, credentials)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Die: streams break, the port closes."""
        assert self._server is not None, "not started"
        await self._server.stop(grace=None)

    def break_stream(self) -> None:
        """End the present stream as a failing worker would; it may be opened again."""
        assert self._epoch is not None, "no stream"
        self._epoch.outgoing.put_nowait(grpc.StatusCode.INTERNAL)

    def leave(self) -> None:
        """End the present stream as a worker that is stopped would; it may be opened again."""
        assert self._epoch is not None, "no stream"
        self._epoch.outgoing.put_nowait(grpc.StatusCode.OK)

    def send(self, message: pb.RunStepsResponse) -> None:
        """Send something, right or wrong."""
        assert self._epoch is not None, "no stream"
        self._epoch.outgoing.put_nowait(message)

    @property
    def num_in_flight(self) -> int:
        """Steps that are unanswered."""
        return 0 if self._epoch is None else self._epoch.num_in_flight

    @property
    def num_lanes_held(self) -> int:
        """Lanes held in the present epoch."""
        return 0 if self._epoch is None else int(self._epoch.lanes.is_held.sum())

    async def RunSteps(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.RunStepsRequest], context: Any
    ) -> AsyncIterator[pb.RunStepsResponse]:
        """Run one epoch."""
        requests = aiter(request_iterator)
        hello = (await anext(requests)).hello
        self.hellos.append(hello)
        expected = (hello.config_hash, hello.vocab_size)
        if self.checks_hello and expected != (self.limits.config_hash, self.limits.vocab_size):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the worker's config_hash is {self.limits.config_hash}, the engine's {hello.config_hash}",
            )
        epoch = self._epoch = _Epoch(
            LeasingLanes(
                self.limits,
                checks_cache=self._checks_cache,
                script=self._script,
                counts_from_output=self.counts_from_output,
            )
        )
        tasks = [asyncio.create_task(self._read(requests, epoch)), asyncio.create_task(self._run(epoch))]
        tasks.append(asyncio.create_task(self._beat(epoch)))
        try:
            yield pb.RunStepsResponse(hello=self._hello())
            while not isinstance(message := await epoch.outgoing.get(), grpc.StatusCode):
                if not self.is_silent:
                    yield message
            if message is not grpc.StatusCode.OK:
                await context.abort(message, self.faults[-1] if self.faults else "broken on purpose")
        finally:
            for task in tasks:
                task.cancel()
            self._epoch = None if self._epoch is epoch else self._epoch

    async def GetWorkerInfo(  # noqa: N802
        self, request: pb.GetWorkerInfoRequest, context: Any
    ) -> pb.GetWorkerInfoResponse:
        """Tell what it is."""
        del request, context
        return pb.GetWorkerInfoResponse(
            hello=self._hello(), num_lanes_held=self.num_lanes_held, num_steps=self.num_steps
        )

    async def _read(self, requests: AsyncIterator[pb.RunStepsRequest], epoch: _Epoch) -> None:
        async for request in requests:
            if request.HasField("heartbeat"):
                self.num_heartbeats += 1
                continue
            epoch.num_in_flight += 1
            epoch.arrivals_ns.append(time.monotonic_ns())
            self.max_num_in_flight = max(self.max_num_in_flight, epoch.num_in_flight)
            most = self.limits.max_steps_in_flight + request.step.take_over
            if not request.HasField("step") or epoch.num_in_flight > most:
                self._fail(epoch, "no step, or too many steps in flight")
            if request.step.take_over:
                self.leases.num_take_overs += 1
                epoch.taken_over_by = request.step.step_id
            epoch.steps.put_nowait(request.step)

    async def _run(self, epoch: _Epoch) -> None:
        while True:
            if epoch.steps.empty():  # else the next step began when the last one ended
                epoch.due_seconds = 0.0
            step = await epoch.steps.get()
            await self._pass_gate()
            if self._is_killed_by(step):
                epoch.outgoing.put_nowait(grpc.StatusCode.INTERNAL)
                return
            try:
                if step.num_steps > 1:
                    epoch.lanes.begin_lease(step)
                    self.leases.num_begun += 1
                is_last, iteration = False, 0
                while not is_last:
                    is_last = await self._run_iteration(step, iteration, epoch)
                    iteration += 1
            except ProtocolFaultError as fault:
                self._fail(epoch, f"step {step.step_id}: {fault}")
                return
            epoch.num_in_flight -= 1
            epoch.arrivals_ns.popleft()

    async def _pass_gate(self) -> None:
        self.is_held = not self.may_run.is_set()
        await self.may_run.wait()
        self.is_held = False

    async def _run_iteration(self, step: pb.Step, iteration: int, epoch: _Epoch) -> bool:
        """Send the next result of a step or lease; tell whether it is the last."""
        now_seconds = asyncio.get_running_loop().time
        await self._pass_gate()
        may_end = step.num_steps > 1 and (iteration > 0 or not step.take_over)
        if may_end and step.step_id < epoch.taken_over_by:
            self.leases.num_ended_early += 1
            result = ended_lease(step, iteration)
        else:
            if self.step_seconds:
                epoch.due_seconds = (epoch.due_seconds or now_seconds()) + self.step_seconds
                await asyncio.sleep(epoch.due_seconds - now_seconds())
            start_ns, is_lease = time.monotonic_ns(), step.num_steps > 1
            result = epoch.lanes.next_iteration(step, iteration) if is_lease else epoch.lanes.apply(step)
            result.busy_time_ns = int(1e9 * self.step_seconds) or time.monotonic_ns() - start_ns
        self.num_steps += result.num_iterations
        self.num_tokens += int((np.frombuffer(result.token_ids, "<i4") >= 0).sum())
        if not self.seems_far_away:
            result.held_time_ns = time.monotonic_ns() - epoch.arrivals_ns[0]
        epoch.outgoing.put_nowait(pb.RunStepsResponse(result=result))
        return bool(result.is_last)

    def _is_killed_by(self, step: pb.Step) -> bool:
        first_tokens = (int.from_bytes(one.token_ids[:4], "little") for one in step.admissions)
        return self.killing_token_id is not None and self.killing_token_id in first_tokens

    async def _beat(self, epoch: _Epoch) -> None:
        sequence = 0
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            sequence += 1
            epoch.outgoing.put_nowait(pb.RunStepsResponse(heartbeat=pb.Heartbeat(sequence=sequence)))

    def _fail(self, epoch: _Epoch, fault: str) -> None:
        self.faults.append(fault)
        epoch.outgoing.put_nowait(grpc.StatusCode.INTERNAL)

    def _hello(self) -> pb.WorkerHello:
        limits = self.limits
        return pb.WorkerHello(
            protocol_version=1,
            worker_epoch=time.time_ns(),
            config_hash=limits.config_hash,
            vocab_size=limits.vocab_size,
            tokenizer_hash=limits.tokenizer_hash,
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            max_steps_in_flight=limits.max_steps_in_flight,
            device="stand-in",
            dtype="none",
            attention_backend="none",
            tp_size=1,
            max_lease_steps=64,
        )
