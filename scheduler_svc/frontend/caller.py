"""Who made the call that runs now: noted for each call's task by auth_interceptor.py.

It reaches all that the call starts, tasks of its own too, without a parameter in every signature.
Knows nothing about tokens.
"""

from contextvars import ContextVar

from scheduler_svc.frontend.tenants import ANYBODY, Tenant

_caller: ContextVar[Tenant] = ContextVar("stepwire_caller", default=ANYBODY)


def calling_tenant() -> Tenant:
    """Tell whose call this is."""
    return _caller.get()


def note_caller(tenant: Tenant) -> None:
    """Note whose call the present task is."""
    _caller.set(tenant)
