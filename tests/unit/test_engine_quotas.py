"""What tenants have in flight against their quotas, by hand-worked numbers."""

import pytest

from scheduler_svc.engine.quotas import Claim, Quotas
from scheduler_svc.errors import QueueFullError


def claim(tenant: str, num_tokens: int, *, max_num_requests: int = 0, max_num_tokens: int = 0) -> Claim:
    return Claim(
        tenant=tenant,
        num_tokens=num_tokens,
        max_num_requests=max_num_requests,
        max_num_tokens=max_num_tokens,
    )


def take(quotas: Quotas, one: Claim) -> Claim:
    quotas.check(one)
    quotas.take(one)
    return one


def test_requests_are_counted_for_each_tenant_alone() -> None:
    quotas = Quotas()
    first, second = (take(quotas, claim("a", 5, max_num_requests=2)) for _ in range(2))
    with pytest.raises(QueueFullError, match="tenant 'a' has 2 requests in flight, the most that its quota"):
        quotas.check(claim("a", 5, max_num_requests=2))
    take(quotas, claim("b", 5, max_num_requests=1))
    quotas.give_back(first)
    take(quotas, claim("a", 5, max_num_requests=2))
    quotas.give_back(second)
    assert len(quotas) == 2


def test_tokens_are_counted_to_the_last_one() -> None:
    quotas = Quotas()
    first = take(quotas, claim("a", 60, max_num_tokens=100))
    take(quotas, claim("a", 40, max_num_tokens=100))
    with pytest.raises(
        QueueFullError, match="would have 101 tokens in flight, 1 of them this request's; its"
    ):
        quotas.check(claim("a", 1, max_num_tokens=100))
    quotas.give_back(first)
    take(quotas, claim("a", 60, max_num_tokens=100))


def test_a_quota_that_shrank_holds_for_what_comes_next() -> None:
    quotas = Quotas()
    claims = [take(quotas, claim("a", 5, max_num_requests=3)) for _ in range(3)]
    with pytest.raises(QueueFullError, match="has 3 requests in flight"):
        quotas.check(claim("a", 5, max_num_requests=1))
    for one in claims:
        quotas.give_back(one)
    assert len(quotas) == 0
    take(quotas, claim("a", 5, max_num_requests=1))
