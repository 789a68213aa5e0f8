"""The residual stream of a fused forward pass: projections read it normalized, and add to it.

cuBLAS adds where it projects; up to some hundreds of rows go through kernels that do norm, projection and
gate or sum at once, and so do thousands, but for the sums. Where several ranks share the model, all leave
their bare projections, and who sums those up adds the residual; of messages too long for that the first rank
adds its projection to the residual, and the sum over all ranks is the next residual: no kernel more either
way. Knows nothing about layers or attention.

Shapes: T rows, I inputs, O outputs, E hidden, X = (H + 2K) * D projected, H query heads, K KV heads, D
head dim, F intermediate, G = 2 * F, J sums of squares of a row.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels import large_projection, small_batch, tiled_projection
from kernels.fused_norm import add_rms_norm
from kernels.large_projection_ref import Heads
from kernels.logit_summary import LogitSummary
from kernels.qkv_rows import QkvRows
from kernels.qkv_store import qkv_store
from kernels.row_squares import SQUARES_CHUNK, num_sums, sum_squares
from kernels.silu_mul import silu_mul
from kernels.streamed_projection import streamed_projection
from kernels.tiled_config import ProjectionTile, ProjectionWorkspace, make_projection_workspace
from model.decoder import CausalLM
from model.forward_context import KvCache
from model.projection import Projection, Way
from model.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Memory for one step's activations; its first rows serve a smaller step."""

    residual_TE: torch.Tensor
    normed_TE: torch.Tensor
    qkv_TX: torch.Tensor
    q_THD: torch.Tensor
    attended_THD: torch.Tensor
    gate_up_TG: torch.Tensor
    gated_TF: torch.Tensor
    squares_TJ: torch.Tensor
    """float32: the residual's sums of squares."""
    splits: ProjectionWorkspace

    def first(self, num_tokens: int) -> "Workspace":
        """Return views of the first rows."""
        rows: dict[str, Any] = {
            name: value[:num_tokens]
            for name in self.__dataclass_fields__
            if isinstance(value := getattr(self, name), torch.Tensor)
        }
        return replace(self, **rows)


def make_workspace(model: CausalLM, num_tokens: int) -> Workspace:
    """Allocate for this many tokens, on the model's device."""
    config, like = model.config, model.embedding.weight
    num_heads, num_kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim

    def rows(*shape: int) -> torch.Tensor:
        # Rows that a padded step leaves out are computed with the others: they begin as numbers.
        return like.new_zeros((num_tokens, *shape))

    return Workspace(
        residual_TE=rows(config.hidden_size),
        normed_TE=rows(config.hidden_size),
        qkv_TX=rows((num_heads + 2 * num_kv_heads) * head_dim),
        q_THD=rows(num_heads, head_dim),
        attended_THD=rows(num_heads, head_dim),
        gate_up_TG=rows(2 * config.intermediate_size),
        gated_TF=rows(config.intermediate_size),
        squares_TJ=rows(num_sums(config.hidden_size)).float(),
        splits=make_projection_workspace(device=like.device),
    )


def chosen_memory(memory: Workspace) -> Workspace:
    """Return the same memory for chosen rows of what its residual holds: they go where no residual lies."""
    return replace(memory, residual_TE=memory.normed_TE, normed_TE=memory.residual_TE)


class ResidualStream:
    """The residual of one step. Kernels are queued in the order of the calls."""

    def __init__(self, work: Workspace, *, ranks: Ranks, eps: float) -> None:
        """Take memory whose residual is to be filled before the first call, by a kernel like embed_rows."""
        self.work = work
        self._ranks = ranks
        self._eps = eps
        self.is_after_kernel = True
        """Whether the next kernel may start early: behind a communication, where that says so."""
        self._has_squares = False
        """Whether the sums of squares are the residual's."""

    def take_squares(self) -> torch.Tensor:
        """Return squares_TJ for who writes the residual with its sums of squares."""
        self._has_squares = True
        return self.work.squares_TJ

    def normed(self, norm_E: torch.Tensor) -> torch.Tensor:
        """Return the normalized residual."""
        work, is_dependent = self.work, self._take_dependence()
        return add_rms_norm(
            work.residual_TE, None, norm_E, self._eps, out=work.normed_TE, is_dependent=is_dependent
        )

    def project(
        self,
        norm_E: torch.Tensor,
        projection: Projection,
        *,
        out_TO: torch.Tensor,
        way: Way,
        summary: LogitSummary | None = None,
    ) -> None:
        """Write the projection of the normalized residual, and if it is streamed the summary."""
        if way is Way.CUBLAS:
            projection(self.normed(norm_E), out_TO)
            return
        if way is Way.STREAMED:
            streamed_projection(
                self.normed(norm_E), projection.weight_OI, out_TO, summary=summary, is_dependent=True
            )
            return
        kernels = small_batch if way is Way.FEW_ROWS else tiled_projection
        norm = self._norm(norm_E, projection, way)
        if way is Way.TILED:
            norm["workspace"] = self.work.splits
        kernels.norm_linear(
            self.work.residual_TE,
            weight_OI=projection.weight_OI,
            eps=self._eps,
            out=out_TO,
            bias_O=projection.bias_O,
            is_dependent=self._take_dependence(),
            **norm,
        )

    def project_raw(self, projection: Projection, *, out_TO: torch.Tensor) -> None:
        """Write the projection of the residual by cuBLAS; the norm is left to who reads it."""
        projection(self.work.residual_TE, out_TO)
        self.is_after_kernel = True

    def store_heads(
        self, projection: Projection, rows: QkvRows, *, cache: KvCache, tile: ProjectionTile
    ) -> None:
        """Write the heads of the normalized residual, ready for attention, to their room and to the cache."""
        assert projection.has_norm, "the norm in front is in the weight"
        squares_RJ = self._squares()
        qkv_store(
            self.work.residual_TE,
            projection.weight_OI,
            self._eps,
            rows,
            *cache,
            squares_RJ=squares_RJ,
            tile=tile,
            bias_O=projection.bias_O,
            is_dependent=self._take_dependence(),
        )

    def project_gated(self, norm_E: torch.Tensor, gate_up: Projection, *, way: Way) -> None:
        """Write silu(gate) * up of the normalized residual to the workspace."""
        work = self.work
        if way is Way.CUBLAS and gate_up.can_scale_after:
            self.project_raw(gate_up, out_TO=work.gate_up_TG)
            scaling: dict[str, Any] = {"residual_TE": work.residual_TE, "eps": self._eps}
            silu_mul(work.gate_up_TG, work.gated_TF, **scaling, is_dependent=True)
            return
        if way is Way.CUBLAS:
            gate_up(self.normed(norm_E), work.gate_up_TG)
            silu_mul(work.gate_up_TG, work.gated_TF, is_dependent=True)
            return
        if way is Way.LARGE:
            rows, is_dependent = (work.residual_TE, gate_up.weight_OI), self._take_dependence()
            large_projection.norm_gate_up_silu(*rows, self._eps, work.gated_TF, is_dependent=is_dependent)
            return
        kernels = small_batch if way is Way.FEW_ROWS else tiled_projection
        norm = self._norm(norm_E, gate_up, way)
        kernels.norm_gate_up_silu(
            work.residual_TE,
            weight_XI=gate_up.weight_OI,
            eps=self._eps,
            out=work.gated_TF,
            is_dependent=self._take_dependence(),
            **norm,
        )

    def project_heads(
        self,
        qkv: Projection,
        rows: QkvRows,
        *,
        cache: tuple[torch.Tensor, torch.Tensor],
        has_queries: bool = True,
    ) -> None:
        """Write the heads of the normalized residual, ready for attention: to the rows and to the cache.

        Without queries, keys and values are written to the cache only.
        """
        num_queries = 0 if has_queries else rows.q_THD[0].numel()
        heads = Heads(
            positions_R=rows.positions_T,
            cos_sin_PD=rows.cos_sin_PD,
            q_weight_D=rows.q_norm_D,
            k_weight_D=rows.k_norm_D,
            eps=rows.eps,
            key_cache_NSKD=cache[0],
            value_cache_NSKD=cache[1],
            slot_mapping_R=rows.slot_mapping_T,
            out_q_RHD=rows.q_THD if has_queries else rows.q_THD[:, :0],
            out_RX=rows.qkv_TX[:, num_queries:],
            is_in_place=has_queries,
        )
        large_projection.norm_qkv_rotate(
            self.work.residual_TE,
            qkv.weight_OI[num_queries:],
            self._eps,
            heads,
            is_dependent=self._take_dependence(),
        )

    def add(self, projection: Projection, x_TI: torch.Tensor, *, way: Way) -> None:
        """Add the projection of x, of all ranks' x, to the residual."""
        ranks, residual_TE, bare_TE = self._ranks, self.work.residual_TE, self.work.normed_TE
        if ranks.size == 1:
            self._add(projection, x_TI, way=way)
            return
        is_squared = way is Way.TILED and residual_TE.shape[1] % SQUARES_CHUNK == 0
        squares_TJ = self.work.squares_TJ if is_squared else None
        if ranks.is_short(residual_TE):
            self._leave(projection, x_TI, bare_TE, way=way)
            self.is_after_kernel = ranks.add_sum(bare_TE, residual_TE, squares=squares_TJ)
        else:
            if ranks.rank == 0:
                self._add(projection, x_TI, way=way)
            else:
                self._leave(projection, x_TI, residual_TE, way=way)
            self.is_after_kernel = ranks.all_reduce(residual_TE, squares_TJ)
        self._has_squares = is_squared and self.is_after_kernel

    def _leave(self, projection: Projection, x_TI: torch.Tensor, out_TE: torch.Tensor, *, way: Way) -> None:
        """Write the bare projection of x."""
        weight_OI, bias_O = projection.weight_OI, projection.bias_O
        if way is Way.CUBLAS:
            projection(x_TI, out_TE)
            return
        options: dict[str, Any] = {"bias_O": bias_O, "is_normed": False, "is_dependent": True}
        if way is Way.FEW_ROWS:
            small_batch.norm_linear(x_TI, None, weight_OI, self._eps, out_TE, **options)
        else:
            options["workspace"] = self.work.splits
            tiled_projection.norm_linear(x_TI, None, weight_OI, self._eps, out_TE, **options)

    def _add(self, projection: Projection, x_TI: torch.Tensor, *, way: Way) -> None:
        """Add the projection of x to the residual."""
        residual_TE, weight_OI, bias_O = self.work.residual_TE, projection.weight_OI, projection.bias_O
        self._has_squares = way is Way.TILED
        if way is Way.FEW_ROWS:
            small_batch.linear_add(x_TI, weight_OI, residual_TE, bias_O=bias_O, is_dependent=True)
        elif way is Way.TILED:
            tiled_projection.linear_add(
                x_TI,
                weight_OI,
                residual_TE,
                bias_O=bias_O,
                squares_RJ=self.work.squares_TJ,
                workspace=self.work.splits,
                is_dependent=True,
            )
        else:
            if bias_O is not None:
                residual_TE.add_(bias_O)
            torch.addmm(residual_TE, x_TI, projection.weight_IO, out=residual_TE)

    def _take_dependence(self) -> bool:
        """Tell whether the kernel launched now may start early; one behind it may."""
        is_after_kernel, self.is_after_kernel = self.is_after_kernel, True
        return is_after_kernel

    def _norm(self, norm_E: torch.Tensor, projection: Projection, way: Way) -> dict[str, Any]:
        """Return how a kernel is to apply the norm."""
        squares: dict[str, Any] = {}
        if way is Way.TILED:
            squares["squares_RJ"] = self._squares()
        return {"norm_weight_I": None if projection.has_norm else norm_E, "is_normed": True, **squares}

    def _squares(self) -> torch.Tensor:
        """Return the residual's sums of squares."""
        if not self._has_squares:
            is_dependent = self._take_dependence()
            sum_squares(self.work.residual_TE, out=self.work.squares_TJ, is_dependent=is_dependent)
        self._has_squares = True
        return self.work.squares_TJ
