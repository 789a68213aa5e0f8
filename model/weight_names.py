"""Hugging Face's tensor names and where a rank's piece of each goes: the only place that knows them.

Knows nothing about files, and nothing about the mathematics.
"""

from dataclasses import dataclass

from model.config import ModelConfig
from model.share import ModelShare
from model.weight_pieces import Piece, added_once, columns, rows, token_rows, whole

HEAD_NAME = "lm_head.weight"
IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints carry it; it follows from the config."""

Stack = tuple[Piece, ...]
"""Pieces that lie one below the other in one of our parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTarget:
    """Where a piece of a checkpoint's tensor goes: rows of one of our parameters."""

    parameter: str
    piece: Piece
    first_row: int


def weight_targets(share: ModelShare) -> dict[str, WeightTarget]:
    """Return Hugging Face's name -> our place, for every tensor that the model needs."""
    stacks: dict[str, Stack] = {
        "embedding.weight": (token_rows("model.embed_tokens.weight", share),),
        "norm.weight": (whole("model.norm.weight", share.whole.hidden_size),),
    }
    if not share.whole.is_tied:
        stacks["head.weight"] = (token_rows(HEAD_NAME, share),)
    for index in range(share.whole.num_layers):
        layer = f"model.layers.{index}."
        for parameter, stack in (_attention(share, layer) | _mlp(share, layer)).items():
            stacks[f"layers.{index}.{parameter}"] = stack
    return _targets_of(stacks)


def may_be_ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor that the model does not need is no sign of a wrong checkpoint."""
    is_tied_head = config.is_tied and name == HEAD_NAME
    return is_tied_head or name.endswith(IGNORED_SUFFIX)


def _targets_of(stacks: dict[str, Stack]) -> dict[str, WeightTarget]:
    targets: dict[str, WeightTarget] = {}
    for parameter, stack in stacks.items():
        first_row = 0
        for piece in stack:
            targets[piece.name] = WeightTarget(parameter=parameter, piece=piece, first_row=first_row)
            first_row += piece.num_rows
    return targets


def _attention(share: ModelShare, layer: str) -> dict[str, Stack]:
    """Return the parameters of one layer's attention, and what is stacked in each."""
    config, names = share.whole, f"{layer}self_attn."
    hidden, head_dim = config.hidden_size, config.head_dim
    stacks: dict[str, Stack] = {
        "attention_norm.weight": (whole(f"{layer}input_layernorm.weight", hidden),),
        "attention.qkv_proj.weight": _qkv(share, names, "weight", hidden),
        "attention.o_proj.weight": (
            columns(
                f"{names}o_proj.weight",
                *(hidden, config.num_heads * head_dim),
                taken=_rows_of(share.heads, head_dim),
            ),
        ),
    }
    if config.has_qk_norm:
        stacks["attention.q_norm.weight"] = (whole(f"{names}q_norm.weight", head_dim),)
        stacks["attention.k_norm.weight"] = (whole(f"{names}k_norm.weight", head_dim),)
    if config.has_attention_bias:
        stacks["attention.qkv_proj.bias"] = _qkv(share, names, "bias")
        stacks["attention.o_proj.bias"] = (added_once(f"{names}o_proj.bias", hidden, share=share),)
    return stacks


def _qkv(share: ModelShare, names: str, kind: str, *columns: int) -> Stack:
    """Return the share's heads of queries, keys and values."""
    config, head_dim = share.whole, share.whole.head_dim
    return tuple(
        rows(f"{names}{name}_proj.{kind}", num_heads * head_dim, *columns, taken=_rows_of(heads, head_dim))
        for name, num_heads, heads in (
            ("q", config.num_heads, share.heads),
            ("k", config.num_kv_heads, share.kv_heads),
            ("v", config.num_kv_heads, share.kv_heads),
        )
    )


def _mlp(share: ModelShare, layer: str) -> dict[str, Stack]:
    """Return the parameters of one layer's MLP, and what is stacked in each."""
    hidden, intermediate, taken = share.whole.hidden_size, share.whole.intermediate_size, share.intermediate
    return {
        "mlp_norm.weight": (whole(f"{layer}post_attention_layernorm.weight", hidden),),
        "mlp.gate_up_proj.weight": tuple(
            rows(f"{layer}mlp.{name}_proj.weight", intermediate, hidden, taken=taken)
            for name in ("gate", "up")
        ),
        "mlp.down_proj.weight": (columns(f"{layer}mlp.down_proj.weight", hidden, intermediate, taken=taken),),
    }


def _rows_of(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)
