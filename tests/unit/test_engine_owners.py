"""What gathers for front ends, and what of it is sent without tokens."""

import numpy as np

from scheduler_svc.engine.owners import FrontendOutbox, Owners
from scheduler_svc.engine.values import EndedRequest, LiveStatus, OwnerOutputs, RequestEnd, StartedRequest

STARTED = StartedRequest(handle=7, num_cached_tokens=16, queue_time_ns=5)
ENDED = EndedRequest(handle=8, end=RequestEnd.ABORT)


async def sent_before_an_end(owners: Owners, outbox: FrontendOutbox) -> OwnerOutputs:
    """Send an end; return the first message that was sent until then."""
    owners.tell_ended(1, ENDED)
    owners.flush_ends()
    outputs = await outbox.get()
    assert isinstance(outputs, OwnerOutputs)
    return outputs


def attached() -> tuple[Owners, FrontendOutbox]:
    owners, outbox = Owners(), FrontendOutbox(16)
    assert owners.attach(outbox) == 1
    return owners, outbox


async def test_that_requests_started_is_told_with_their_steps_result() -> None:
    owners, outbox = attached()
    owners.tell_started(1, STARTED)
    owners.flush_ends()
    handles = np.array([7], np.int32)
    owners.flush({1: OwnerOutputs(handles=handles, token_ids=handles)})
    outputs = await sent_before_an_end(owners, outbox)
    assert (outputs.started, outputs.handles.tolist(), outputs.ended) == ((STARTED,), [7], ())


async def test_a_result_without_tokens_tells_what_started() -> None:
    owners, outbox = attached()
    owners.tell_started(1, STARTED)
    owners.flush({})
    outputs = await sent_before_an_end(owners, outbox)
    assert (outputs.started, outputs.ended) == ((STARTED,), ())


async def test_ends_and_statuses_wait_for_nothing_and_take_along_what_started() -> None:
    owners, outbox = attached()
    owners.tell_started(1, STARTED)
    outputs = await sent_before_an_end(owners, outbox)
    assert (outputs.started, outputs.ended) == ((STARTED,), (ENDED,))
    owners.tell_status(1, handle=7, status=LiveStatus.WAITING_FOR_WORKER)
    owners.flush_ends()
    outputs = await sent_before_an_end(owners, outbox)
    assert (outputs.statuses, outputs.ended) == (((7, LiveStatus.WAITING_FOR_WORKER),), ())
