"""Rows for the device sampler with the parameters of their lanes, drawn by the kernels and by the reference.

Lanes are scattered and of another order than rows; the first and the last row are padding.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.device_sampler import sample_decode, summary_of
from kernels.logit_edits import LogitEntries, PenaltyInputs
from kernels.logit_summary import LogitSummary
from kernels.sample import SampleInputs, sample_ref
from kernels.sampler_tables import (
    LaneSampling,
    SamplerFlavour,
    SamplerWorkspace,
    allocate_lane_sampling,
    allocate_sampler_workspace,
)
from kernels.streamed_projection import streamed_projection

UNWRITTEN = -7
MAX_TOKENS = 200
# Small, as the interpreter takes its time: the ways through the kernels are the same.
CHUNK_SIZE = 32
PIECE_SIZE = 16
MAX_CANDIDATES = 64


@dataclass(kw_only=True)
class Row:
    """What a row asks for."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 10
    """Of the last known token."""
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    num_prompt: int = 0
    min_tokens: int = 0
    num_logprobs_plus_one: int = 0
    biases: dict[int, float] = field(default_factory=dict)
    stop_ids: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class Drawn:
    """What a run of the sampler left."""

    token_ids: list[int]
    is_ranked: list[bool]
    """Candidates were gathered, and so few that they were ranked: kernels/filter_threshold.py."""
    workspace: SamplerWorkspace
    logprob_ids_BK: torch.Tensor
    logprobs_BK: torch.Tensor


def draw(
    logits_RV: torch.Tensor,
    rows: list[Row],
    *,
    flavour: SamplerFlavour = SamplerFlavour.SAMPLED,
    histories: torch.Tensor | None = None,
    chunk_size: int = CHUNK_SIZE,
    is_summarized: bool = False,
) -> Drawn:
    """Draw by the kernels, and check that nothing but the rows' own tokens was written.

    is_summarized: the logits come from a kernel that sums them up, too; two bytes each, finite.
    """
    device, num_rows = logits_RV.device, len(rows) + 2
    tables, lanes = _tables(rows, device)
    pool_LP = _pool(rows, lanes, histories).to(device)
    before_LP = pool_LP.clone()
    padded_BV = torch.cat((logits_RV[:1] * float("nan"), logits_RV, logits_RV[:1] * float("nan")))
    lanes_B = torch.tensor([-1, *lanes, -1], dtype=torch.int32, device=device)
    positions_B = torch.tensor([0, *(row.position for row in rows), 0], dtype=torch.int32, device=device)
    out_B = torch.full((num_rows,), UNWRITTEN, dtype=torch.int32, device=device)
    ids_BK = torch.full((num_rows, 21), UNWRITTEN, dtype=torch.int32, device=device)
    logprobs_BK = torch.full((num_rows, 21), float(UNWRITTEN), device=device)
    workspace = _used_workspace(num_rows, logits_RV, flavour=flavour, chunk_size=chunk_size)
    if is_summarized:
        summary = summary_of(lanes_B, positions_B, tables, flavour=flavour, workspace=workspace)
        padded_BV = _summarized(padded_BV, summary)
    sample_decode(
        padded_BV, lanes_B, positions_B, tables, pool_LP, out_B, flavour=flavour, workspace=workspace,
        out_logprob_ids_BK=ids_BK, out_logprobs_BK=logprobs_BK, is_summarized=is_summarized,
    )  # fmt: skip
    assert out_B[0] == out_B[-1] == UNWRITTEN
    assert (ids_BK[[0, -1]] == UNWRITTEN).all()
    tokens = out_B[1:-1].tolist()
    for lane, row, token in zip(lanes, rows, tokens, strict=True):
        before_LP[lane, row.position + 1] = token
    assert torch.equal(pool_LP, before_LP)
    num_candidates_R = (workspace.candidate_ids_RN[1:-1] != UNWRITTEN).sum(1)
    return Drawn(
        token_ids=tokens,
        is_ranked=[0 < count < MAX_CANDIDATES for count in num_candidates_R.tolist()],
        workspace=workspace,
        logprob_ids_BK=ids_BK[1:-1].cpu(),
        logprobs_BK=logprobs_BK[1:-1].cpu(),
    )


def _used_workspace(
    num_rows: int, logits_RV: torch.Tensor, *, flavour: SamplerFlavour, chunk_size: int
) -> SamplerWorkspace:
    """Return memory in which steps before left what nobody may look at."""
    workspace = allocate_sampler_workspace(
        num_rows, logits_RV.shape[1], flavour=flavour, device=logits_RV.device, chunk_size=chunk_size,
        max_candidates=MAX_CANDIDATES, piece_size=min(PIECE_SIZE, chunk_size),
    )  # fmt: skip
    workspace.candidate_ids_RN.fill_(UNWRITTEN)
    for stale in ("chunk_bound_RC", "chunk_sum_RC", "piece_bound_SP", "piece_sum_SP"):
        getattr(workspace, stale).fill_(float("nan"))
    return workspace


def _summarized(logits_BV: torch.Tensor, summary: LogitSummary | None) -> torch.Tensor:
    """Compute the same logits and the summary."""
    assert summary is not None
    eye_VV = torch.eye(logits_BV.shape[1], device=logits_BV.device, dtype=logits_BV.dtype)
    return streamed_projection(logits_BV, eye_VV, summary=summary)


def draw_ref(logits_RV: torch.Tensor, rows: list[Row], *, histories: torch.Tensor | None = None) -> list[int]:
    """Draw by the reference, on the CPU."""
    tables, lanes = _tables(rows, torch.device("cpu"))
    lanes_R = torch.tensor(lanes)
    pool_LP = _pool(rows, lanes, histories)
    num_known_R = torch.tensor([row.position + 1 for row in rows])
    inputs = SampleInputs(
        temperature_R=tables.temperature_L[lanes_R],
        top_k_R=tables.top_k_L[lanes_R],
        top_p_R=tables.top_p_L[lanes_R],
        min_p_R=tables.min_p_L[lanes_R],
        seed_R=tables.seed_L[lanes_R],
        position_R=num_known_R,
        biases=_entries([list(row.biases.items()) for row in rows]),
        masks=_entries(
            [
                [(token, float("-inf")) for token in row.stop_ids]
                if row.position + 1 - row.num_prompt < row.min_tokens
                else []
                for row in rows
            ]
        ),
        penalties=PenaltyInputs(
            rows_Q=torch.arange(len(rows)),
            history_QW=pool_LP[lanes_R].long(),
            num_known_Q=num_known_R,
            num_prompt_Q=tables.num_prompt_L[lanes_R].long(),
            presence_Q=tables.presence_L[lanes_R],
            frequency_Q=tables.frequency_L[lanes_R],
            repetition_Q=tables.repetition_L[lanes_R],
        ),
    )
    return sample_ref(logits_RV.float().cpu(), inputs, group_size=PIECE_SIZE).tolist()


def _tables(rows: list[Row], device: torch.device) -> tuple[LaneSampling, list[int]]:
    num_lanes = 2 * len(rows) + 1
    tables = allocate_lane_sampling(num_lanes, "cpu")
    lanes = [2 * (len(rows) - 1 - row) + 1 for row in range(len(rows))]
    for lane, row in zip(lanes, rows, strict=True):
        for name in (
            *("temperature", "top_k", "top_p", "min_p", "seed", "presence", "frequency", "repetition"),
            *("num_prompt", "min_tokens", "num_logprobs_plus_one"),
        ):
            getattr(tables, f"{name}_L")[lane] = getattr(row, name)
        tables.num_biases_L[lane] = len(row.biases)
        tables.bias_token_ids_LX[lane, : len(row.biases)] = torch.tensor(list(row.biases)).int()
        tables.bias_values_LX[lane, : len(row.biases)] = torch.tensor(list(row.biases.values()))
        tables.num_stop_ids_L[lane] = len(row.stop_ids)
        tables.stop_token_ids_LY[lane, : len(row.stop_ids)] = torch.tensor(row.stop_ids).int()
    on_device: dict[str, Any] = {
        name: getattr(tables, name).to(device) for name in LaneSampling.__dataclass_fields__
    }
    return LaneSampling(**on_device), lanes


def _pool(rows: list[Row], lanes: list[int], histories: torch.Tensor | None) -> torch.Tensor:
    pool_LP = torch.full((2 * len(rows) + 1, MAX_TOKENS + 1), 3, dtype=torch.int32)
    if histories is not None:
        pool_LP[lanes, : histories.shape[1]] = histories.int()
    return pool_LP


def _entries(by_row: list[list[tuple[int, float]]]) -> LogitEntries:
    flat = [(row, token, value) for row, entries in enumerate(by_row) for token, value in entries]
    return LogitEntries(
        rows_X=torch.tensor([row for row, _, _ in flat], dtype=torch.int64),
        token_ids_X=torch.tensor([token for _, token, _ in flat], dtype=torch.int64),
        values_X=torch.tensor([value for _, _, value in flat]),
    )
