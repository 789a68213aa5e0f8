"""Which requests live, whose they are, and how long they queued.

The engine's index beside the core: by request id, unique over all front ends, and by each owner's
own handles. Knows nothing about tokens, blocks or plans.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler_svc.engine.quotas import Claim


@dataclass(slots=True, kw_only=True, eq=False)
class LiveRequest:
    """A request between its arrival and its end."""

    request_id: str
    owner: int
    handle: int
    arrival_ns: int
    queue_time_ns: int = 0
    """Arrival to the first step that carried it; 0 until then."""
    asked_ns: int = 0
    """When the client's call came to its front end."""
    claim: Claim | None = None
    """What it counts for, where its tenant has a quota."""


class LiveRequests:
    """All live requests."""

    def __init__(self) -> None:
        self._by_id: dict[str, LiveRequest] = {}
        self._by_handle_of: dict[int, dict[int, LiveRequest]] = {}

    def __len__(self) -> int:
        """Tell how many requests live."""
        return len(self._by_id)

    def add(self, live: LiveRequest) -> None:
        """Take in a request that the core has taken."""
        assert live.request_id not in self._by_id, f"{live.request_id!r} lives already"
        self._by_id[live.request_id] = live
        handles = self._by_handle_of.setdefault(live.owner, {})
        assert live.handle not in handles, f"owner {live.owner} used handle {live.handle} again"
        handles[live.handle] = live

    def remove(self, request_id: str) -> LiveRequest:
        """Take out a request that ended, and hand it back."""
        live = self._by_id.pop(request_id)
        handles = self._by_handle_of[live.owner]
        del handles[live.handle]
        if not handles:
            del self._by_handle_of[live.owner]
        return live

    def asked_ns_of(self, request_id: str) -> int:
        """Tell when a request was asked for; 0 if unknown or ended."""
        live = self._by_id.get(request_id)
        return 0 if live is None else live.asked_ns

    def find(self, owner: int, handle: int) -> LiveRequest | None:
        """Find an owner's request by its handle; None if unknown or ended."""
        return self._by_handle_of.get(owner, {}).get(handle)

    def __iter__(self) -> Iterator[LiveRequest]:
        """Go over all live requests, oldest first."""
        return iter(self._by_id.values())

    def request_ids_of(self, owner: int) -> list[str]:
        """List the ids of all requests of ``owner``, oldest first."""
        return [live.request_id for live in self._by_handle_of.get(owner, {}).values()]
