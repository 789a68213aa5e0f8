"""How health and reflection of a front end refuse what they cannot read.

Knows nothing about what their messages mean.
"""

from typing import Any

from scheduler_svc.errors import InvalidRequestError
from scheduler_svc.frontend.client_gone import cancelled_where_client_is_gone
from scheduler_svc.frontend.status import status_of


async def refuse_unreadable(request: Any, context: Any) -> None:
    """End the call with the error that stands in the place of its request, if one does."""
    if isinstance(request, InvalidRequestError):
        with cancelled_where_client_is_gone():
            await context.abort(*status_of(request))
