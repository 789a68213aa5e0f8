"""A worker's hello: the model that the scheduler has, and numbers that the engine can make tables of."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler_svc.engine.limits import check_hello
from scheduler_svc.engine.values import ModelIdentity, WorkerFacts
from scheduler_svc.errors import ModelMismatchError, UnfitWorkerError

_MODEL = ModelIdentity(config_hash="c0ffee", vocab_size=1000, tokenizer_hash="")
_FACTS = WorkerFacts(
    protocol_version=1,
    worker_epoch=2**64 - 1,
    model=_MODEL,
    block_size=16,
    num_blocks=64,
    max_num_seqs=8,
    max_num_batched_tokens=256,
    max_model_len=512,
    max_steps_in_flight=2**32 - 1,
    max_lease_steps=2**32 - 1,
    device="cpu",
    dtype="float32",
    attention_backend="torch",
    tp_size=2**32 - 1,
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "block_size": 1,
            "num_blocks": 1,
            "max_num_seqs": 1,
            "max_num_batched_tokens": 1,
            "max_model_len": 1,
        },
        {"block_size": 1024, "num_blocks": 2**20, "max_num_batched_tokens": 2**24, "device": 256 * "x"},
        {"max_num_seqs": 2**16, "max_model_len": 2**14},
        {"max_num_seqs": 2**6, "max_model_len": 2**24},
    ],
)
def test_a_hello_within_all_limits_is_taken(changes: dict[str, Any]) -> None:
    check_hello(_MODEL, replace(_FACTS, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, r"the worker's block_size is 0, but must be in \[1, 1024\]"),
        ({"block_size": 1025}, r"the worker's block_size is 1025, but must be in \[1, 1024\]"),
        ({"num_blocks": 0}, r"the worker's num_blocks is 0, but must be in \[1, 1048576\]"),
        ({"num_blocks": 2**20 + 1}, r"num_blocks is 1048577, but must be in \[1, 1048576\]"),
        ({"max_num_seqs": 0}, r"the worker's max_num_seqs is 0, but must be in \[1, 65536\]"),
        ({"max_num_seqs": 2**31}, r"the worker's max_num_seqs is 2147483648, but must be in \[1, 65536\]"),
        ({"max_num_batched_tokens": 0}, r"max_num_batched_tokens is 0, but must be in \[1, 16777216\]"),
        ({"max_num_batched_tokens": 2**24 + 1}, "max_num_batched_tokens is 16777217, but must be in"),
        ({"max_model_len": 0}, r"max_model_len is 0, but must be in \[1, 16777216\]"),
        ({"max_model_len": 2**32 - 1}, "max_model_len is 4294967295, but must be in"),
        (
            {"max_num_seqs": 2**16, "max_model_len": 2**14 + 1},
            "max_num_seqs times max_model_len is 1073807360, but must be at most 1073741824",
        ),
        ({"device": 257 * "x"}, "the worker's device has 257 characters, but must have at most 256"),
        ({"model": replace(_MODEL, config_hash=257 * "x")}, "config_hash has 257 characters"),
        ({"model": replace(_MODEL, tokenizer_hash=257 * "x")}, "tokenizer_hash has 257 characters"),
    ],
)
def test_a_hello_past_a_limit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnfitWorkerError, match=message):
        check_hello(_MODEL, replace(_FACTS, **changes))


def test_another_model_is_told_before_numbers_that_may_mean_something_else_there() -> None:
    facts = replace(_FACTS, protocol_version=2, num_blocks=0)
    with pytest.raises(ModelMismatchError, match="protocol version is 1, but the worker's is 2"):
        check_hello(_MODEL, facts)
