"""Hugging Face's tensor names and where each tensor goes: the only place that knows them.

Knows nothing about files, and nothing about the mathematics.
"""

from dataclasses import dataclass

from model.config import ModelConfig

HEAD_NAME = "lm_head.weight"
IGNORED_SUFFIX = "rotary_emb.inv_freq"
"""Old checkpoints carry it; it follows from the config."""

Stack = tuple[tuple[str, tuple[int, ...]], ...]
"""Tensors that lie one below the other in one of our parameters: names and shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTarget:
    """Where a checkpoint's tensor goes: rows of one of our parameters."""

    parameter: str
    shape: tuple[int, ...]
    """That the tensor must have."""
    first_row: int


def weight_targets(config: ModelConfig) -> dict[str, WeightTarget]:
    """Return Hugging Face's name -> our place, for every tensor that the model needs."""
    vocabulary = (config.vocab_size, config.hidden_size)
    stacks: dict[str, Stack] = {
        "embedding.weight": (("model.embed_tokens.weight", vocabulary),),
        "norm.weight": (("model.norm.weight", (config.hidden_size,)),),
    }
    if not config.is_tied:
        stacks["head.weight"] = ((HEAD_NAME, vocabulary),)
    for index in range(config.num_layers):
        for parameter, stack in _layer_stacks(config).items():
            names = tuple((f"model.layers.{index}.{name}", shape) for name, shape in stack)
            stacks[f"layers.{index}.{parameter}"] = names
    return _targets_of(stacks)


def may_be_ignored(name: str, config: ModelConfig) -> bool:
    """Whether a tensor that the model does not need is no sign of a wrong checkpoint."""
    is_tied_head = config.is_tied and name == HEAD_NAME
    return is_tied_head or name.endswith(IGNORED_SUFFIX)


def _targets_of(stacks: dict[str, Stack]) -> dict[str, WeightTarget]:
    targets: dict[str, WeightTarget] = {}
    for parameter, stack in stacks.items():
        first_row = 0
        for name, shape in stack:
            targets[name] = WeightTarget(parameter=parameter, shape=shape, first_row=first_row)
            first_row += shape[0]
    return targets


def _layer_stacks(config: ModelConfig) -> dict[str, Stack]:
    """Return one layer's parameters, and what is stacked in each: names within the layer."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    stacks: dict[str, Stack] = {
        "attention_norm.weight": (("input_layernorm.weight", (hidden,)),),
        "attention.qkv_proj.weight": (
            ("self_attn.q_proj.weight", (query_size, hidden)),
            ("self_attn.k_proj.weight", (kv_size, hidden)),
            ("self_attn.v_proj.weight", (kv_size, hidden)),
        ),
        "attention.o_proj.weight": (("self_attn.o_proj.weight", (hidden, query_size)),),
        "mlp_norm.weight": (("post_attention_layernorm.weight", (hidden,)),),
        "mlp.gate_up_proj.weight": (
            ("mlp.gate_proj.weight", (intermediate, hidden)),
            ("mlp.up_proj.weight", (intermediate, hidden)),
        ),
        "mlp.down_proj.weight": (("mlp.down_proj.weight", (hidden, intermediate)),),
    }
    if config.has_qk_norm:
        stacks["attention.q_norm.weight"] = (("self_attn.q_norm.weight", (config.head_dim,)),)
        stacks["attention.k_norm.weight"] = (("self_attn.k_norm.weight", (config.head_dim,)),)
    if config.has_attention_bias:
        stacks["attention.qkv_proj.bias"] = (
            ("self_attn.q_proj.bias", (query_size,)),
            ("self_attn.k_proj.bias", (kv_size,)),
            ("self_attn.v_proj.bias", (kv_size,)),
        )
        stacks["attention.o_proj.bias"] = (("self_attn.o_proj.bias", (hidden,)),)
    return stacks
