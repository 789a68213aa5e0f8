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

import torch

from kernels.embed_rows import embed_rows
from kernels.large_projection import can_rotate
from kernels.logit_summary import LogitSummary
from kernels.qkv_rows import QkvRows, rotate_and_store
from kernels.qkv_store import choose_qkv_tile
from kernels.tiled_config import ProjectionTile
from model.attention import Attention
from model.decoder import CausalLM, DecoderLayer
from model.forward_context import KvCache
from model.fused_step import ChooseTokens, ChosenTokens, FusedStep
from model.projection import MostRows, Projection, Way, make_projection
from model.residual_stream import ResidualStream
from model.workspace import Workspace, chosen_memory, make_workspace


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
# the head take 77 us at 8 rows, 81 at 32 and 83 at 64, with cuBLAS 84, 88 and 91 (streamed_projection.py);
# with the sampler, which then reads no logits, 100 at 128 rows, 116 at 160 and 155 at 256, with cuBLAS 121,
# 131 and 166 (large_head.py).
# QKV and all that comes before attention took 35 us in two launches at 1,536 rows, 32 with cuBLAS, at 2,048
# 37 and 41, at 16,384 233 and 312; gates and ups 41 and 40, 41 and 53, 292 and 367 (large_projection.py).
# In one launch, as now, large ones take 222 and 280 at 16,384.
# A layer's four with weights that wait in shared memory take 11.5 us at 8 and 16 rows, where few rows' take
# 16.0 and 16.7, and 12.9 at 32; but a step of one row 0.580 ms instead of 0.576.
_ADDED_ROWS = MostRows(few_rows=32, few_rows_beside_held=1, tiled=256)
_NORMED_ROWS = replace(_ADDED_ROWS, cublas=1536)
ROW_LIMITS = RowLimits(
    qkv=_NORMED_ROWS,
    output=_ADDED_ROWS,
    gate_up=replace(_NORMED_ROWS, few_rows_of_large=1),
    down=_ADDED_ROWS,
    head=MostRows(few_rows=2, tiled=0, streamed=256),
)

LEAST_TOKENS, LEAST_TOKENS_A_CHOSEN = 512, 4
"""From how many tokens, and how many for each chosen one, the last layer computes the chosen ones apart."""


def has_few_chosen(num_tokens: int, num_chosen: int) -> bool:
    """Tell whether the last layer over the chosen tokens alone is less than over all, launches included."""
    most = num_tokens // LEAST_TOKENS_A_CHOSEN if num_tokens >= LEAST_TOKENS else 0
    return num_chosen <= most


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
        return self._run_layers(step, kv_caches).normed(self._norm_E)

    def forward_chosen(
        self, step: FusedStep, kv_caches: tuple[KvCache, ...], *, num_chosen: int, choose: ChooseTokens
    ) -> torch.Tensor:
        """Do what forward does, but return the chosen tokens' hidden_RE only, in hidden_memory.

        Where they are few, the last layer only stores the K and V of the others; choose is called behind it.
        """
        if not has_few_chosen(len(step.input_ids_T), num_chosen):
            stream = self._choose(self._run_layers(step, kv_caches), choose())
        else:
            stream = self._begin(step)
            for layer, cache in zip(self._layers[:-1], kv_caches[:-1], strict=True):
                self._layer(layer, step, cache=cache, stream=stream)
            self._store_cells(self._layers[-1], step, cache=kv_caches[-1], stream=stream)
            chosen = choose()
            stream = self._choose(stream, chosen)
            if num_chosen:
                self._layer(self._layers[-1], chosen.step, cache=kv_caches[-1], stream=stream)
        return stream.normed(self._norm_E) if num_chosen else stream.work.normed_TE

    @property
    def hidden_memory(self) -> torch.Tensor:
        """Where forward_chosen leaves hidden_RE, in the first rows: what a captured call gives."""
        return chosen_memory(self._memory).normed_TE

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
            whether the summary of the logits has been written, too: of a row without a limit there may then
            be only those logits that may be drawn.
        """
        stream = self._run_layers(step, kv_caches)
        way = self._head.way(len(out_TV), ROW_LIMITS.head)
        stream.project(self._norm_E, self._head, out_TO=out_TV, way=way, summary=summary)
        return way is Way.STREAMED and summary is not None

    def compute_logits(self, hidden_RE: torch.Tensor, out_RV: torch.Tensor) -> None:
        """Write the logits of these rows, as decode does."""
        self._head(hidden_RE, out_RV)

    def _run_layers(self, step: FusedStep, kv_caches: tuple[KvCache, ...]) -> ResidualStream:
        stream = self._begin(step)
        for layer, cache in zip(self._layers, kv_caches, strict=True):
            self._layer(layer, step, cache=cache, stream=stream)
        return stream

    def _begin(self, step: FusedStep) -> ResidualStream:
        """Return the tokens' embeddings, the first residual."""
        num_tokens, ranks = len(step.input_ids_T), self._ranks
        work = self._memory.first(num_tokens, is_decode=step.is_decode)
        stream = ResidualStream(work, ranks=ranks, eps=self.config.rms_norm_eps)
        is_squared = self._layers[0].qkv.way(num_tokens, ROW_LIMITS.qkv) is Way.TILED and ranks.size == 1
        embed_rows(
            *(step.input_ids_T, self._embedding_VE, stream.work.residual_TE),
            first_id=self._vocabulary.start,
            num_ids=len(self._vocabulary),
            squares_TJ=stream.take_squares() if is_squared else None,
            is_dependent=step.is_decode,
        )
        if ranks.size > 1:
            ranks.all_reduce(stream.work.residual_TE)
            stream.is_after_kernel = False
        return stream

    def _choose(self, stream: ResidualStream, chosen: ChosenTokens) -> ResidualStream:
        """Return the chosen tokens' residual: looked up like embeddings, behind all that is queued."""
        residual_TE, num_chosen = stream.whole(), len(chosen.rows_R)
        work = chosen_memory(self._memory).first(num_chosen)
        stream = ResidualStream(work, ranks=self._ranks, eps=self.config.rms_norm_eps)
        is_squared = self._layers[-1].qkv.way(num_chosen, ROW_LIMITS.qkv) is Way.TILED
        embed_rows(
            chosen.rows_R,
            residual_TE,
            work.residual_TE,
            first_id=0,
            num_ids=len(residual_TE),
            squares_TJ=stream.take_squares() if is_squared else None,
        )
        return stream

    def _layer(self, layer: FusedLayer, step: FusedStep, *, cache: KvCache, stream: ResidualStream) -> None:
        """Add the layer's attention and MLP to the stream."""
        num_tokens = len(step.input_ids_T)
        self._attention(layer, step, cache=cache, stream=stream)
        way = layer.gate_up.way(num_tokens, ROW_LIMITS.gate_up)
        stream.project_gated(layer.mlp_norm_E, layer.gate_up, way=way)
        way = layer.down.way(num_tokens, ROW_LIMITS.down)
        stream.add(layer.down, stream.work.gated_TF, way=way)

    def _attention(
        self, layer: FusedLayer, step: FusedStep, *, cache: KvCache, stream: ResidualStream
    ) -> None:
        """Add the attention's output to the stream."""
        attended_THD = stream.work.attended_THD
        rows = self._project_heads(layer, step, cache=cache, stream=stream)
        step.attention.attend_qkv(rows, *cache, step.attention_plan, out=attended_THD)
        way = layer.output.way(len(attended_THD), ROW_LIMITS.output)
        stream.add(layer.output, attended_THD.flatten(1), way=way)

    def _store_cells(
        self, layer: FusedLayer, step: FusedStep, *, cache: KvCache, stream: ResidualStream
    ) -> None:
        """Write the tokens' K and V into the cache, and leave the residual as it is."""
        if layer.qkv.way(len(step.input_ids_T), ROW_LIMITS.qkv) is Way.LARGE:
            rows = self._qkv_rows(layer, step, work=stream.work)
            stream.project_heads(layer.qkv, rows, cache=cache, has_queries=False)
        else:
            rotate_and_store(self._project_heads(layer, step, cache=cache, stream=stream), *cache)

    def _qkv_rows(self, layer: FusedLayer, step: FusedStep, *, work: Workspace) -> QkvRows:
        return QkvRows(
            qkv_TX=work.qkv_TX,
            positions_T=step.positions_T,
            slot_mapping_T=step.slot_mapping_T,
            cos_sin_PD=self._cos_sin_PD,
            q_norm_D=layer.q_norm_D,
            k_norm_D=layer.k_norm_D,
            eps=self.config.rms_norm_eps,
            q_THD=work.q_THD,
        )

    def _project_heads(
        self, layer: FusedLayer, step: FusedStep, *, cache: KvCache, stream: ResidualStream
    ) -> QkvRows:
        """Project queries, keys and values, and make them ready where that is the better way."""
        work, rows = stream.work, self._qkv_rows(layer, step, work=stream.work)
        way = layer.qkv.way(len(step.input_ids_T), ROW_LIMITS.qkv)
        if way is Way.LARGE:
            stream.project_heads(layer.qkv, rows, cache=cache)
            return replace(rows, is_stored=True)
        tile = self._qkv_tile(work) if step.is_decode and way is Way.TILED else None
        if tile is not None:
            stream.store_heads(layer.qkv, rows, cache=cache, tile=tile)
            return replace(rows, is_stored=True)
        if way is Way.CUBLAS and layer.qkv.can_scale_after:
            stream.project_raw(layer.qkv, out_TO=work.qkv_TX)
            return replace(rows, residual_TE=work.residual_TE)
        stream.project(layer.attention_norm_E, layer.qkv, out_TO=work.qkv_TX, way=way)
        return rows

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
        gate_up=make_projection(layer.mlp.gate_up_proj, norm_I=layer.mlp_norm.weight, is_gated=True),
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
