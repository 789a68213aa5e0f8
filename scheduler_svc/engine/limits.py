"""Whether a worker fits the scheduler: the same model, and limits that the flags only lower.

Pure: knows nothing about streams; the worker link asks when a worker's hello came.
"""

from scheduler_svc.config import ConfigError, SchedulerConfig
from scheduler_svc.core.types import CoreLimits
from scheduler_svc.engine.values import ModelIdentity, WorkerFacts
from scheduler_svc.errors import ModelMismatchError

PROTOCOL_VERSION = 1


def check_model(expected: ModelIdentity, facts: WorkerFacts) -> None:
    """Refuse a worker that speaks another protocol or runs another model.

    The tokenizer's hash is no reason to refuse: the worker never sees text.

    Raises:
        ModelMismatchError: naming what the scheduler has and what the worker has.
    """
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
