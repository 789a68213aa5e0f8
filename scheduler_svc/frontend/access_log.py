"""The access log: one line for each call that ended, with the same fields whatever ended it.

Knows nothing about what the calls do.
"""

import logging
import time
from typing import Any

import grpc

from telemetry.call_context import current_call

_log = logging.getLogger("stepwire.access")


def log_call(
    context: Any, code: grpc.StatusCode, *, method: str, started: float, message: str = "", level: int
) -> None:
    """Tell of the call that runs, which ends so and began at ``started`` of the monotonic clock."""
    if not _log.isEnabledFor(level):
        return
    seconds, peer = time.monotonic() - started, context.peer()
    line = f"{method} {code.name} {current_call().call_id} {seconds:.3f} s {peer} {message}".rstrip()
    fields = {"method": method, "code": code.name, "seconds": seconds, "peer": peer}
    _log.log(level, "%s", line, extra={"fields": fields})
