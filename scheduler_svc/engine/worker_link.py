"""One RunSteps stream to one worker group, typed: hello, credits, heartbeats, epochs.

An epoch begins with the worker's hello and ends when the stream breaks, when the worker is silent,
when the oldest step takes too long, or when the worker breaks the protocol. The link then connects
again, for ever. Rules:

- One writer: everything to the worker goes through one queue, nobody ever waits for the stream.
- A step costs a credit, its last result gives it back; results match a FIFO of what was sent. One
  step that takes over leases needs no credit.
- A worker that refuses us, or that we refuse, is told as such and tried again: another may come.
- So is one that a newer engine has taken: it takes us again a while after that engine has gone. The
  fencing number stays: two engines that outbid each other would never finish a step.
- A while in which this process itself stood still is not held against the worker.

Knows nothing about requests: what came is posted to the engine's loop as an event.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import grpc
from stepwire.worker.v1 import worker_service_pb2 as pb
from stepwire.worker.v1.worker_service_pb2_grpc import WorkerServiceStub

from scheduler_svc.config import ConfigError
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.types import CoreLimits
from scheduler_svc.engine import convert
from scheduler_svc.engine.limits import check_hello
from scheduler_svc.engine.link_options import LinkOptions
from scheduler_svc.engine.meter import GroupMeter
from scheduler_svc.engine.pace import WorkerPace
from scheduler_svc.engine.step_clock import StepClock
from scheduler_svc.engine.steps_in_flight import EpochEndedError, StepsInFlight
from scheduler_svc.engine.tasks import run_until_first
from scheduler_svc.engine.values import (
    Event,
    ModelIdentity,
    ResultArrived,
    WorkerDown,
    WorkerFacts,
    WorkerUp,
)
from scheduler_svc.engine.worker_channel import open_worker_channel
from scheduler_svc.errors import ModelMismatchError, UnfitWorkerError
from scheduler_svc.tls import explain_failure

_log = logging.getLogger(__name__)

_REPEAT_LOG_SECONDS = 60.0
"""A reason not to serve that lasts is logged again after this long."""

_STALL_SECONDS = 0.5
"""This process counts as having stood still when it wakes so late."""

_Outgoing = asyncio.Queue[pb.RunStepsRequest | None]
"""What is to be sent in one epoch; None ends it."""


class WorkerLink:
    """The stream to one worker group, over all its epochs."""

    def __init__(
        self,
        options: LinkOptions,
        expected: ModelIdentity,
        *,
        fencing_number: int,
        accept: Callable[[WorkerFacts], CoreLimits],
        post: Callable[[Event], None],
        meter: GroupMeter,
    ) -> None:
        """Make a link that is not connected yet.

        Args:
            options: where the worker is and how patient to be.
            expected: the model that the worker must run.
            fencing_number: grows with every engine start.
            accept: gives the limits to run under; raises ConfigError to refuse the worker, whose numbers
                are in range.
            post: takes events, in order; never waits.
            meter: counts steps.
        """
        self._options = options
        self._expected = expected
        self._hello = convert.hello_to_pb(expected, fencing_number)
        self._accept = accept
        self._post = post
        self._meter = meter
        self._is_up = False
        self._reason = ""
        self._logged_seconds = 0.0
        self._start_epoch()

    def _start_epoch(self) -> None:
        self._outgoing: _Outgoing = asyncio.Queue()
        clock = StepClock(self._options.step_limits)
        self._steps = StepsInFlight(self._expected.vocab_size, clock)
        self.pace = WorkerPace()
        """How fast the worker and the link are, as measured in this epoch."""
        self._faults: asyncio.Queue[str] = asyncio.Queue()
        self._max_lease_steps = 1
        self._last_heard_seconds = time.monotonic()

    @property
    def address(self) -> str:
        """Where the worker is, host:port."""
        return self._options.address

    @property
    def num_steps_in_flight(self) -> int:
        """Steps sent and not answered."""
        return len(self._steps)

    @property
    def has_credit(self) -> bool:
        """Whether a step may be sent now."""
        return self._is_up and len(self._steps) < self._options.max_steps_in_flight

    @property
    def may_take_over(self) -> bool:
        """Whether a step that takes over leases may be sent now, with a credit or without."""
        return self._is_up and len(self._steps) <= self._options.max_steps_in_flight

    @property
    def lease_length(self) -> int:
        """Iterations that a step of decodes should have."""
        return self.pace.lease_length(
            num_credits=self._options.max_steps_in_flight, most=self._max_lease_steps
        )

    def send(self, plan: StepPlan) -> None:
        """Send one step; needs a credit, unless it takes over, and never waits."""
        may_send = self.may_take_over if plan.takes_over else self.has_credit
        assert may_send, f"step {plan.step_id} has no credit"
        self._steps.add(plan, time.monotonic())
        self._meter.note_plan(len(plan.row_lanes))
        self._outgoing.put_nowait(convert.plan_to_pb(plan))

    def give_up(self, reason: str) -> None:
        """End the epoch, as soon as the link has its turn, for a fault of the worker's that others found."""
        self._faults.put_nowait(reason)

    async def run(self) -> None:
        """Keep a stream to the worker, for ever."""
        backoff_seconds = self._options.first_backoff_seconds
        while True:
            group = self._options.group
            try:
                await self._run_epoch()
            except EpochEndedError as error:
                down = WorkerDown(group=group, reason=str(error), is_orderly=error.is_orderly)
            except (UnfitWorkerError, ConfigError) as error:
                reason = f"worker {self.address} does not fit: {error}"
                down = WorkerDown(group=group, reason=reason, refusal=type(error)(reason))
            if self._is_up:
                backoff_seconds = self._options.first_backoff_seconds
            self._end_epoch(down)
            await asyncio.sleep(backoff_seconds)
            backoff_seconds = min(2 * backoff_seconds, self._options.max_backoff_seconds)

    def _end_epoch(self, down: WorkerDown) -> None:
        now_seconds = time.monotonic()
        is_news = self._is_up or down.reason != self._reason
        if is_news or now_seconds - self._logged_seconds > _REPEAT_LOG_SECONDS:
            _log.warning("worker %s is not serving: %s", self.address, down.reason)
            self._logged_seconds = now_seconds
        self._is_up = False
        self._reason = down.reason
        self._start_epoch()
        if is_news:
            self._post(down)

    async def _run_epoch(self) -> None:
        self._start_epoch()
        self._outgoing.put_nowait(self._hello)
        # A channel for each epoch: nothing of a broken one is reused.
        async with open_worker_channel(self.address, self._options.credentials) as channel:
            call = WorkerServiceStub(channel).RunSteps(_messages(self._outgoing))
            try:
                await run_until_first(self._read(call), self._watch(), self._end_at_fault())
            finally:
                call.cancel()
                # Where the worker ended the stream, gRPC would read the iterator for ever.
                self._outgoing.put_nowait(None)

    async def _end_at_fault(self) -> None:
        raise EpochEndedError(await self._faults.get())

    async def _read(self, call: "grpc.aio.StreamStreamCall[pb.RunStepsRequest, pb.RunStepsResponse]") -> None:
        try:
            async for message in call:
                self._last_heard_seconds = time.monotonic()
                self._take(message)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise ModelMismatchError(error.details()) from error
            if error.code() is grpc.StatusCode.ABORTED:
                reason = f"a newer scheduler has this worker: {error.details()}"
                raise EpochEndedError(reason, is_orderly=True) from error
            details = explain_failure(error.details() or "")
            raise EpochEndedError(f"{error.code().name}: {details}") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # grpc.aio also raises this when it was the worker that cancelled the stream.
            raise EpochEndedError("the worker cancelled the stream") from error
        raise EpochEndedError("the worker closed the stream", is_orderly=True)

    def _take(self, message: pb.RunStepsResponse | None) -> None:
        if message is None:  # what gRPC could not read, and logged
            raise EpochEndedError("the worker sent a message that cannot be read")
        kind = message.WhichOneof("message")
        if (kind == "hello") is self._is_up:
            raise EpochEndedError(f"the worker sent {kind} out of order")
        if kind == "hello":
            self._take_hello(convert.facts_from_pb(message.hello))
        elif kind == "result":
            self._take_result(message.result)

    def _take_hello(self, facts: WorkerFacts) -> None:
        check_hello(self._expected, facts)
        limits = self._accept(facts)
        if facts.model.tokenizer_hash != self._expected.tokenizer_hash:
            _log.warning(
                "worker %s has a tokenizer with SHA-256 %r, the scheduler one with %r",
                self.address,
                facts.model.tokenizer_hash,
                self._expected.tokenizer_hash,
            )
        _log.info(
            "worker %s serves on %s (%s, %s attention): %d blocks of %d tokens, %d requests at once, "
            "%d tokens a step, %d tokens a request",
            self.address,
            facts.device,
            facts.dtype,
            facts.attention_backend,
            limits.num_blocks,
            limits.block_size,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            limits.max_model_len,
        )
        self._max_lease_steps = max(1, min(self._options.max_lease_steps, facts.max_lease_steps))
        self._is_up = True
        self._reason = ""
        self._post(WorkerUp(group=self._options.group, facts=facts, limits=limits))

    def _take_result(self, message: pb.StepResult) -> None:
        try:
            result, times = convert.result_from_pb(message), convert.times_from_pb(message)
        except ValueError as error:
            raise EpochEndedError(f"the worker answered step {message.step_id} wrongly: {error}") from error
        step = self._steps.take_answer(result, time.monotonic())
        self.pace.note_answer(times, is_decode=step.is_decode, seconds_since_sent=step.seconds_since_sent)
        self._meter.note_result(times)
        for part in result.parts():
            self._post(ResultArrived(group=self._options.group, result=part, answered=step))

    async def _watch(self) -> None:
        """Send heartbeats; end the epoch when the worker is silent or its oldest step is too old."""
        sequence = 0
        woken_seconds = time.monotonic()
        while True:
            await asyncio.sleep(self._options.heartbeat_seconds)
            now_seconds = time.monotonic()
            self._forgive(now_seconds - woken_seconds - self._options.heartbeat_seconds)
            woken_seconds = now_seconds
            if now_seconds - self._last_heard_seconds > self._options.silence_seconds:
                raise EpochEndedError(f"the worker sent nothing for {self._options.silence_seconds:g} s")
            self._steps.check_age(now_seconds)
            sequence += 1
            self._outgoing.put_nowait(pb.RunStepsRequest(heartbeat=pb.Heartbeat(sequence=sequence)))

    def _forgive(self, late_seconds: float) -> None:
        """Take off the time in which this process stood still: what came meanwhile is yet to be read."""
        if late_seconds > _STALL_SECONDS:
            _log.warning("the engine stood still for %.1f s", late_seconds)
            self._last_heard_seconds += late_seconds
            self._steps.forgive(late_seconds)


async def _messages(outgoing: _Outgoing) -> AsyncIterator[pb.RunStepsRequest]:
    while (message := await outgoing.get()) is not None:
        yield message
