"""Deadlines of the client: the longest one is kept, and one that gRPC cannot keep is refused."""

import math

import pytest
from stepwire_client import AsyncStepwireClient, InvalidRequest, StepwireClient
from stepwire_client.channel import MAX_TIMEOUT_SECONDS

UNUSED_ADDRESS = "127.0.0.1:1"
MESSAGE = "timeout_seconds is .*, but must be at most 1e\\+09$"


def test_the_longest_deadline_is_kept(fake_address: str) -> None:
    with StepwireClient(fake_address) as client:
        assert client.complete("Hi", timeout_seconds=MAX_TIMEOUT_SECONDS).text


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 2e9])
def test_a_deadline_that_cannot_be_kept_is_refused(seconds: float) -> None:
    with StepwireClient(UNUSED_ADDRESS) as client:
        with pytest.raises(InvalidRequest, match=MESSAGE):
            client.generate("Hi", timeout_seconds=seconds)
        with pytest.raises(InvalidRequest, match=MESSAGE):
            client.generate_many([], timeout_seconds=seconds)
        with pytest.raises(InvalidRequest, match=MESSAGE):
            client.model_info(timeout_seconds=seconds)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 2e9])
async def test_a_deadline_that_cannot_be_kept_is_refused_with_asyncio(seconds: float) -> None:
    async with AsyncStepwireClient(UNUSED_ADDRESS) as client:
        with pytest.raises(InvalidRequest, match=MESSAGE):
            client.generate("Hi", timeout_seconds=seconds)
        with pytest.raises(InvalidRequest, match=MESSAGE):
            client.generate_many([], timeout_seconds=seconds)
        with pytest.raises(InvalidRequest, match=MESSAGE):
            await client.model_info(timeout_seconds=seconds)
