"""Whether a request can ever fit a worker group, and how long it may become there.

Knows nothing about what runs now: a request that fits may still have to wait.
"""

from scheduler_svc.core.types import CoreLimits, Request
from scheduler_svc.errors import InvalidRequestError


def most_tokens_of_one(limits: CoreLimits) -> int:
    """Give the most tokens, prompt and output, that one request may have."""
    return min(limits.max_model_len, limits.num_blocks * limits.block_size)


def max_total_tokens(request: Request, limits: CoreLimits) -> int:
    """Give the most tokens of prompt and output together, or refuse what can never fit.

    Raises:
        InvalidRequestError: naming field, value and limit.
    """
    capacity = most_tokens_of_one(limits)
    num_prompt_tokens = request.num_prompt_tokens
    if num_prompt_tokens == 0:
        raise InvalidRequestError("prompt has 0 tokens, but must have at least 1")
    if num_prompt_tokens >= capacity:
        raise InvalidRequestError(
            f"prompt has {num_prompt_tokens} tokens, but must leave room within {_told(limits)}"
        )
    if request.max_tokens is None:
        return capacity
    if request.max_tokens < 1:
        raise InvalidRequestError.of("max_tokens", request.max_tokens, "be at least 1")
    if num_prompt_tokens + request.max_tokens > capacity:
        raise InvalidRequestError(
            f"max_tokens is {request.max_tokens}, but with {num_prompt_tokens} prompt tokens must fit "
            f"{_told(limits)}"
        )
    return num_prompt_tokens + request.max_tokens


def _told(limits: CoreLimits) -> str:
    num_pool_tokens = limits.num_blocks * limits.block_size
    return f"{limits.max_model_len} (max_model_len) and {num_pool_tokens} (the KV cache)"
