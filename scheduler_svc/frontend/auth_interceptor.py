"""Asks every call but health's for a bearer token, and tells the call whose it is.

A refused call's message is never parsed, and its metadata is never logged. Knows nothing about what
tenants may do (tenants.py) or about TLS.
"""

from __future__ import annotations  # grpc's handler type takes parameters in its stubs only

import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health

from scheduler_svc.frontend.access_log import log_call
from scheduler_svc.frontend.caller import note_caller
from scheduler_svc.frontend.client_gone import cancelled_where_client_is_gone
from scheduler_svc.frontend.interceptors import CALL_ID_KEY, NoteCall
from scheduler_svc.frontend.tenants import Tenant, TenantTable
from telemetry.call_context import CallContext, within_call

AUTHORIZATION_KEY = "authorization"
_SCHEME = "bearer "
_OPEN_SERVICE = f"/{health.SERVICE_NAME}/"
"""Probes have no tokens; what they learn is one word."""
_NO_TOKEN = "this server asks for a token: send the metadata authorization: Bearer TOKEN"
_WRONG_TOKEN = "the token is not one of this server's"

Behaviour = Callable[[Any, Any], Awaitable[Any]]


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the behaviour of each call; the first interceptor, so that nothing runs before it."""

    def __init__(self, tenants: Callable[[], TenantTable], *, note_call: NoteCall) -> None:
        """Let those in whom ``tenants()`` holds at the time of the call; tell ``note_call`` of the others."""
        self._tenants = tenants
        self._note_call = note_call

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of the call, or one that refuses it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_OPEN_SERVICE):
            return handler
        caller = self._authenticate(handler_call_details.invocation_metadata)
        if isinstance(caller, str):
            refusal = _refusal(handler_call_details.method, caller, note_call=self._note_call)
            return _handler_like(handler, refusal, is_parsed=False)
        return _handler_like(handler, _as_called_by(caller, _behaviour_of(handler)), is_parsed=True)

    def _authenticate(self, metadata: Any) -> Tenant | str:
        """Find the tenant; else tell why there is none."""
        value = next((value for key, value in metadata if key == AUTHORIZATION_KEY), "")
        text = value if isinstance(value, str) else ""
        if text[: len(_SCHEME)].lower() != _SCHEME:
            return _NO_TOKEN
        token = text[len(_SCHEME) :].strip().encode(errors="surrogateescape")
        return self._tenants().find(token) or _WRONG_TOKEN


def _behaviour_of(handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
    behaviours = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(behaviour for behaviour in behaviours if behaviour is not None)


def _handler_like(
    handler: grpc.RpcMethodHandler[Any, Any], behaviour: Behaviour, *, is_parsed: bool
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler of the same kind with another behaviour."""
    make: Callable[..., grpc.RpcMethodHandler[Any, Any]]
    if handler.request_streaming:
        is_many = handler.response_streaming
        make = grpc.stream_stream_rpc_method_handler if is_many else grpc.stream_unary_rpc_method_handler
    else:
        is_many = handler.response_streaming
        make = grpc.unary_stream_rpc_method_handler if is_many else grpc.unary_unary_rpc_method_handler
    return make(
        behaviour,
        request_deserializer=handler.request_deserializer if is_parsed else None,
        response_serializer=handler.response_serializer,
    )


def _as_called_by(tenant: Tenant, behaviour: Any) -> Any:
    """Return the behaviour with its caller noted: each call is a task of its own."""

    async def call(request: Any, context: Any) -> Any:
        note_caller(tenant)
        return await behaviour(request, context)

    async def generate(request: Any, context: Any) -> Any:
        note_caller(tenant)
        async for response in behaviour(request, context):
            yield response

    return generate if inspect.isasyncgenfunction(behaviour) else call


def _refusal(method: str, reason: str, *, note_call: NoteCall) -> Behaviour:
    async def refuse(_request: Any, context: Any) -> None:
        started, code, call_id = time.monotonic(), grpc.StatusCode.UNAUTHENTICATED, secrets.token_hex(16)
        note_call(method, code.name)
        with within_call(CallContext(call_id=call_id)):  # not a stranger's own, which is metadata
            log_call(context, code, method=method, started=started, message=reason, level=logging.WARNING)
        context.set_trailing_metadata(((CALL_ID_KEY, call_id),))
        with cancelled_where_client_is_gone():
            await context.abort(code, reason)

    return refuse
