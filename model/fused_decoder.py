"""The decoder's forward pass out of fused kernels, over the weights of a loaded CausalLM.

The same mathematics as model/decoder.py, which stays its reference: norms take the residual along, and
nothing is allocated. What comes between projected queries, keys and values and the output projection is
a backend's; for some numbers of decode rows the projection makes queries, keys and values ready itself.
Kernels may read rows, positions, slots, lengths and old cells before what is in front of them has ended:
what wrote them must have ended before the first layer, for which the embedding lookup, a launch that
depends on nothing but order, stands between. Knows nothing about requests or graphs.

Shapes: T packed tokens, R rows, E hidden, D head dim, P positions, F frequencies (D / 2),
V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels.attention_backend import LaneAttentionBackend
from kernels.embed_rows import embed_rows
from kernels.large_projection import can_rotate
from kernels.logit_summary import LogitSummary
from kernels.qkv_rows import QkvRows
from kernels.qkv_store import choose_qkv_tile
from kernels.tiled_config import ProjectionTile
from model.attention import Attention
from model.decoder import CausalLM, DecoderLayer
from model.forward_context import KvCache
from model.projection import MostRows, Projection, Way, make_projection
from model.residual_stream import ResidualStream, Workspace, make_workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedStep:
    """What all layers need of one step."""

    input_ids_T: torch.Tensor
    """int32."""
    positions_T: torch.Tensor
    """int32: each token's absolute index in its request."""
    slot_mapping_T: torch.Tensor
    """int64: each token's cell in the KV cache; a negative slot is skipped."""
    attention: LaneAttentionBackend
    attention_plan: Any
    """What the backend made of the step's rows."""
    is_decode: bool = False
    """Whether each token is a row of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Up to how many rows each projection goes which way."""

    qkv: MostRows
    output: MostRows
    gate_up: MostRows
    down: MostRows
    head: MostRows


# Qwen3-0.6B shapes in bf16 on an H200: a layer's four take 20.7 us at 32 rows by the kernels of few rows,
# 21.6 tiled, 30.0 with cuBLAS (benchmarks/kernels/small_batch.py, tiled_projection.py); the norm and
# the head take 77 us at 8 rows, 81 at 32 and 83 at 64, with cuBLAS 84, 88 and 91 (streamed_projection.py).
# QKV and all that comes before attention takes 35 us in two launches at 1,536 rows, 32 with cuBLAS, at 2,048
# 37 and 41, at 16,384 233 and 312; gates and ups 41 and 40, 41 and 53, 292 and 367 (large_projection.py).
_ADDED_ROWS = MostRows(few_rows=32, tiled=256)
_NORMED_ROWS = replace(_ADDED_ROWS, cublas=1536)
ROW_LIMITS = RowLimits(
    qkv=_NORMED_ROWS,
    output=_ADDED_ROWS,
    gate_up=replace(_NORMED_ROWS, few_rows_of_large=1),
    down=_ADDED_ROWS,
    head=MostRows(few_rows=2, tiled=0, streamed=64),
)


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


class FusedDecoder:
    """Runs a loaded model. Steps in stream order share its memory."""

    def __init__(self, model: CausalLM, *, max_num_tokens: int, max_position: int) -> None:
        """Take the weights as they lie, but move the layers' norms into the projections behind them.

        Args:
            model: loaded, on its device, in bfloat16, float16 or float32. It computes what it did before.
            max_num_tokens: most tokens of one step.
            max_position: most positions of one request.
        """
        self.config = model.config
        """Of what this rank holds."""
        self._ranks, self._vocabulary = model.ranks, model.share.vocabulary
        self._embedding_VE = model.embedding.weight
        self._layers = tuple(_fused_layer(layer) for layer in model.layers)  # type: ignore[arg-type]
        self._norm_E = model.norm.weight
        self._head = make_projection(model.head)
        self._cos_sin_PD = _cos_sin(model.inv_freq_F, max_position)
        self._memory = make_workspace(model, max_num_tokens)

    def forward(self, step: FusedStep, kv_caches: tuple[KvCache, ...]) -> torch.Tensor:
        """Run all layers over a step's packed tokens and write their K and V into the caches.

        Returns:
            hidden_TE after the final norm: valid until the next call.
        """
        stream = self._run_layers(step, kv_caches)
        return stream.normed(self._norm_E)

    @property
    def hidden_memory(self) -> torch.Tensor:
        """Where forward leaves hidden_TE, in the first rows: what a captured call gives."""
        return self._memory.normed_TE

    def decode(
        self,
        step: FusedStep,
        kv_caches: tuple[KvCache, ...],
        *,
        out_TV: torch.Tensor,
        summary: LogitSummary | None = None,
    ) -> bool:
        """Run all layers, and write the logits of every token in the model's dtype.

        A rank of a shared model gives those of its token ids; what it gives for padding means nothing.

        Returns:
            whether the summary of the logits has been written, too.
        """
        stream = self._run_layers(step, kv_caches)
        way = self._head.way(len(out_TV), ROW_LIMITS.head)
        stream.project(self._norm_E, self._head, out_TO=out_TV, way=way, summary=summary)
        return way is Way.STREAMED and summary is not None

    def compute_logits(self, hidden_RE: torch.Tensor, out_RV: torch.Tensor) -> None:
        """Write the logits of these rows, as decode does."""
        self._head(hidden_RE, out_RV)

    def _run_layers(self, step: FusedStep, kv_caches: tuple[KvCache, ...]) -> ResidualStream:
        num_tokens = len(step.input_ids_T)
        stream = ResidualStream(
            self._memory.first(num_tokens), ranks=self._ranks, eps=self.config.rms_norm_eps
        )
        self._embed(step.input_ids_T, stream)
        for layer, cache in zip(self._layers, kv_caches, strict=True):
            self._attention(layer, step, cache=cache, stream=stream)
            way = layer.gate_up.way(num_tokens, ROW_LIMITS.gate_up)
            stream.project_gated(layer.mlp_norm_E, layer.gate_up, way=way)
            way = layer.down.way(num_tokens, ROW_LIMITS.down)
            stream.add(layer.down, stream.work.gated_TF, way=way)
        return stream

    def _embed(self, input_ids_T: torch.Tensor, stream: ResidualStream) -> None:
        """Write the tokens' embeddings, the first residual."""
        is_tiled = self._layers[0].qkv.way(len(input_ids_T), ROW_LIMITS.qkv) is Way.TILED
        embed_rows(
            input_ids_T,
            self._embedding_VE,
            stream.work.residual_TE,
            first_id=self._vocabulary.start,
            num_ids=len(self._vocabulary),
            squares_TJ=stream.take_squares() if is_tiled and self._ranks.size == 1 else None,
        )
        if self._ranks.size > 1:
            self._ranks.all_reduce(stream.work.residual_TE)

    def _attention(
        self, layer: FusedLayer, step: FusedStep, *, cache: KvCache, stream: ResidualStream
    ) -> None:
        """Add the attention's output to the stream."""
        work, num_tokens = stream.work, len(step.input_ids_T)
        way = layer.qkv.way(num_tokens, ROW_LIMITS.qkv)
        is_raw = way is Way.CUBLAS and layer.qkv.can_scale_after
        rows = QkvRows(
            qkv_TX=work.qkv_TX,
            positions_T=step.positions_T,
            slot_mapping_T=step.slot_mapping_T,
            cos_sin_PD=self._cos_sin_PD,
            q_norm_D=layer.q_norm_D,
            k_norm_D=layer.k_norm_D,
            eps=self.config.rms_norm_eps,
            q_THD=work.q_THD,
            residual_TE=work.residual_TE if is_raw else None,
        )
        tile = self._qkv_tile(work) if step.is_decode and way is Way.TILED else None
        if way is Way.LARGE:
            stream.project_heads(layer.qkv, rows, cache=cache)
        elif tile is not None:
            stream.store_heads(layer.qkv, rows, cache=cache, tile=tile)
        elif is_raw:
            stream.project_raw(layer.qkv, out_TO=work.qkv_TX)
        else:
            stream.project(layer.attention_norm_E, layer.qkv, out_TO=work.qkv_TX, way=way)
        rows = replace(rows, is_stored=way is Way.LARGE or tile is not None)
        step.attention.attend_qkv(rows, *cache, step.attention_plan, out=work.attended_THD)
        attended_TX = work.attended_THD.flatten(1)
        stream.add(layer.output, attended_TX, way=layer.output.way(num_tokens, ROW_LIMITS.output))

    def _qkv_tile(self, work: Workspace) -> ProjectionTile | None:
        """Return the tile that makes heads ready as it projects them, where that is the better way."""
        num_rows, num_heads, head_dim = work.q_THD.shape
        return choose_qkv_tile(
            num_rows,
            num_all_heads=num_heads + 2 * self.config.num_kv_heads,
            head_dim=head_dim,
            itemsize_bytes=work.q_THD.itemsize,
        )


def _fused_layer(layer: DecoderLayer) -> FusedLayer:
    attention: Attention = layer.attention
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    q_norm_D, k_norm_D = (None if norm is None else norm.weight for norm in norms)
    qkv = make_projection(attention.qkv_proj, norm_I=layer.attention_norm.weight)
    has_pairs = can_rotate(attention.num_heads, attention.num_kv_heads, attention.head_dim)
    return FusedLayer(
        qkv=replace(qkv, fits_large=qkv.fits_large and has_pairs),
        output=make_projection(attention.o_proj),
        gate_up=make_projection(layer.mlp.gate_up_proj, norm_I=layer.mlp_norm.weight),
        down=make_projection(layer.mlp.down_proj),
        attention_norm_E=layer.attention_norm.weight,
        mlp_norm_E=layer.mlp_norm.weight,
        q_norm_D=q_norm_D,
        k_norm_D=k_norm_D,
    )


def _cos_sin(inv_freq_F: torch.Tensor, max_position: int) -> torch.Tensor:
    """Return each position's cosines, then its sines, in float32."""
    positions_P = torch.arange(max_position, dtype=torch.float32, device=inv_freq_F.device)
    angles_PF = positions_P[:, None] * inv_freq_F
    return torch.cat((angles_PF.cos(), angles_PF.sin()), -1)
