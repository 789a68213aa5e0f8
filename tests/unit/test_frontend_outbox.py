"""What waits for the engine: batches, their order, and what a broken stream leaves behind."""

import asyncio

import numpy as np
import pytest
from stepwire.engine.v1 import engine_service_pb2 as pb

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import StepwireError, WorkerUnavailableError
from scheduler_svc.frontend import outbox as outbox_module
from scheduler_svc.frontend.engine_convert import write_end
from scheduler_svc.frontend.engine_link import EngineLink
from scheduler_svc.frontend.meter import FrontendMeter
from scheduler_svc.frontend.outbox import Outbox
from scheduler_svc.frontend.streams import Verdict
from scheduler_svc.frontend.values import (
    AskedRequest,
    CheckedRequest,
    Ended,
    EngineFacts,
    RequestStatus,
    TokenLogprobs,
)


def request(handle: int, num_bytes: int = 4) -> pb.NewRequest:
    return pb.NewRequest(handle=handle, prompt_token_ids=bytes(num_bytes))


async def take(outbox: Outbox) -> pb.AttachRequest:
    return await asyncio.wait_for(outbox.take(), 5)


async def is_empty(outbox: Outbox) -> bool:
    task = asyncio.create_task(outbox.take())
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    return not task.done()


async def test_all_that_gathered_is_one_message() -> None:
    outbox = Outbox()
    assert await is_empty(outbox)
    for handle in (1, 2):
        outbox.add_request(request(handle))
    outbox.add_end(write_end(1, FinishReason.STOP_STRING, num_output_tokens=7))
    outbox.add_abort("other", asked_ns=5)
    assert await take(outbox) == pb.AttachRequest(
        new_requests=[request(1), request(2)],
        end_requests=[pb.EndRequest(handle=1, reason=pb.END_REASON_STOP_STRING, num_output_tokens=7)],
        aborts=[pb.AbortById(request_id="other", num_requests_before=2, asked_ns=5)],
    )
    assert await is_empty(outbox)


async def test_an_abort_tells_which_requests_came_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "_MAX_BATCH_BYTES", 100)
    outbox = Outbox()
    outbox.add_request(request(1, 60))
    outbox.add_abort("first", asked_ns=6)
    outbox.add_request(request(2, 60))
    outbox.add_abort("second", asked_ns=7)
    outbox.add_request(request(3, 10))
    messages = [await take(outbox) for _ in range(2)]
    assert [len(message.aborts) for message in messages] == [0, 2]
    assert [abort.num_requests_before for abort in messages[1].aborts] == [0, 1]
    outbox.add_request(request(4))
    outbox.clear()
    outbox.add_abort("third", asked_ns=8)
    assert (await take(outbox)).aborts == [pb.AbortById(request_id="third", asked_ns=8)]


async def test_long_prompts_are_split_and_ends_never_overtake_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "_MAX_BATCH_BYTES", 100)
    outbox = Outbox()
    for handle, num_bytes in ((1, 60), (2, 40), (3, 4), (4, 500)):
        outbox.add_request(request(handle, num_bytes))
    outbox.add_end(write_end(4, FinishReason.DISCONNECT))
    messages = [await take(outbox) for _ in range(3)]
    assert [[new.handle for new in message.new_requests] for message in messages] == [[1, 2], [3], [4]]
    assert [len(message.end_requests) for message in messages] == [0, 0, 1]
    assert await is_empty(outbox)


async def test_clear_forgets_everything() -> None:
    outbox = Outbox()
    outbox.add_request(request(1))
    outbox.add_end(write_end(1, FinishReason.DISCONNECT))
    outbox.add_abort("r", asked_ns=5)
    outbox.clear()
    assert await is_empty(outbox)
    outbox.add_abort("s", asked_ns=6)
    assert await take(outbox) == pb.AttachRequest(aborts=[pb.AbortById(request_id="s", asked_ns=6)])


class Sink:
    """Remembers how it ended."""

    def __init__(self) -> None:
        self.error: StepwireError | None = None

    def started(self, *, num_cached_tokens: int, queue_time_ns: int) -> None:
        raise AssertionError((num_cached_tokens, queue_time_ns))

    def told_status(self, status: RequestStatus) -> None:
        raise AssertionError(status)

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> Verdict | None:
        raise AssertionError((token_id, logprobs))

    def ended(self, ended: Ended) -> None:
        raise AssertionError(ended)

    def failed(self, error: StepwireError) -> None:
        assert self.error is None
        self.error = error


async def test_a_broken_stream_fails_its_requests_and_nothing_of_them_reaches_the_next_stream() -> None:
    told: list[EngineFacts | None] = []

    async def on_facts(facts: EngineFacts | None) -> None:
        told.append(facts)

    link = EngineLink(
        "/nowhere.sock", frontend_index=0, on_facts=on_facts, meter=FrontendMeter.on_board().tokens
    )
    checked = CheckedRequest(
        request_id="r",
        prompt_token_ids=np.array([1], np.int32),
        asked=AskedRequest(),
        stop_token_ids=(),
        max_output_tokens=1,
    )
    with pytest.raises(WorkerUnavailableError, match="the engine is not there"):
        link.submit(checked, Sink(), timeout_ns=0, asked_ns=1)
    link.attached.set()
    sink = Sink()
    handle = link.submit(checked, sink, timeout_ns=0, asked_ns=1)
    assert [new.asked_ns for new in (await take(link._outbox)).new_requests] == [1]
    link.abort("r")
    await link._detach("why")
    assert str(sink.error) == "the engine is gone (why): go on from the tokens told so far"
    assert told == [None]
    link.abandon(handle)
    link.abort("r")
    assert await is_empty(link._outbox)
    await link.close()
