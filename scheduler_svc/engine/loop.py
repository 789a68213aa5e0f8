"""The engine's loop: drain the inbox, fold results, expire deadlines, schedule and send, fan out.

One task does all of it, so there are no locks, and everything that changes the core is an event of
the inbox. Nothing here waits for a worker or a front end: both have queues with writers of their own.
An exception in the loop is our own bug and ends it: it never goes on with a broken state.
Knows nothing about protobuf, sockets or how a step is decided.
"""

import asyncio
import time
from collections import deque

from scheduler_svc.core.plan import Admission, FinishedRequest
from scheduler_svc.core.types import FinishReason
from scheduler_svc.engine.cache_feeds import CacheFeeds
from scheduler_svc.engine.deadlines import Deadlines
from scheduler_svc.engine.early_aborts import EarlyAborts
from scheduler_svc.engine.endings import REFUSALS, ended_of_finished, ended_of_refusal
from scheduler_svc.engine.fanout import tokens_by_owner
from scheduler_svc.engine.flushes import Flushes
from scheduler_svc.engine.groups import WorkerGroups
from scheduler_svc.engine.live_requests import LiveRequest, LiveRequests
from scheduler_svc.engine.mailboxes import Inbox
from scheduler_svc.engine.meter import EngineMeter
from scheduler_svc.engine.owners import FrontendOutbox, Owners
from scheduler_svc.engine.quotas import Quotas
from scheduler_svc.engine.request_check import check_request
from scheduler_svc.engine.traces import RequestTraces
from scheduler_svc.engine.values import (
    ArrivedRequest,
    AskedAbort,
    AskedEnd,
    EndedRequest,
    EngineState,
    Event,
    FlushAsked,
    FrontendBatch,
    FrontendGone,
    LiveStatus,
    RequestEnd,
    ResultArrived,
    StartedRequest,
    WorkerDown,
    WorkerUp,
)
from scheduler_svc.engine.waits import Waits
from scheduler_svc.errors import InvalidRequestError

_TIMER_MARGIN_SECONDS = 0.001
"""uvloop rounds timers to milliseconds; one that came early would have to be set again."""


class Engine:
    """Joins the front ends to the worker groups."""

    def __init__(
        self,
        inbox: Inbox,
        groups: WorkerGroups,
        *,
        waits: Waits,
        meter: EngineMeter,
        traces: RequestTraces,
        vocab_size: int,
    ) -> None:
        """Make an engine that is not running yet.

        Args:
            inbox: where events are posted: the worker links', and those of ``attach``ed front ends.
            groups: the worker groups, whose links post to the same inbox.
            waits: says when requests are told that they wait for a worker.
            meter: counts what ends.
            traces: notes what is traced.
            vocab_size: token ids are below it.
        """
        self._inbox = inbox
        self._groups = groups
        self._waits = waits
        self._meter = meter
        self._traces = traces
        self._vocab_size = vocab_size
        self._owners = Owners()
        self._live = LiveRequests()
        self._early_aborts = EarlyAborts()
        self._deadlines = Deadlines()
        self._quotas = Quotas()
        self._flushes = Flushes()
        self.cache_feeds = CacheFeeds(groups)
        """Who is told what the prefix caches gain and lose."""
        self._timer: asyncio.TimerHandle | None = None
        self._started_ns = time.monotonic_ns()

    def attach(self, outbox: FrontendOutbox) -> int:
        """Take in a front end and tell it the engine's state; return its owner number."""
        owner = self._owners.attach(outbox)
        outbox.put(self._groups.info())
        return owner

    def post(self, event: Event) -> None:
        """Give the loop something to do."""
        self._inbox.post(event)

    @property
    def num_live(self) -> int:
        """Requests that live."""
        return len(self._live)

    def state(self) -> EngineState:
        """Count what there is, for people."""
        return EngineState(
            core=self._groups.core_state(),
            workers=self._groups.statuses(),
            uptime_ns=time.monotonic_ns() - self._started_ns,
            num_frontends=len(self._owners),
        )

    async def run(self) -> None:
        """Run for ever; raise what goes wrong.

        Raises:
            UnfitWorkerError: if the first workers to answer run another model, or tell limits that are out
                of range, each of them.
            ConfigError: if a flag is above what the first workers can hold, likewise.
        """
        while True:
            for event in await self._inbox.drain():
                self._handle(event)
            self._expire_deadlines()
            self._tell_waits()
            if self._groups.pump(self._note_admission):
                # Behind the link's writer, which is to run first.
                asyncio.get_running_loop().call_soon(self._inbox.wake)
            self._flushes.settle(self._groups, num_live=len(self._live))
            self.cache_feeds.publish()
            self._owners.flush_ends()
            self._set_timer()

    def _handle(self, event: Event) -> None:
        match event:
            case ResultArrived():
                self._fold(event)
            case FrontendBatch():
                self._take_batch(event)
            case FrontendGone(owner=owner):
                self._drop_frontend(owner)
            case WorkerUp():
                self._note_change(self._groups.begin_epoch(event))
            case WorkerDown():
                self._note_change(self._groups.end_epoch(event))
            case FlushAsked():
                self._flushes.ask(event)

    def _note_change(self, finished: list[FinishedRequest]) -> None:
        """Take in that a worker came or went, which ended these requests."""
        for one in finished:
            self._note_finished(one)
        self._owners.broadcast(self._groups.info())

    def _fold(self, arrived: ResultArrived) -> None:
        outputs = self._groups.fold(arrived)
        if outputs is None:
            return
        if self._traces:
            self._traces.note_step(outputs, arrived)
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
                self._abort(aborts.popleft())
            self._add(arrived, batch.arrival_ns)
        for end in ends_of_new:
            self._end(batch.owner, end)
        for abort in aborts:
            self._abort(abort)

    def _abort(self, abort: AskedAbort) -> None:
        """Abort the request of an id that was asked for before, be it still on its way."""
        self._early_aborts.note(abort.request_id, abort.asked_ns)
        if self._live.asked_ns_of(abort.request_id) <= abort.asked_ns:
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
        if self._early_aborts.has_aborted(request.request_id, arrived.asked_ns):
            self._owners.tell_ended(request.owner, EndedRequest(handle=request.handle, end=RequestEnd.ABORT))
            return
        try:
            check_request(request, self._vocab_size)
            if self._live.find(request.owner, request.handle) is not None:
                raise InvalidRequestError.of("handle", request.handle, "not be in use")
            if arrived.takes_over:
                self._finish(request.request_id, FinishReason.ABORT)
            if arrived.claim is not None:
                self._quotas.check(arrived.claim)
            self._groups.add(request)
        except REFUSALS as error:
            self._owners.tell_ended(request.owner, ended_of_refusal(request.handle, error))
            return
        self._live.add(
            LiveRequest(
                request_id=request.request_id,
                owner=request.owner,
                handle=request.handle,
                arrival_ns=arrival_ns,
                asked_ns=arrived.asked_ns,
                claim=arrived.claim,
            )
        )
        if arrived.claim is not None:
            self._quotas.take(arrived.claim)
        self._traces.begin(arrived, arrival_ns)
        if arrived.deadline_ns is not None:
            self._deadlines.add(request.request_id, arrived.deadline_ns)
        if not self._groups.is_serving:
            status = LiveStatus.WAITING_FOR_WORKER
            self._owners.tell_status(request.owner, handle=request.handle, status=status)

    def _drop_frontend(self, owner: int) -> None:
        for request_id in self._live.request_ids_of(owner):
            self._finish(request_id, FinishReason.DISCONNECT)
        self._owners.detach(owner)

    def _finish(self, request_id: str, reason: FinishReason, num_tokens: int | None = None) -> None:
        finished = self._groups.finish(request_id, reason, num_tokens=num_tokens)
        if finished is not None:
            self._note_finished(finished)

    def _note_finished(self, finished: FinishedRequest) -> None:
        """Forget a request that the core has ended, and have its owner told."""
        self._meter.note_ended(finished.reason)
        live = self._live.remove(finished.request_id)
        self._deadlines.discard(finished.request_id)
        if live.claim is not None:
            self._quotas.give_back(live.claim)
        self._traces.end(live, finished)
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
        self._traces.note_started(live.owner, started)
        self._owners.tell_started(live.owner, started)

    def _expire_deadlines(self) -> None:
        for request_id in self._deadlines.pop_expired(time.monotonic_ns()):
            self._finish(request_id, FinishReason.DEADLINE)

    def _tell_waits(self) -> None:
        """Have all live requests told that they wait for a worker, or no longer do, when that is due."""
        status = self._waits.take_due(time.monotonic_ns(), is_serving=self._groups.is_serving)
        if status is not None:
            for live in self._live:
                self._owners.tell_status(live.owner, handle=live.handle, status=status)

    def _set_timer(self) -> None:
        """Have the loop woken when the next thing is due, should nothing else wake it before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = [at for at in (self._deadlines.next_ns(), self._waits.next_ns) if at is not None]
        if due_ns:
            next_ns = min(due_ns)
            delay_seconds = max(0.0, (next_ns - time.monotonic_ns()) / 1e9) + _TIMER_MARGIN_SECONDS
            self._timer = asyncio.get_running_loop().call_later(delay_seconds, self._inbox.wake)
