"""What a front end is told that sends what cannot be read."""

from typing import Any

import grpc
import pytest

from scheduler_svc.engine.servicer import _refuse


class AbortedError(Exception):
    """What a context raises to end a call."""


class Context:
    """Takes the place of gRPC's."""

    told: tuple[grpc.StatusCode, str]

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.told = code, details
        raise AbortedError


async def test_a_long_reason_keeps_both_its_ends() -> None:
    context: Any = Context()
    with pytest.raises(AbortedError):
        await _refuse(context, ValueError(f"request_id is '{'x' * 9000}', but must be short"))
    code, details = context.told
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(details) < 600
    assert details.startswith("request_id is 'xxx")
    assert details.endswith("xxx', but must be short")
