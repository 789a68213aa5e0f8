"""The residual stream of a fused forward pass: projections read it normalized, and add to it.

cuBLAS adds where it projects; up to some hundreds of rows go through kernels that do norm, projection and
gate or sum at once, and so do thousands, but for the sums. Where several ranks share the model, all leave
their bare projections, and who sums those up adds the residual; of messages too long for that the first rank
adds its projection to the residual, and the sum over all ranks is the next residual: no kernel more either
way. Of the largest steps each rank sums up rows of its own (cut_residual.py), and what reads the residual
does so rows by rows, as they come. Knows nothing about layers or attention.

Shapes: T rows, I inputs, O outputs, E hidden, X = (H + 2K) * D projected, H query heads, K KV heads, D
head dim, F intermediate, G = 2 * F, J sums of squares of a row.
"""

from collections.abc import Iterable
from typing import Any

import torch

from kernels import large_projection, small_batch, tiled_projection
from kernels.fused_norm import add_rms_norm
from kernels.large_projection_ref import Heads
from kernels.logit_summary import LogitSummary
from kernels.qkv_rows import QkvRows
from kernels.qkv_store import qkv_store
from kernels.row_squares import SQUARES_CHUNK, sum_squares
from kernels.silu_mul import silu_mul
from kernels.streamed_projection import streamed_projection
from kernels.tiled_config import ProjectionTile
from model.cut_residual import ALL_ROWS, CutResidual
from model.forward_context import KvCache
from model.projection import Projection, Way
from model.ranks import Ranks
from model.workspace import Workspace


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
        self._cut = CutResidual.of(work.shared, len(work.residual_TE), ranks)

    def whole(self) -> torch.Tensor:
        """Return the residual, all rows there for what is queued next."""
        for _ in self._arriving():
            pass
        return self.work.residual_TE

    def _arriving(self) -> Iterable[slice]:
        """Give the residual's rows, as they are there for what is queued next."""
        return (ALL_ROWS,) if self._cut is None else self._cut.arriving()

    def take_squares(self) -> torch.Tensor:
        """Return squares_TJ for who writes the residual with its sums of squares."""
        self._has_squares = True
        return self.work.squares_TJ

    def normed(self, norm_E: torch.Tensor) -> torch.Tensor:
        """Return the normalized residual."""
        residual_TE, out_TE = self.whole(), self.work.normed_TE
        return add_rms_norm(
            residual_TE, None, norm_E, self._eps, out=out_TE, is_dependent=self._take_dependence()
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
            self.whole(),
            weight_OI=projection.weight_OI,
            eps=self._eps,
            out=out_TO,
            bias_O=projection.bias_O,
            is_dependent=self._take_dependence(),
            **norm,
        )

    def project_raw(self, projection: Projection, *, out_TO: torch.Tensor) -> None:
        """Write the projection of the residual by cuBLAS; the norm is left to who reads it."""
        for rows in self._arriving():
            projection(self.work.residual_TE[rows], out_TO[rows])
        self.is_after_kernel = True

    def store_heads(
        self, projection: Projection, rows: QkvRows, *, cache: KvCache, tile: ProjectionTile
    ) -> None:
        """Write the heads of the normalized residual, ready for attention, to their room and to the cache."""
        assert projection.has_norm, "the norm in front is in the weight"
        squares_RJ = self._squares()
        qkv_store(
            self.whole(),
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
        if way is Way.LARGE or (way is Way.CUBLAS and gate_up.can_scale_after):
            for rows in self._arriving():
                self._project_gated_rows(rows, gate_up, way=way)
            return
        if way is Way.CUBLAS:
            gate_up(self.normed(norm_E), work.gate_up_TG)
            silu_mul(work.gate_up_TG, work.gated_TF, is_dependent=True)
            return
        kernels = small_batch if way is Way.FEW_ROWS else tiled_projection
        norm = self._norm(norm_E, gate_up, way)
        kernels.norm_gate_up_silu(
            self.whole(),
            weight_XI=gate_up.weight_OI,
            eps=self._eps,
            out=work.gated_TF,
            is_dependent=self._take_dependence(),
            **norm,
        )

    def _project_gated_rows(self, rows: slice, gate_up: Projection, *, way: Way) -> None:
        """Do project_gated for some rows, whose norm is not applied in front."""
        residual_TE, gated_TF = self.work.residual_TE[rows], self.work.gated_TF[rows]
        if way is Way.LARGE:
            is_dependent = self._take_dependence()
            large_projection.norm_gate_up_silu(
                residual_TE, gate_up.weight_OI, self._eps, gated_TF, is_dependent=is_dependent
            )
            return
        gate_up_TG = self.work.gate_up_TG[rows]
        gate_up(residual_TE, gate_up_TG)
        self.is_after_kernel = True
        silu_mul(gate_up_TG, gated_TF, residual_TE=residual_TE, eps=self._eps, is_dependent=True)

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
        q_THD = rows.q_THD if has_queries else rows.q_THD[:, :0]
        for some in self._arriving():
            heads = Heads(
                positions_R=rows.positions_T[some],
                cos_sin_PD=rows.cos_sin_PD,
                q_weight_D=rows.q_norm_D,
                k_weight_D=rows.k_norm_D,
                eps=rows.eps,
                key_cache_NSKD=cache[0],
                value_cache_NSKD=cache[1],
                slot_mapping_R=rows.slot_mapping_T[some],
                out_q_RHD=q_THD[some],
                out_RX=rows.qkv_TX[some, num_queries:],
                is_in_place=has_queries,
            )
            large_projection.norm_qkv_rotate(
                self.work.residual_TE[some],
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
        if self._cut is not None:

            def leave(rows: slice) -> torch.Tensor:
                self._leave(projection, x_TI[rows], bare_TE[rows], way=way)
                return bare_TE[rows]

            self._cut.add(leave)
            self.is_after_kernel = self._has_squares = False
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
            sum_squares(self.whole(), out=self.work.squares_TJ, is_dependent=is_dependent)
        self._has_squares = True
        return self.work.squares_TJ
