"""The attached front ends, and what has gathered to tell each of them.

Knows nothing about streams (an outbox's reader writes them) or about why a request ended.
"""

from dataclasses import replace
from itertools import chain

from scheduler_svc.engine.fanout import NO_INT32
from scheduler_svc.engine.mailboxes import Outbox
from scheduler_svc.engine.values import EndedRequest, EngineInfo, LiveStatus, OwnerOutputs, StartedRequest

FrontendOutbox = Outbox[OwnerOutputs | EngineInfo]

_NO_TOKENS = OwnerOutputs(handles=NO_INT32, token_ids=NO_INT32)


class Owners:
    """The attached front ends, by number, and what was gathered to tell them."""

    def __init__(self) -> None:
        self._num_attached_total = 0
        self._outboxes: dict[int, FrontendOutbox] = {}
        self._started: dict[int, list[StartedRequest]] = {}
        self._ended: dict[int, list[EndedRequest]] = {}
        self._statuses: dict[int, dict[int, LiveStatus]] = {}

    def __len__(self) -> int:
        """Tell how many are attached."""
        return len(self._outboxes)

    def attach(self, outbox: FrontendOutbox) -> int:
        """Take in a front end; return its number, which is never used again."""
        self._num_attached_total += 1
        self._outboxes[self._num_attached_total] = outbox
        return self._num_attached_total

    def detach(self, owner: int) -> None:
        """Forget a front end; whatever it should still be told is dropped."""
        del self._outboxes[owner]

    def tell_started(self, owner: int, started: StartedRequest) -> None:
        """Gather that a request had its first step."""
        self._started.setdefault(owner, []).append(started)

    def tell_ended(self, owner: int, ended: EndedRequest) -> None:
        """Gather that a request ended."""
        self._ended.setdefault(owner, []).append(ended)

    def tell_status(self, owner: int, *, handle: int, status: LiveStatus) -> None:
        """Gather whether a request can go on; what was gathered of it before is out of date."""
        self._statuses.setdefault(owner, {})[handle] = status

    def broadcast(self, info: EngineInfo) -> None:
        """Tell every front end."""
        for outbox in self._outboxes.values():
            outbox.put(info)

    def flush_ends(self) -> None:
        """Send what gathered, unless it is only that requests started: that waits for their step's result."""
        if self._ended or self._statuses:
            self.flush({})

    def flush(self, tokens: dict[int, OwnerOutputs]) -> None:
        """Send each front end one message of its tokens and all that was gathered."""
        started, self._started = self._started, {}
        ended, self._ended = self._ended, {}
        statuses, self._statuses = self._statuses, {}
        for owner in dict.fromkeys(chain(tokens, started, ended, statuses)):
            outbox = self._outboxes.get(owner)
            if outbox is None:
                continue
            outputs = tokens.get(owner, _NO_TOKENS)
            if owner in started or owner in ended or owner in statuses:
                outputs = replace(
                    outputs,
                    started=tuple(started.get(owner, ())),
                    ended=tuple(ended.get(owner, ())),
                    statuses=tuple(statuses.get(owner, {}).items()),
                )
            outbox.put(outputs)
