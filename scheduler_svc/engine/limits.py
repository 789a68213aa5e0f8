"""Whether a worker fits the scheduler: the same model, numbers in range, limits that the flags only lower.

Pure: knows nothing about streams; the worker link asks when a worker's hello came.
"""

from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.core.types import CoreLimits
from scheduler_svc.engine.values import ModelIdentity, WorkerFacts
from scheduler_svc.errors import ModelMismatchError, UnfitWorkerError

PROTOCOL_VERSION = 1

# field of a hello -> the most that the engine takes; the least is 1. Above them it would stand still, or
# be out of memory, while it makes its tables: 1,048,576 blocks take 0.3 s and 80 MB.
_MOST: dict[str, int] = {
    "block_size": 1024,
    "num_blocks": 2**20,
    "max_num_seqs": 2**16,
    "max_num_batched_tokens": 2**24,
    "max_model_len": 2**24,
}
_MOST_TABLE_TOKENS = 2**30
"""Room for tokens in all lanes together: 4 GiB of addresses, of which only pages in use take memory."""
_MOST_CHARACTERS = 256
"""Of each name and hash, which logs and GetServerState repeat."""


def check_hello(expected: ModelIdentity, facts: WorkerFacts) -> None:
    """Refuse a worker that speaks another protocol, runs another model, or whose numbers are out of range.

    Raises:
        ModelMismatchError: naming what the scheduler has and what the worker has.
        UnfitWorkerError: naming field, value and limit.
    """
    _check_names(facts)
    _check_model(expected, facts)
    for field, most in _MOST.items():
        value = getattr(facts, field)
        if not 1 <= value <= most:
            raise UnfitWorkerError(f"the worker's {field} is {value}, but must be in [1, {most}]")
    num_table_tokens = facts.max_num_seqs * facts.max_model_len
    if num_table_tokens > _MOST_TABLE_TOKENS:
        raise UnfitWorkerError(
            f"the worker's max_num_seqs times max_model_len is {num_table_tokens}, "
            f"but must be at most {_MOST_TABLE_TOKENS}"
        )


def _check_names(facts: WorkerFacts) -> None:
    for field, name in (
        ("config_hash", facts.model.config_hash),
        ("tokenizer_hash", facts.model.tokenizer_hash),
        ("device", facts.device),
        ("dtype", facts.dtype),
        ("attention_backend", facts.attention_backend),
    ):
        if len(name) > _MOST_CHARACTERS:
            raise UnfitWorkerError(
                f"the worker's {field} has {len(name)} characters, but must have at most {_MOST_CHARACTERS}"
            )


def _check_model(expected: ModelIdentity, facts: WorkerFacts) -> None:
    """Compare all but the tokenizer's hash, which is no reason to refuse: the worker never sees text."""
    for name, ours, theirs in (
        ("protocol version", PROTOCOL_VERSION, facts.protocol_version),
        ("vocab_size", expected.vocab_size, facts.model.vocab_size),
        ("SHA-256 of config.json", expected.config_hash, facts.model.config_hash),
    ):
        if ours != theirs:
            raise ModelMismatchError(f"the scheduler's {name} is {ours}, but the worker's is {theirs}")


def lower_limits(config: SchedulerConfig, facts: WorkerFacts) -> CoreLimits:
    """Join what the worker can hold with what the flags allow.

    Raises:
        ConfigError: if a flag is above the worker's limit; names both.
    """
    max_num_seqs = _lower("max_num_seqs", config.max_num_seqs, facts.max_num_seqs)
    max_num_batched_tokens = _lower(
        "max_num_batched_tokens", config.max_num_batched_tokens, facts.max_num_batched_tokens
    )
    _lower("max_steps_in_flight", config.max_steps_in_flight, facts.max_steps_in_flight)
    if max_num_batched_tokens < max_num_seqs:
        limit = f"be at least the requests that run at once, {max_num_seqs}: lower --max-num-seqs too"
        raise ConfigError.of("max_num_batched_tokens", max_num_batched_tokens, limit)
    return CoreLimits(
        block_size=facts.block_size,
        num_blocks=facts.num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=_lower("max_model_len", config.max_model_len, facts.max_model_len),
        max_num_waiting=config.max_num_waiting,
    )


def _lower(option: str, flag: int, workers: int) -> int:
    """Return the lower limit; a flag of 0 takes the worker's."""
    if flag > workers:
        raise ConfigError.of(option, flag, f"be at most {workers}, the worker's own {option}")
    return flag or workers
