"""What each tenant has in flight, held to its quota; pure.

A request counts from when it was taken until it ends, with its prompt and the longest output it may
have: what it will really need is not known before. Knows nothing about front ends or about when
requests end.
"""

from dataclasses import dataclass

from scheduler_svc.errors import QueueFullError


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one request counts for, and its tenant's quota as of when it came."""

    tenant: str
    num_tokens: int
    max_num_requests: int
    """0: no limit."""
    max_num_tokens: int
    """0: no limit."""


@dataclass(slots=True)
class _InFlight:
    num_requests: int = 0
    num_tokens: int = 0


class Quotas:
    """What all tenants with a quota have in flight."""

    def __init__(self) -> None:
        self._in_flight: dict[str, _InFlight] = {}

    def __len__(self) -> int:
        """Tell how many tenants have something in flight."""
        return len(self._in_flight)

    def check(self, claim: Claim) -> None:
        """Look whether one more request fits.

        Raises:
            QueueFullError: naming the tenant, what it has in flight and its quota.
        """
        now = self._in_flight.get(claim.tenant, _InFlight())
        if claim.max_num_requests and now.num_requests >= claim.max_num_requests:
            raise QueueFullError(
                f"tenant {claim.tenant!r} has {now.num_requests} requests in flight, "
                f"the most that its quota allows: try again when one has ended"
            )
        num_tokens = now.num_tokens + claim.num_tokens
        if claim.max_num_tokens and num_tokens > claim.max_num_tokens:
            raise QueueFullError(
                f"tenant {claim.tenant!r} would have {num_tokens} tokens in flight, {claim.num_tokens} of "
                f"them this request's; its quota allows {claim.max_num_tokens}: try again when one has ended"
            )

    def take(self, claim: Claim) -> None:
        """Count a request that was checked."""
        now = self._in_flight.setdefault(claim.tenant, _InFlight())
        now.num_requests += 1
        now.num_tokens += claim.num_tokens

    def give_back(self, claim: Claim) -> None:
        """Count a request no longer."""
        now = self._in_flight[claim.tenant]
        now.num_requests -= 1
        now.num_tokens -= claim.num_tokens
        assert now.num_requests >= 0, "more was given back than taken"
        if not now.num_requests:
            del self._in_flight[claim.tenant]
