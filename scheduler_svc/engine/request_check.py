"""Whether a front end's request is one that a worker can take; pure.

Front ends check what clients ask. This keeps the engine and its workers from what a front end lets
through by mistake: a step that a worker refuses would cost every request that it runs. Knows nothing
about lengths (the core checks them) or about protobuf.
"""

from scheduler_svc.core.types import Int32Array, Request, SamplingParams
from scheduler_svc.errors import InvalidRequestError

_MAX_BIASES = 1024
_MAX_STOP_IDS = 128
MAX_LOGPROBS_PLUS_ONE = 21
"""The most log-probability entries of one token."""
_MOST_TOKENS = 2**31 - 1

# field -> lowest, highest: those of stepwire.worker.v1.LaneSampling
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0, 100),
    "num_logprobs_plus_one": (0, MAX_LOGPROBS_PLUS_ONE),
    "min_tokens": (0, _MOST_TOKENS),
}


def check_request(request: Request, vocab_size: int) -> None:
    """Check all but lengths.

    Raises:
        InvalidRequestError: naming the field, its value and its limit.
    """
    _check_ids("prompt_token_ids", request.prompt_token_ids, vocab_size)
    _check_ids("output_token_ids", request.known_output_token_ids, vocab_size)
    sampling = request.sampling
    for name, (lowest, highest) in _RANGES.items():
        value = getattr(sampling, name)
        if not lowest <= value <= highest:  # NaN is in no range
            raise InvalidRequestError.of(f"sampling.{name}", value, f"be in [{lowest}, {highest}]")
    if sampling.top_k > vocab_size:
        raise InvalidRequestError.of("sampling.top_k", sampling.top_k, f"be in [0, {vocab_size}]")
    _check_lists(sampling, vocab_size)


def _check_ids(field: str, token_ids: Int32Array, vocab_size: int) -> None:
    if len(token_ids) and not (int(token_ids.min()) >= 0 and int(token_ids.max()) < vocab_size):
        raise InvalidRequestError(f"{field} hold ids outside [0, {vocab_size}), the vocabulary")


def _check_lists(sampling: SamplingParams, vocab_size: int) -> None:
    bias_ids = [token_id for token_id, _ in sampling.logit_bias]
    for field, token_ids, most in (
        ("bias_token_ids", bias_ids, _MAX_BIASES),
        ("stop_token_ids", sampling.stop_token_ids, _MAX_STOP_IDS),
    ):
        if len(token_ids) > most:
            raise InvalidRequestError.of(f"number of sampling.{field}", len(token_ids), f"be at most {most}")
        outside = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
        if outside:
            raise InvalidRequestError.of(f"one of sampling.{field}", outside[0], f"be in [0, {vocab_size})")
    if len(set(bias_ids)) < len(bias_ids):
        raise InvalidRequestError("sampling.bias_token_ids name a token twice, but must name each once")
    wrong = [value for _, value in sampling.logit_bias if not -100 <= value <= 100]
    if wrong:
        raise InvalidRequestError.of("one of sampling.bias_values", wrong[0], "be in [-100, 100]")
