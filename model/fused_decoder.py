"""The decoder's forward pass out of fused kernels, over the weights of a loaded CausalLM.

The same mathematics as model/decoder.py, which stays its reference: norms take the residual along,
q/k norm, RoPE and the KV store are one kernel, and nothing is allocated. Attention is the caller's.
Knows nothing about requests or graphs.

Shapes: T packed tokens, R rows, E hidden, X = (H + 2K) * D projected, H query heads, K KV heads, D head
dim, F intermediate, P positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.fused_norm import add_rms_norm
from kernels.qk_norm_rope import qk_norm_rope_store
from kernels.silu_mul import silu_mul
from model.attention import Attention
from model.decoder import CausalLM, DecoderLayer
from model.forward_context import KvCache
from model.linear import Linear


class Attend(Protocol):
    """Attention of one step over a layer's cache, which holds the step's own K and V already."""

    def __call__(self, q_THD: torch.Tensor, cache: KvCache, out_THD: torch.Tensor) -> None:
        """Write each token's causal attention over its row's context, scaled by D**-0.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedStep:
    """What all layers need of one step."""

    input_ids_T: torch.Tensor
    """int32."""
    positions_T: torch.Tensor
    """int32: each token's absolute index in its request."""
    slot_mapping_T: torch.Tensor
    """int64: each token's cell in the KV cache; a negative slot is skipped."""
    attend: Attend


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """x @ weight.T + bias, into memory that is given."""

    weight_IO: torch.Tensor
    """Transposed: a view, as the weight lies (O, I)."""
    bias_O: torch.Tensor | None

    def __call__(self, x_TI: torch.Tensor, out_TO: torch.Tensor) -> None:
        """Compute it."""
        if self.bias_O is None:
            torch.mm(x_TI, self.weight_IO, out=out_TO)
        else:
            torch.addmm(self.bias_O, x_TI, self.weight_IO, out=out_TO)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """One layer's weights."""

    qkv: Projection
    output: Projection
    gate_up: Projection
    down: Projection
    attention_norm_E: torch.Tensor
    mlp_norm_E: torch.Tensor
    q_norm_D: torch.Tensor | None
    k_norm_D: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Memory for one step's activations; its first rows serve a smaller step."""

    residual_TE: torch.Tensor
    normed_TE: torch.Tensor
    projected_TE: torch.Tensor
    qkv_TX: torch.Tensor
    q_THD: torch.Tensor
    attended_THD: torch.Tensor
    gate_up_TX: torch.Tensor
    gated_TF: torch.Tensor

    def first(self, num_tokens: int) -> "Workspace":
        """Return views of the first rows."""
        return Workspace(**{name: getattr(self, name)[:num_tokens] for name in self.__dataclass_fields__})


class FusedDecoder:
    """Runs a loaded model. Steps in stream order share its memory."""

    def __init__(self, model: CausalLM, *, max_num_tokens: int, max_position: int) -> None:
        """Take the weights as they lie.

        Args:
            model: loaded, on its device, in bfloat16, float16 or float32.
            max_num_tokens: most tokens of one step.
            max_position: most positions of one request.
        """
        self.config = model.config
        self.embedding_VE = model.embedding.weight
        self._layers = tuple(_fused_layer(layer) for layer in model.layers)  # type: ignore[arg-type]
        self._norm_E = model.norm.weight
        self._head = _projection(model.head)
        self._cos_sin_PD = _cos_sin(model.inv_freq_F, max_position)
        self._workspace = _make_workspace(model, max_num_tokens)

    def forward(self, step: FusedStep, kv_caches: tuple[KvCache, ...]) -> torch.Tensor:
        """Run all layers over a step's packed tokens and write their K and V into the caches.

        Returns:
            hidden_TE after the final norm: valid until the next call.
        """
        work = self._workspace.first(len(step.input_ids_T))
        eps = self.config.rms_norm_eps
        torch.index_select(self.embedding_VE, 0, step.input_ids_T, out=work.residual_TE)
        first_norm_E = self._layers[0].attention_norm_E
        add_rms_norm(work.residual_TE, None, first_norm_E, eps, out=work.normed_TE, is_dependent=True)
        next_norms = (*(layer.attention_norm_E for layer in self._layers[1:]), self._norm_E)
        for layer, cache, next_norm_E in zip(self._layers, kv_caches, next_norms, strict=True):
            self._attention(layer, step, cache=cache, work=work)
            add_rms_norm(
                work.projected_TE,
                work.residual_TE,
                layer.mlp_norm_E,
                eps,
                out=work.normed_TE,
                is_dependent=True,
            )
            layer.gate_up(work.normed_TE, work.gate_up_TX)
            silu_mul(work.gate_up_TX, out=work.gated_TF, is_dependent=True)
            layer.down(work.gated_TF, work.projected_TE)
            add_rms_norm(
                work.projected_TE, work.residual_TE, next_norm_E, eps, out=work.normed_TE, is_dependent=True
            )
        return work.normed_TE

    def compute_logits(self, hidden_RE: torch.Tensor, out_RV: torch.Tensor) -> None:
        """Write the logits of these rows, in the model's dtype."""
        self._head(hidden_RE, out_RV)

    def _attention(self, layer: FusedLayer, step: FusedStep, *, cache: KvCache, work: Workspace) -> None:
        """Write the attention's output to the workspace."""
        config = self.config
        layer.qkv(work.normed_TE, work.qkv_TX)
        qk_norm_rope_store(
            work.qkv_TX,
            step.positions_T,
            self._cos_sin_PD,
            layer.q_norm_D,
            layer.k_norm_D,
            config.rms_norm_eps,
            *cache,
            step.slot_mapping_T,
            config.num_heads,
            config.num_kv_heads,
            work.q_THD,
            is_dependent=True,
        )
        step.attend(work.q_THD, cache, work.attended_THD)
        layer.output(work.attended_THD.flatten(1), work.projected_TE)


def _fused_layer(layer: DecoderLayer) -> FusedLayer:
    attention: Attention = layer.attention
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    q_norm_D, k_norm_D = (None if norm is None else norm.weight for norm in norms)
    return FusedLayer(
        qkv=_projection(attention.qkv_proj),
        output=_projection(attention.o_proj),
        gate_up=_projection(layer.mlp.gate_up_proj),
        down=_projection(layer.mlp.down_proj),
        attention_norm_E=layer.attention_norm.weight,
        mlp_norm_E=layer.mlp_norm.weight,
        q_norm_D=q_norm_D,
        k_norm_D=k_norm_D,
    )


def _projection(module: Linear) -> Projection:
    assert module.weight is not None, "a packed weight is for CPUs"
    return Projection(weight_IO=module.weight.t(), bias_O=module.bias)


def _cos_sin(inv_freq_F: torch.Tensor, max_position: int) -> torch.Tensor:
    """Return each position's cosines, then its sines, in float32."""
    positions_P = torch.arange(max_position, dtype=torch.float32, device=inv_freq_F.device)
    angles_PF = positions_P[:, None] * inv_freq_F
    return torch.cat((angles_PF.cos(), angles_PF.sin()), -1)


def _make_workspace(model: CausalLM, num_tokens: int) -> Workspace:
    config, like = model.config, model.embedding.weight
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim

    def rows(*shape: int) -> torch.Tensor:
        return like.new_empty((num_tokens, *shape))

    return Workspace(
        residual_TE=rows(config.hidden_size),
        normed_TE=rows(config.hidden_size),
        projected_TE=rows(config.hidden_size),
        qkv_TX=rows((num_heads + 2 * num_kv_heads) * head_dim),
        q_THD=rows(num_heads, head_dim),
        attended_THD=rows(num_heads, head_dim),
        gate_up_TX=rows(2 * config.intermediate_size),
        gated_TF=rows(config.intermediate_size),
    )
