"""The engine's loop: drain the inbox, fold results, expire deadlines, schedule and send, fan out.

One task does all of it, so there are no locks, and everything that changes the core is an event of
the inbox. Nothing here waits for a worker or a front end: both have queues with writers of their own.
An exception in the loop is our own bug and ends it: it never goes on with a broken state.
Knows nothing about protobuf, sockets or how a step is decided.
"""

import asyncio
import time
from collections import deque

from scheduler_svc.core.plan import Admission, FinishedRequest, StepResult
from scheduler_svc.core.types import FinishReason
from scheduler_svc.engine.deadlines import Deadlines
from scheduler_svc.engine.endings import REFUSALS, ended_of_finished, ended_of_refusal
from scheduler_svc.engine.fanout import tokens_by_owner
from scheduler_svc.engine.group import WorkerGroup
from scheduler_svc.engine.live_requests import LiveRequest, LiveRequests
from scheduler_svc.engine.mailboxes import Inbox, Outbox
from scheduler_svc.engine.owners import Owners
from scheduler_svc.engine.values import (
    ArrivedRequest,
    AskedEnd,
    EngineState,
    Event,
    FrontendBatch,
    FrontendGone,
    ResultArrived,
    StartedRequest,
    WorkerDown,
    WorkerUp,
)

_TIMER_MARGIN_SECONDS = 0.001
"""uvloop rounds timers to milliseconds; one that came early would have to be set again."""


class Engine:
    """Joins the front ends to one worker group."""

    def __init__(self, inbox: Inbox, group: WorkerGroup) -> None:
        """Make an engine that is not running yet.

        Args:
            inbox: where events are posted: the worker link's, and those of ``attach``ed front ends.
            group: the worker group, whose link posts to the same inbox.
        """
        self._inbox = inbox
        self._group = group
        self._owners = Owners()
        self._live = LiveRequests()
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self._started_ns = time.monotonic_ns()

    def attach(self, outbox: Outbox) -> int:
        """Take in a front end and tell it the engine's state; return its owner number."""
        owner = self._owners.attach(outbox)
        outbox.put(self._group.info())
        return owner

    def post(self, event: Event) -> None:
        """Give the loop something to do."""
        self._inbox.post(event)

    def state(self) -> EngineState:
        """Count what there is, for people."""
        return EngineState(
            core=self._group.core_state(),
            workers=(self._group.status(),),
            uptime_ns=time.monotonic_ns() - self._started_ns,
        )

    async def run(self) -> None:
        """Run for ever; raise what goes wrong."""
        while True:
            for event in await self._inbox.drain():
                self._handle(event)
            self._expire_deadlines()
            self._group.pump(self._note_admission)
            self._owners.flush({})
            self._set_timer()

    def _handle(self, event: Event) -> None:
        match event:
            case ResultArrived(result=result):
                self._fold(result)
            case FrontendBatch():
                self._take_batch(event)
            case FrontendGone(owner=owner):
                self._drop_frontend(owner)
            case WorkerUp():
                for finished in self._group.begin_epoch(event):
                    self._note_finished(finished)
                self._owners.broadcast(self._group.info())
            case WorkerDown():
                # Live requests stay in the core and queue again when a worker is back.
                self._owners.broadcast(self._group.info())

    def _fold(self, result: StepResult) -> None:
        outputs = self._group.fold(result)
        for finished in outputs.finished:
            self._note_finished(finished)
        self._owners.flush(tokens_by_owner(outputs))

    def _take_batch(self, batch: FrontendBatch) -> None:
        # Ends of earlier requests first: their ids may be used again in the same message.
        ends_of_new = [end for end in batch.ends if not self._end(batch.owner, end)]
        aborts = deque(batch.aborts)
        for num_before, arrived in enumerate(batch.requests):
            # An id may be used again after its abort in the same message, too.
            while aborts and aborts[0].num_requests_before <= num_before:
                self._finish(aborts.popleft().request_id, FinishReason.ABORT)
            self._add(arrived, batch.arrival_ns)
        for end in ends_of_new:
            self._end(batch.owner, end)
        for abort in aborts:
            self._finish(abort.request_id, FinishReason.ABORT)

    def _end(self, owner: int, end: AskedEnd) -> bool:
        """End a front end's request; tell whether it lived."""
        live = self._live.find(owner, end.handle)
        if live is None:
            return False
        self._finish(live.request_id, end.reason, end.num_output_tokens)
        return True

    def _add(self, arrived: ArrivedRequest, arrival_ns: int) -> None:
        request = arrived.request
        if arrived.takes_over:
            self._finish(request.request_id, FinishReason.ABORT)
        try:
            self._group.add(request)
        except REFUSALS as error:
            self._owners.tell_ended(request.owner, ended_of_refusal(request.handle, error))
            return
        self._live.add(
            LiveRequest(
                request_id=request.request_id,
                owner=request.owner,
                handle=request.handle,
                arrival_ns=arrival_ns,
            )
        )
        if arrived.deadline_ns is not None:
            self._deadlines.add(request.request_id, arrived.deadline_ns)

    def _drop_frontend(self, owner: int) -> None:
        for request_id in self._live.request_ids_of(owner):
            self._finish(request_id, FinishReason.DISCONNECT)
        self._owners.detach(owner)

    def _finish(self, request_id: str, reason: FinishReason, num_tokens: int | None = None) -> None:
        finished = self._group.finish(request_id, reason, num_tokens=num_tokens)
        if finished is not None:
            self._note_finished(finished)

    def _note_finished(self, finished: FinishedRequest) -> None:
        """Forget a request that the core has ended, and have its owner told."""
        live = self._live.remove(finished.request_id)
        self._deadlines.discard(finished.request_id)
        assert len(self._deadlines) <= len(self._live), "only live requests have deadlines"
        ended = ended_of_finished(finished, live.queue_time_ns)
        if ended is not None:
            self._owners.tell_ended(live.owner, ended)

    def _note_admission(self, admission: Admission) -> None:
        """Have the owner told of a request's first step."""
        if not admission.is_first:
            return
        live = self._live.find(admission.owner, admission.handle)
        assert live is not None, "only live requests are admitted"
        live.queue_time_ns = time.monotonic_ns() - live.arrival_ns
        started = StartedRequest(
            handle=live.handle,
            num_cached_tokens=min(admission.num_computed_tokens, admission.num_prompt_tokens),
            queue_time_ns=live.queue_time_ns,
        )
        self._owners.tell_started(live.owner, started)

    def _expire_deadlines(self) -> None:
        for request_id in self._deadlines.pop_expired(time.monotonic_ns()):
            self._finish(request_id, FinishReason.DEADLINE)

    def _set_timer(self) -> None:
        """Have the loop woken at the next deadline, should nothing else wake it before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_ns = self._deadlines.next_ns()
        if next_ns is not None:
            delay_seconds = max(0.0, (next_ns - time.monotonic_ns()) / 1e9) + _TIMER_MARGIN_SECONDS
            self._timer = asyncio.get_running_loop().call_later(delay_seconds, self._inbox.wake)
