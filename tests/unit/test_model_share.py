"""Which part of a model each rank holds, worked out by hand, and how a cut that does not fit is refused."""

from typing import Any

import pytest

from kernels.id_groups import GROUP_SIZE
from kernels.sampler_tables import PIECE_SIZE
from model.config import ModelConfig
from model.errors import ShareError
from model.rope_config import RopeConfig
from model.share import share_model


def config_of(**changes: Any) -> ModelConfig:
    """Return Qwen3-0.6B's shapes, changed."""
    fields: dict[str, Any] = {
        "architecture": "Qwen3ForCausalLM",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_layers": 28,
        "num_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope": RopeConfig(),
        "max_position_embeddings": 40960,
        "is_tied": True,
        "has_qk_norm": True,
        "has_attention_bias": False,
        "eos_token_ids": (151645,),
        "dtype": "bfloat16",
    }
    return ModelConfig(**fields | changes)


def test_one_rank_holds_everything() -> None:
    share = share_model(config_of(), rank=0, size=1)
    assert share.config == config_of()
    assert (share.heads, share.kv_heads) == (range(16), range(8))
    assert (share.intermediate, share.vocabulary) == (range(3072), range(151936))


def test_ranks_hold_equal_runs() -> None:
    share = share_model(config_of(), rank=3, size=4)
    assert (share.heads, share.kv_heads) == (range(12, 16), range(6, 8))
    assert (share.intermediate, share.vocabulary) == (range(2304, 3072), range(114048, 151936))
    shapes = share.config
    assert (shapes.num_heads, shapes.num_kv_heads, shapes.intermediate_size) == (4, 2, 768)
    assert (shapes.vocab_size, shapes.hidden_size, shapes.head_dim) == (38016, 1024, 128)


def test_ranks_share_a_kv_head_where_there_are_too_few() -> None:
    config = config_of(num_heads=24, num_kv_heads=2, intermediate_size=800)
    shares = [share_model(config, rank=rank, size=8) for rank in range(8)]
    assert [share.kv_heads.start for share in shares] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {len(share.kv_heads) for share in shares} == {share.config.num_kv_heads for share in shares} == {1}
    # Twelve query heads read each KV head: four ranks hold three each.
    assert [share.heads for share in shares[3:5]] == [range(9, 12), range(12, 15)]


def test_runs_of_ids_begin_with_groups_where_every_rank_gets_some() -> None:
    assert GROUP_SIZE == PIECE_SIZE
    for vocab_size, run in ((1000, 256), (769, 256), (768, 192), (257, 65)):
        config = config_of(vocab_size=vocab_size, eos_token_ids=())
        shares = [share_model(config, rank=rank, size=4) for rank in range(4)]
        assert {one.config.vocab_size for one in shares} == {run}
        assert [token for one in shares for token in one.vocabulary] == list(range(vocab_size))


def test_the_vocabulary_is_padded_at_its_end() -> None:
    shares = [share_model(config_of(vocab_size=13, eos_token_ids=()), rank=rank, size=4) for rank in range(4)]
    assert [share.vocabulary for share in shares] == [range(4), range(4, 8), range(8, 12), range(12, 13)]
    assert {share.config.vocab_size for share in shares} == {4}


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        (
            {},
            3,
            "3 ranks cannot share this model: its num_heads, 16, is no multiple of that, "
            "and its num_kv_heads, 8, is neither a multiple nor a divisor of that. "
            "Numbers of ranks that fit it: 1, 2, 4, 8, 16",
        ),
        (
            {"intermediate_size": 3076},
            8,
            "8 ranks cannot share this model: its intermediate_size, 3076, is no multiple of that. "
            "Numbers of ranks that fit it: 1, 2, 4",
        ),
        (
            # SmolLM2-135M's.
            {"num_heads": 9, "num_kv_heads": 3, "intermediate_size": 1536},
            2,
            "2 ranks cannot share this model: its num_heads, 9, is no multiple of that, "
            "and its num_kv_heads, 3, is neither a multiple nor a divisor of that. "
            "Numbers of ranks that fit it: 1, 3",
        ),
        (
            {"num_heads": 12, "num_kv_heads": 4},
            6,
            "6 ranks cannot share this model: its num_kv_heads, 4, is neither a multiple nor a divisor "
            "of that. Numbers of ranks that fit it: 1, 2, 4, 12",
        ),
        (
            {"vocab_size": 5, "eos_token_ids": ()},
            4,
            "4 ranks cannot share this model: its vocab_size, 5, leaves the last rank without a token id. "
            "Numbers of ranks that fit it: 1, 2",
        ),
    ],
)
def test_a_cut_that_does_not_fit_is_refused_with_those_that_do(
    changes: dict[str, Any], size: int, message: str
) -> None:
    with pytest.raises(ShareError) as caught:
        share_model(config_of(**changes), rank=0, size=size)
    assert str(caught.value) == message
