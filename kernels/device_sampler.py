"""Draws one token a row on the device: the sampler of captured steps.

A step of one flavour is a fixed sequence of kernels, without a look at the data on the host, and it
draws what kernels.sample.sample_ref draws. Knows nothing about requests or graphs.

Shapes: B rows, V vocabulary, L lanes, P positions, K log-probabilities of a row.
"""

from dataclasses import dataclass

import torch
import triton

from kernels.argmax_sample import draw_kernel, summarize_chunks_kernel
from kernels.dependent_launch import can_depend, launch_options
from kernels.edit_logits import edit_logits
from kernels.logit_summary import LogitSummary
from kernels.sampler_tables import LaneSampling, SamplerFlavour, SamplerWorkspace
from kernels.step_times import mark_end
from kernels.top_logprobs import top_logprobs

NUM_DRAW_WARPS = 8
NUM_GREEDY_WARPS = 4
MAX_REGISTERS = 128
"""A thread's: two rows are drawn on a multiprocessor, 264 at once on an H200."""
CHUNKS_AT_ONCE = 2
"""More, of rows with limits, would not fit in these."""


def sample_decode(
    logits_BV: torch.Tensor,
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    tables: LaneSampling,
    token_pool_LP: torch.Tensor,
    out_token_ids_B: torch.Tensor,
    *,
    flavour: SamplerFlavour,
    workspace: SamplerWorkspace,
    out_logprob_ids_BK: torch.Tensor | None = None,
    out_logprobs_BK: torch.Tensor | None = None,
    told_2: torch.Tensor | None = None,
    is_summarized: bool = False,
    is_dependent: bool = False,
) -> None:
    """Draw a token a row, write it to the row's output and to its lane's tokens.

    Args:
        logits_BV: bfloat16, float16 or float32, the model's own; left as they are.
        lanes_B: int32; a row of a negative lane is padding: nothing of it is written.
        positions_B: int32, of the row's last known token; the token drawn belongs to the next one.
        tables: by lane.
        token_pool_LP: int32, each lane's tokens.
        out_token_ids_B: int32, written.
        flavour: what rows may ask for; what it lacks is ignored.
        workspace: for at least B rows, allocated for this flavour or a higher one.
        out_logprob_ids_BK: int32, K = 21: the drawn token, then as many of the likeliest as the row asks for.
        out_logprobs_BK: float32, their log-probabilities in the model's own distribution.
        told_2: int64: where tokens and the step's times are told, as kernels.step_times has it.
        is_summarized: the kernel that computed the logits has written what summary_of tells it to.
        is_dependent: let kernels start while the one before runs, where the device can. They read lanes,
            positions and tables at once: what wrote those must have ended before it began.

    Raises:
        ValueError: the shapes or dtypes do not fit each other.
    """
    tensors = (logits_BV, lanes_B, positions_B, token_pool_LP, out_token_ids_B)
    _check(*tensors, workspace)
    is_dependent = is_dependent and can_depend(logits_BV.device)
    rows = _Rows(*tensors, told_2, flavour, is_summarized=is_summarized, is_dependent=is_dependent)
    if rows.has_edits:
        edit_logits(logits_BV, lanes_B, positions_B, tables, token_pool_LP, workspace)
    if not is_summarized:
        _summarize(rows, tables, workspace)
    _draw(rows, tables, workspace)
    if rows.has_edits and out_logprob_ids_BK is not None and out_logprobs_BK is not None:
        _tell_logprobs(rows, tables, workspace, (out_logprob_ids_BK, out_logprobs_BK))


def summary_of(
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    tables: LaneSampling,
    *,
    flavour: SamplerFlavour,
    workspace: SamplerWorkspace,
) -> LogitSummary | None:
    """Return what the kernel that computes the logits is to write; None: the logits are read once more."""
    num_rows = len(lanes_B)
    if flavour == SamplerFlavour.FULL or num_rows > len(workspace.piece_max_SP):
        return None
    return LogitSummary(
        lanes_R=lanes_B,
        positions_R=positions_B,
        tables=tables,
        is_sampled=flavour >= SamplerFlavour.SAMPLED,
        num_chunks=workspace.chunk_max_RC.shape[1],
        piece_size=workspace.piece_size,
        maximum_RN=workspace.piece_max_SP,
        bound_RN=workspace.piece_bound_SP,
        sum_RN=workspace.piece_sum_SP,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """A launch's rows, checked."""

    logits_BV: torch.Tensor
    lanes_B: torch.Tensor
    positions_B: torch.Tensor
    token_pool_LP: torch.Tensor
    out_token_ids_B: torch.Tensor
    told_2: torch.Tensor | None
    flavour: SamplerFlavour
    is_summarized: bool
    is_dependent: bool

    @property
    def launch_options(self) -> dict[str, bool]:
        return launch_options(self.is_dependent)

    def summary(self, workspace: SamplerWorkspace) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return maxima, lifts or bounds, and sums."""
        if self.is_summarized:
            return workspace.piece_max_SP, workspace.piece_bound_SP, workspace.piece_sum_SP
        return workspace.chunk_max_RC, workspace.chunk_bound_RC, workspace.chunk_sum_RC

    def num_pieces(self, workspace: SamplerWorkspace) -> int:
        """Return how many of them a chunk has."""
        return workspace.chunk_size // workspace.piece_size if self.is_summarized else 1

    @property
    def has_edits(self) -> bool:
        return self.flavour == SamplerFlavour.FULL

    @property
    def is_sampled(self) -> bool:
        return self.flavour >= SamplerFlavour.SAMPLED


def _edited(rows: _Rows, workspace: SamplerWorkspace) -> torch.Tensor:
    """Return the edited logits; of a flavour without any the others, which are not read as such."""
    return rows.logits_BV if workspace.edited_logits_RV is None else workspace.edited_logits_RV


def _summarize(rows: _Rows, tables: LaneSampling, workspace: SamplerWorkspace) -> None:
    num_rows, vocab_size = rows.logits_BV.shape
    num_chunks = triton.cdiv(vocab_size, workspace.chunk_size)
    chunks_per_program = _chunks_per_program(num_rows)
    summarize_chunks_kernel[(triton.cdiv(num_chunks, chunks_per_program), num_rows)](
        rows.logits_BV,
        _edited(rows, workspace),
        workspace.is_edited_R,
        rows.lanes_B,
        rows.positions_B,
        tables.temperature_L,
        tables.top_k_L,
        tables.top_p_L,
        tables.min_p_L,
        tables.seed_L,
        workspace.chunk_max_RC,
        workspace.chunk_bound_RC,
        workspace.chunk_sum_RC,
        rows.logits_BV.stride(0),
        vocab_size,
        num_chunks,
        CHUNK=workspace.chunk_size,
        GROUP=workspace.piece_size,
        CHUNKS_PER_PROGRAM=chunks_per_program,
        IS_SAMPLED=rows.is_sampled,
        HAS_EDITS=rows.has_edits,
        num_warps=1,
        **rows.launch_options,
    )


def _draw(rows: _Rows, tables: LaneSampling, workspace: SamplerWorkspace) -> None:
    num_rows, vocab_size = rows.logits_BV.shape
    num_chunks = triton.cdiv(vocab_size, workspace.chunk_size)
    draw_kernel[(num_rows,)](
        rows.logits_BV,
        _edited(rows, workspace),
        workspace.is_edited_R,
        rows.lanes_B,
        rows.positions_B,
        tables.temperature_L,
        tables.top_k_L,
        tables.top_p_L,
        tables.min_p_L,
        tables.seed_L,
        *rows.summary(workspace),
        workspace.chunk_list_RC,
        workspace.candidate_logits_RN,
        workspace.candidate_ids_RN,
        rows.token_pool_LP,
        rows.out_token_ids_B,
        rows.told_2,
        rows.logits_BV.stride(0),
        rows.token_pool_LP.stride(0),
        vocab_size,
        num_chunks,
        CHUNK=workspace.chunk_size,
        NUM_CHUNKS_POW2=triton.next_power_of_2(num_chunks),
        CHUNKS_AT_ONCE=CHUNKS_AT_ONCE,
        PIECES=rows.num_pieces(workspace),
        GROUP=workspace.piece_size,
        MAX_CANDIDATES=workspace.candidate_ids_RN.shape[1],
        IS_SAMPLED=rows.is_sampled,
        HAS_EDITS=rows.has_edits,
        num_warps=NUM_DRAW_WARPS if rows.is_sampled else NUM_GREEDY_WARPS,
        maxnreg=MAX_REGISTERS,
        **rows.launch_options,
    )


def _tell_logprobs(
    rows: _Rows, tables: LaneSampling, workspace: SamplerWorkspace, outs: tuple[torch.Tensor, torch.Tensor]
) -> None:
    top_logprobs(rows.logits_BV, rows.lanes_B, rows.out_token_ids_B, tables, workspace, *outs)
    if rows.told_2 is not None:
        mark_end(rows.told_2)


def _chunks_per_program(num_rows: int) -> int:
    """Fill the device first, then save launches: results do not depend on it."""
    return 1 if num_rows <= 32 else 4


def _check(
    logits_BV: torch.Tensor,
    lanes_B: torch.Tensor,
    positions_B: torch.Tensor,
    token_pool_LP: torch.Tensor,
    out_token_ids_B: torch.Tensor,
    workspace: SamplerWorkspace,
) -> None:
    if logits_BV.ndim != 2 or not logits_BV.is_floating_point() or logits_BV.stride(1) != 1:
        raise ValueError(
            f"logits must be floating point rows without gaps, but are {logits_BV.dtype} of "
            f"{tuple(logits_BV.shape)}, strides {logits_BV.stride()}"
        )
    num_rows, vocab_size = logits_BV.shape
    for name, tensor_B in (
        ("lanes", lanes_B),
        ("positions", positions_B),
        ("out_token_ids", out_token_ids_B),
    ):
        if tensor_B.shape != (num_rows,) or tensor_B.dtype != torch.int32 or not tensor_B.is_contiguous():
            raise ValueError(
                f"{name} must be int32 of ({num_rows},), contiguous, "
                f"but is {tensor_B.dtype} of {tuple(tensor_B.shape)}"
            )
    if token_pool_LP.ndim != 2 or token_pool_LP.dtype != torch.int32 or token_pool_LP.stride(1) != 1:
        raise ValueError(
            f"token_pool must be int32 rows without gaps, "
            f"but is {token_pool_LP.dtype} of {tuple(token_pool_LP.shape)}"
        )
    most_rows, num_chunks = workspace.chunk_max_RC.shape
    if num_rows > most_rows or num_chunks != triton.cdiv(vocab_size, workspace.chunk_size):
        raise ValueError(
            f"a workspace of {most_rows} rows of {num_chunks} chunks does not fit "
            f"{num_rows} rows of {vocab_size} logits"
        )
