"""One generation from what a client asked to its last message, whatever stream carries it.

Check, tokenize, hand to the engine, deliver; whatever happens to the client's stream, the engine
is told when nobody waits any more. Knows nothing about gRPC contexts or protobuf.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from scheduler_svc.core.types import FinishReason
from scheduler_svc.errors import DuplicateRequestError, RequestInterruptedError
from scheduler_svc.frontend.caller import calling_tenant
from scheduler_svc.frontend.engine_link import EngineLink
from scheduler_svc.frontend.generation import Generation
from scheduler_svc.frontend.open_requests import OpenRequest, OpenRequests
from scheduler_svc.frontend.request_check import RequestLimits, check_counts, check_options, check_request
from scheduler_svc.frontend.resume import resume_generation
from scheduler_svc.frontend.served_model import ServedModel
from scheduler_svc.frontend.stop_strings import StopStringMatcher
from scheduler_svc.frontend.streams import MAX_PENDING, RequestStream, deliver
from scheduler_svc.frontend.tenants import Tenant
from scheduler_svc.frontend.values import (
    AskedCounts,
    AskedRequest,
    CheckedRequest,
    Ended,
    EngineFacts,
    Final,
    Output,
    Told,
)
from scheduler_svc.frontend.watch import Watch
from scheduler_svc.frontend.write_delay import WriteDelay
from scheduler_svc.frontend.write_turns import WriteTurns

_ID_WAITS_SECONDS = (0.005, 0.02, 0.08, 0.2)
"""How long an id that is in use is waited for, from one try to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """All that it takes to run a request that was checked."""

    checked: CheckedRequest
    generation: Generation
    entry: OpenRequest
    ended: Ended | None
    """How it has ended already, where it goes on after its end."""
    arrival_ns: int
    tell: Callable[[Output, RequestStream], Awaitable[None]]
    seconds_left: Callable[[], float | None]


class Generator:
    """Runs generations against one engine."""

    def __init__(
        self,
        model: ServedModel,
        link: EngineLink,
        *,
        watch: Watch,
        max_pending: int = MAX_PENDING,
    ) -> None:
        """Serve ``model`` through ``link``; ``max_pending`` bounds each request's buffer."""
        self.model = model
        self.open_requests = OpenRequests()
        self.engine_facts: EngineFacts | None = None
        """What the engine told last; None while it is gone."""
        self._link = link
        self._watch = watch
        self._max_pending = max_pending
        self._turns = WriteTurns(lambda: len(self.open_requests))
        self._write_delay = WriteDelay()

    def check_counts(self, counts: AskedCounts) -> None:
        """Check how much a message of the calling tenant holds, before it is read.

        Raises:
            InvalidRequestError: naming the field that has too much.
        """
        check_counts(counts, self._limits(calling_tenant()))

    async def run(
        self,
        asked: AskedRequest,
        *,
        write: Callable[[Told], Awaitable[None]],
        seconds_left: Callable[[], float | None],
    ) -> None:
        """Run one request to its end.

        Args:
            asked: What the client asked; an empty request id is drawn here, and a seed.
            write: Writes one message of the request.
            seconds_left: Time until the client's deadline; None without one.

        Raises:
            StepwireError: where the request is refused or ends with an error.
        """
        arrival_ns = time.monotonic_ns()
        self._write_delay.note_new_stream()
        asked, tenant = _with_drawn(asked), calling_tenant()
        request_id = tenant.scoped_request_id(asked.request_id)
        with self._watch.request(asked.request_id) as watched, self.open_requests.enter(request_id) as entry:
            await self._turns.take_in()
            with watched.reading_prompt():
                checked = watched.traced(await self._check(asked, tenant))
            generation = self._make_generation(checked)
            ended = await resume_generation(generation, checked)
            watched.note_generation(generation, asked)
            attempt = _Attempt(
                checked=checked,
                generation=generation,
                entry=entry,
                ended=ended,
                arrival_ns=arrival_ns,
                tell=_telling(asked, write),
                seconds_left=seconds_left,
            )
            for wait_seconds in (*_ID_WAITS_SECONDS, None):
                try:
                    final = await self._run_attempt(attempt)
                    watched.note_final(final)
                    break
                except DuplicateRequestError:
                    # Who cancels a call may use its id again at once, and be faster than the cancelling.
                    if wait_seconds is None:
                        # In the caller's own words: the engine knows the id with its tenant's name.
                        raise DuplicateRequestError.of(
                            "request_id", asked.request_id, "not be in use"
                        ) from None
                    await asyncio.sleep(wait_seconds)

    async def _run_attempt(self, attempt: "_Attempt") -> Final:
        """Hand a request to the engine and deliver its output; refused, it has told nothing yet."""
        stream = RequestStream(
            attempt.generation,
            num_prompt_tokens=len(attempt.checked.prompt_token_ids),
            arrival_ns=attempt.arrival_ns,
            max_pending=self._max_pending,
            meter=self._watch.meter.tokens,
        )
        ended, handle = attempt.ended, 0
        if attempt.entry.is_aborted_early and ended is None:
            ended = Ended(reason=FinishReason.ABORT)
        if ended is not None:
            stream.ended(ended)
        else:
            timeout_ns = _timeout_ns(attempt.seconds_left())
            handle = self._link.submit(
                attempt.checked, stream, timeout_ns=timeout_ns, asked_ns=attempt.arrival_ns
            )
        try:
            return await deliver(
                stream,
                lambda output: attempt.tell(output, stream),
                turns=self._turns,
                delay_seconds=self._delay_seconds,
            )
        except RequestInterruptedError as error:
            seed, num_output_tokens = attempt.checked.asked.sampling.seed, attempt.generation.num_tokens
            assert seed is not None, "one was drawn"
            raise RequestInterruptedError(
                str(error), seed=seed, num_output_tokens=num_output_tokens
            ) from error
        finally:
            self._link.abandon(handle)

    def abort(self, request_id: str) -> None:
        """Abort a request of the calling tenant, of any front end; unknown ids are ignored."""
        request_id = calling_tenant().scoped_request_id(request_id)
        self.open_requests.abort_early(request_id)
        self._link.abort(request_id)

    def _delay_seconds(self) -> float:
        return self._write_delay.seconds(len(self.open_requests), is_burst=self._turns.is_burst)

    async def _check(self, asked: AskedRequest, tenant: Tenant) -> CheckedRequest:
        limits = self._limits(tenant)
        check_options(asked, limits)
        _, prompt_token_ids = await self.model.read_prompt(asked.prompt)
        return check_request(asked, prompt_token_ids, limits=limits, tenant=tenant)

    def _limits(self, tenant: Tenant) -> RequestLimits:
        return self.model.limits(self.engine_facts, max_quota_tokens=tenant.max_num_tokens)

    def _make_generation(self, checked: CheckedRequest) -> Generation:
        stop, output = checked.asked.stop, checked.asked.output
        is_silent = not stop.includes_stop_string
        return Generation(
            self.model.detokenizers.make(skips_special_tokens=output.skips_special_tokens),
            StopStringMatcher(stop.stop_strings, includes_stop_string=stop.includes_stop_string)
            if stop.stop_strings
            else None,
            min_tokens=stop.min_tokens,
            silent_token_ids=frozenset(checked.stop_token_ids) if is_silent else frozenset(),
        )


def _with_drawn(asked: AskedRequest) -> AskedRequest:
    """Draw what the client left to us. The seed is told, so that a broken stream can be resumed."""
    sampling = asked.sampling
    if sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbits(64))
    return replace(asked, request_id=asked.request_id or secrets.token_hex(16), sampling=sampling)


def _telling(
    asked: AskedRequest, write: Callable[[Told], Awaitable[None]]
) -> Callable[[Output, RequestStream], Awaitable[None]]:
    """Return what writes the outputs of a request, with its seed in the first message."""
    seed = asked.sampling.seed

    async def tell(output: Output, stream: RequestStream) -> None:
        nonlocal seed
        told = Told(
            request_id=asked.request_id,
            output=output,
            seed=seed,
            num_prompt_tokens=stream.num_prompt_tokens,
            num_cached_tokens=stream.num_cached_tokens,
        )
        seed = None
        await write(told)

    return tell


def _timeout_ns(seconds_left: float | None) -> int:
    """Return the time left as the engine takes it: 0 means no deadline, so a passed one is 1."""
    return 0 if seconds_left is None else max(1, int(seconds_left * 1e9))
