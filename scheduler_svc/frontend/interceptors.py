"""Around every call of our own services: an id, an access log line, and errors turned into statuses.

Knows nothing about what the calls do; of health and reflection only unreadable messages are refused.
"""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc

from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.access_log import log_call
from scheduler_svc.frontend.call_deadline import CallDeadline, is_cancelled_by_deadline, note_deadline
from scheduler_svc.frontend.client_gone import cancelled_where_client_is_gone
from scheduler_svc.frontend.standard_services import refuse_unreadable
from scheduler_svc.frontend.status import hints_of, is_expected, status_of
from service.handler_kinds import kind_of
from service.readable import handing_over
from service.standard_services import refusing_unreadable
from telemetry.call_context import CallContext, current_call, within_call

_OUR_SERVICES = ("/stepwire.", "/vllm.")
CALL_ID_KEY = "x-request-id"

_log = logging.getLogger(__name__)

Behaviour = Callable[[Any, Any], Awaitable[Any]]
NoteCall = Callable[[str, str], None]
"""Takes a call's method and the name of its status."""
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the behaviour of each call."""

    def __init__(self, note_call: NoteCall) -> None:
        """Tell ``note_call`` of each call that ends."""
        self._note_call = note_call
        self._wrapped: dict[str, tuple[_Handler, _Handler]] = {}
        """By method, the handler that was found and what it became: made anew, it costs 40 us a call."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the handler of the call, wrapped."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        known, wrapped = self._wrapped.get(method, (None, handler))
        if known is not handler:
            wrapped = self._wrap(handler, method)
            self._wrapped[method] = handler, wrapped
        return wrapped

    def _wrap(self, handler: _Handler, method: str) -> _Handler:
        assert handler.request_deserializer is not None, "all methods here take messages"
        if not method.startswith(_OUR_SERVICES):
            deserialize = handing_over(handler.request_deserializer, InvalidRequestError)
            return refusing_unreadable(handler, deserialize, check=refuse_unreadable)
        return _wrap_handler(handler, method=method, note_call=self._note_call)


def _wrap_handler(handler: _Handler, *, method: str, note_call: NoteCall) -> _Handler:
    """Return a handler of the same kind; ours are coroutines, unary or writing to their context."""
    behaviour, make = kind_of(handler)
    assert handler.request_deserializer is not None, "our methods take messages"
    return make(
        _wrap_behaviour(behaviour, method=method, note_call=note_call),
        request_deserializer=handing_over(handler.request_deserializer, InvalidRequestError),
        response_serializer=handler.response_serializer,
    )


def _wrap_behaviour(behaviour: Behaviour, *, method: str, note_call: NoteCall) -> Behaviour:
    def log(context: Any, code: grpc.StatusCode, *, started: float, message: str = "") -> None:
        note_call(method, code.name)
        log_call(context, code, method=method, started=started, message=message, level=logging.INFO)

    async def run(request: Any, context: Any) -> Any:
        started, call_id = time.monotonic(), current_call().call_id
        note_deadline(CallDeadline(context.time_remaining))
        context.set_trailing_metadata(((CALL_ID_KEY, call_id),))
        try:
            if isinstance(request, InvalidRequestError):
                raise request
            response = await behaviour(request, context)
        except asyncio.CancelledError:
            is_late = is_cancelled_by_deadline()
            code = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
            log(context, code, started=started)
            raise
        except Exception as error:
            code, message = status_of(error)
            if not is_expected(error):
                _log.exception("%s of %s failed", method, call_id)
            log(context, code, started=started, message=message)
            context.set_trailing_metadata(((CALL_ID_KEY, call_id), *hints_of(error)))
        else:
            log(context, grpc.StatusCode.OK, started=started)
            return response
        # abort() raises, in a cycle that lives until garbage is collected, with this frame and the error that
        # is handled in it: 40 refused messages of 60 MB would be 4.7 GB.
        del request
        with cancelled_where_client_is_gone():
            return await context.abort(code, message)

    async def run_within_call(request: Any, context: Any) -> Any:
        with within_call(_context_of(dict(context.invocation_metadata()))):
            running = run(request, context)
            del request  # as run() does
            return await running

    return run_within_call


def _context_of(metadata: Mapping[str, str | bytes]) -> CallContext:
    return CallContext(
        call_id=str(metadata.get(CALL_ID_KEY) or secrets.token_hex(16)),
        traceparent=str(metadata.get("traceparent", "")),
        tracestate=str(metadata.get("tracestate", "")),
    )
