"""Asks for the requests of a fault run by the Python client, in each of its ways.

A request that was not taken, with the hint to come again, is asked again; all else is the client's own
affair. Knows nothing about which faults come when, nor what must come out.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from stepwire_client import (
    AsyncGenerationStream,
    AsyncStepwireClient,
    Cancelled,
    DeadlineExceeded,
    Delta,
    StepwireClient,
    StepwireClientError,
    Unavailable,
)

from tests.e2e.faults.cases import Case
from tests.e2e.faults.progress import Progress
from tests.e2e.faults.verdicts import Told, is_refusal
from tools.link_proxy import LinkProxy

ASK_AGAIN_SECONDS = 0.2
GIVE_UP_SECONDS = 60.0
_LEFT = "the client left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where requests are asked, and what counts their tokens."""

    address: str
    progress: Progress
    catalogue: Sequence[Case]


async def ask_until_taken(tolds: Sequence[Told], attempt: Callable[[list[Told]], Awaitable[None]]) -> None:
    """Attempt requests; attempt those again that were not taken."""
    give_up_seconds = time.monotonic() + GIVE_UP_SECONDS
    left = list(tolds)
    while True:
        await attempt(left)
        left = [told for told in left if is_refusal(told.events)]
        if not left or time.monotonic() > give_up_seconds:
            return
        for told in left:
            told.start_again()
        await asyncio.sleep(ASK_AGAIN_SECONDS)


async def ask_stream(place: Place, told: Told, *, timeout_seconds: float | None = None) -> None:
    """Ask by the asyncio client and read to the end."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    async def attempt(_: list[Told]) -> None:
        left_seconds = None if deadline is None else deadline - time.monotonic()
        if left_seconds is not None and left_seconds <= 0:
            told.events.append(DeadlineExceeded("it passed before the request was taken"))
            return
        case = place.catalogue[told.case]
        async with AsyncStepwireClient(place.address) as client:
            stream = client.generate(case.prompt, timeout_seconds=left_seconds, **case.options)
            await _read(stream, told, place.progress)

    await ask_until_taken([told], attempt)


async def ask_slowly(place: Place, told: Told, *, num_tokens: int) -> None:
    """Read a little, then nothing until all requests together have come so far, then the rest."""

    async def attempt(_: list[Told]) -> None:
        case = place.catalogue[told.case]
        async with AsyncStepwireClient(place.address) as client:
            stream = client.generate(case.prompt, **case.options)
            await _read(stream, told, place.progress, num_deltas=1)
            with place.progress.resting():
                await place.progress.reach(num_tokens)
            if not told.events or isinstance(told.events[-1], Delta):
                await _read(stream, told, place.progress)

    await ask_until_taken([told], attempt)


async def ask_in_thread(place: Place, told: Told) -> None:
    """Ask by the client for threads and read to the end."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        case = place.catalogue[told.case]
        with StepwireClient(place.address) as client:
            stream = client.generate(case.prompt, **case.options)
            try:
                for delta in stream:
                    told.events.append(delta)
                    loop.call_soon_threadsafe(place.progress.note, len(delta.token_ids))
                told.events.append(stream.final)
            except StepwireClientError as error:
                told.events.append(error)
            told.num_resumes += stream.num_resumes

    async def attempt(_: list[Told]) -> None:
        await asyncio.to_thread(read)

    await ask_until_taken([told], attempt)


async def ask_bulk(place: Place, tolds: Sequence[Told]) -> None:
    """Ask for all over one GenerateMany stream."""

    async def attempt(left: list[Told]) -> None:
        by_id = {f"{id(told)}-{told.num_refusals}": told for told in left}
        requests = [place.catalogue[told.case].request(request_id) for request_id, told in by_id.items()]
        async with AsyncStepwireClient(place.address) as client:
            try:
                async for request_id, event in client.generate_many(requests, max_concurrent=8):
                    by_id[request_id].events.append(event)
                    if isinstance(event, Delta):
                        place.progress.note(len(event.token_ids))
            except StepwireClientError as error:
                for told in left:
                    if not told.events or isinstance(told.events[-1], Delta):
                        told.events.append(error)

    await ask_until_taken(tolds, attempt)


async def ask_and_cancel(place: Place, told: Told, *, num_deltas: int) -> None:
    """Cancel after so many deltas."""

    async def attempt(_: list[Told]) -> None:
        case = place.catalogue[told.case]
        async with (
            AsyncStepwireClient(place.address) as client,
            client.generate(case.prompt, **case.options) as stream,
        ):
            await _read(stream, told, place.progress, num_deltas=num_deltas)

    await ask_until_taken([told], attempt)


async def ask_and_abort(place: Place, told: Told, *, num_deltas: int) -> None:
    """Abort by the id after so many deltas, over another connection; read to the end."""

    async def attempt(_: list[Told]) -> None:
        case = place.catalogue[told.case]
        async with AsyncStepwireClient(place.address) as client, AsyncStepwireClient(place.address) as other:
            stream = client.generate(case.prompt, **case.options)
            await _read(stream, told, place.progress, num_deltas=num_deltas)
            try:
                await other.abort(stream.request_id, timeout_seconds=5.0)
            except (Unavailable, DeadlineExceeded):
                place.progress.note(0)  # nobody was there to take it: the request goes on
            if not told.events or isinstance(told.events[-1], Delta):
                await _read(stream, told, place.progress)

    await ask_until_taken([told], attempt)


async def ask_and_vanish(place: Place, told: Told, *, num_deltas: int) -> None:
    """Lose the connection for ever after so many deltas."""

    async def attempt(_: list[Told]) -> None:
        case = place.catalogue[told.case]
        async with (
            _own_link(place.address) as link,
            AsyncStepwireClient(link.address, resume_seconds=0.0) as client,
        ):
            stream = client.generate(case.prompt, **case.options)
            await _read(stream, told, place.progress, num_deltas=num_deltas)
            link.cut()
            if told.events and isinstance(told.events[-1], Unavailable) and not is_refusal(told.events):
                told.events[-1] = Cancelled(_LEFT)  # it wanted to be gone, and does not come back

    await ask_until_taken([told], attempt)


@asynccontextmanager
async def _own_link(target: str) -> AsyncIterator[LinkProxy]:
    async with AsyncExitStack() as stack:
        link = LinkProxy(target)
        await link.start()
        stack.push_async_callback(link.stop)
        yield link


async def _read(
    stream: AsyncGenerationStream, told: Told, progress: Progress, *, num_deltas: int | None = None
) -> None:
    """Read so many deltas, or all of them and the end."""
    num_read = 0
    try:
        while num_deltas is None or num_read < num_deltas:
            try:
                delta = await anext(stream)
            except StopAsyncIteration:
                told.events.append(stream.final)
                break
            told.events.append(delta)
            progress.note(len(delta.token_ids))
            num_read += 1
    except StepwireClientError as error:
        told.events.append(error)
    told.num_resumes = max(told.num_resumes, stream.num_resumes)
