"""Throws streams of raw messages at one method and gathers how each call ended.

Knows nothing about what the messages mean.
"""

import asyncio
import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

CALL_SECONDS = 60.0
"""No call takes longer, on the slowest machine either: a deadline that passes is a failure."""
_MAX_KEPT = 5
_NUM_AT_ONCE = 32
_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How many messages of each kind are thrown at each method."""

    num_hostile: int
    num_random: int


Messages = list[bytes]
"""What is sent in one call."""
Judge = Callable[[list[bytes]], str]
"""Looks at a call's answers; tells what is wrong with them, or nothing."""


@dataclass(slots=True, kw_only=True)
class Outcomes:
    """How calls of one method ended."""

    method: str
    may_end: frozenset[grpc.StatusCode]
    judge: Judge
    codes: Counter[grpc.StatusCode] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """The first calls of each kind that ended in a way that they may not: what came back, what was sent."""

    def note(self, messages: Messages, code: grpc.StatusCode, *, told: str, answers: list[bytes]) -> None:
        """Count one call."""
        fault = self.judge(answers) if code in self.may_end else f"ended so: {told}"
        self.codes[code] += 1
        kind = f"{self.method} {code.name}: {fault}"
        if (
            fault
            and len(self.wrong) < _MAX_KEPT
            and not any(one.startswith(kind[:100]) for one in self.wrong)
        ):
            sent = " | ".join(message[:300].hex() for message in messages)
            self.wrong.append(f"{kind}; sent {sent}")


async def throw(
    address: str,
    method: str,
    *,
    messages: Iterable[bytes],
    may_end: frozenset[grpc.StatusCode],
    judge: Judge = lambda _: "",
    is_endless: bool = False,
) -> Outcomes:
    """Send each message in a call of its own, several calls at a time.

    The kind of a call is nothing that travels, so that one message serves for a stream, too. Where calls
    are endless, an answer is a good end.
    """
    outcomes, source = Outcomes(method=method, may_end=may_end, judge=judge), iter(messages)

    async def make_calls(channel: grpc.aio.Channel) -> None:
        make: Any = channel.unary_stream(method)
        for message in source:
            call, answers = make(message, timeout=CALL_SECONDS), []
            with contextlib.suppress(grpc.RpcError):  # its code is looked at below
                async for answer in call:
                    answers.append(answer)
                    if is_endless:
                        break
            if is_endless and answers:
                call.cancel()
                outcomes.note([message], grpc.StatusCode.OK, told="", answers=answers)
            else:
                outcomes.note([message], await call.code(), told=await call.details() or "", answers=answers)

    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        await asyncio.gather(*(make_calls(channel) for _ in range(_NUM_AT_ONCE)))
    return outcomes


async def throw_streams(
    address: str,
    method: str,
    *,
    calls: Iterable[Messages],
    may_end: frozenset[grpc.StatusCode],
    judge: Judge = lambda _: "",
    num_at_once: int = 8,
) -> Outcomes:
    """Make calls of several messages each, while this process's event loop serves them.

    With gRPC's client for threads: the other one tells an error of its own where the server ended a
    call before all was sent.
    """
    outcomes, lock, source = (
        Outcomes(method=method, may_end=may_end, judge=judge),
        threading.Lock(),
        iter(calls),
    )

    def next_call() -> Messages | None:
        with lock:
            return next(source, None)

    def make_calls(channel: grpc.Channel) -> None:
        make: Any = channel.stream_stream(method)
        while (messages := next_call()) is not None:
            call, answers = make(iter(messages), timeout=CALL_SECONDS), []
            with contextlib.suppress(grpc.RpcError):  # its code is looked at below
                answers.extend(call)
            with lock:
                outcomes.note(messages, call.code(), told=call.details() or "", answers=answers)

    with (
        grpc.insecure_channel(address, options=_OPTIONS) as channel,
        ThreadPoolExecutor(num_at_once) as pool,
    ):
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(pool, make_calls, channel) for _ in range(num_at_once)))
    return outcomes


def always(messages: Messages) -> Callable[[int], Messages]:
    """Begin every call with the same messages."""
    return lambda _: messages


def after(
    first: Callable[[int], Messages], messages: Iterable[bytes], *, num_each: int = 1
) -> Iterator[Messages]:
    """Send messages in calls that begin with ``first(number of the call)``."""
    source = iter(messages)
    for number in itertools.count():
        if not (batch := list(itertools.islice(source, num_each))):
            return
        yield first(number) + batch
