"""Samples on the device from lane tables, so that a step uploads no parameter.

Knows nothing about the model.
Legend: L lanes, R sampling rows, V vocabulary, K log-probabilities of a row, P positions, C words of a
lane's parameters, W all of them, X biases, Y stop ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from kernels.device_sampler import sample_decode, summary_of
from kernels.id_groups import GROUP_SIZE
from kernels.logit_summary import LogitSummary
from kernels.sampler_tables import (
    MAX_LOGPROBS,
    SamplerFlavour,
    allocate_lane_sampling,
    allocate_lane_words,
    allocate_sampler_workspace,
)
from kernels.shared_draw import sample_decode_shared
from kernels.shared_sample import SharedVocabulary
from worker_svc.batch.checks import TableLimits
from worker_svc.batch.lane_parameters import SamplingFlavour
from worker_svc.batch.step import Admission
from worker_svc.runner.cell_writer import CellWrite, row_write
from worker_svc.runner.parameter_write import parameter_write

_SAMPLER_FLAVOURS = {
    SamplingFlavour.GREEDY: SamplerFlavour.GREEDY,
    SamplingFlavour.DRAWN: SamplerFlavour.SAMPLED,
    SamplingFlavour.SAMPLED: SamplerFlavour.SAMPLED,
    SamplingFlavour.FULL: SamplerFlavour.FULL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """Rows that are sampled. Lanes and positions are written before the model's last kernel begins."""

    lanes_R: torch.Tensor
    """int32; a row of a negative lane is padding."""
    positions_R: torch.Tensor
    """int32: of the row's last known token."""
    out_R: torch.Tensor
    """int32, written: the tokens."""
    told_2: torch.Tensor | None = None
    """int64: where tokens and the step's times are told, as kernels.step_times has it."""


class DeviceSampler:
    """Draws one token a row and writes it to the lane's tokens.

    Where ranks share the model, rows without limits and edits need a candidate of each rank; for others each
    rank gathers all logits, in the model's dtype, and draws by itself: all draw the same from the same.
    """

    def __init__(
        self,
        limits: TableLimits,
        token_pool_LP: torch.Tensor,
        *,
        vocabulary: SharedVocabulary | None = None,
        device: torch.device,
    ) -> None:
        self._vocabulary = vocabulary
        drawn = SamplingFlavour.SAMPLED if vocabulary is None else SamplingFlavour.DRAWN
        self.flavours = {flavour: flavour for flavour in SamplingFlavour} | {SamplingFlavour.DRAWN: drawn}
        """What a batch asks for -> the flavour of the step that does it: fewer need to be captured."""
        words_CL = allocate_lane_words(limits.max_num_seqs, device)
        self.words_W = words_CL.new_zeros(words_CL.numel() + 1)
        """All lanes' parameters and seeds, and a spare word behind them."""
        words_CL = self.words_W[:-1].view_as(words_CL)
        self._tables = allocate_lane_sampling(limits.max_num_seqs, device, words_CL)
        self._token_pool_LP = token_pool_LP
        self._workspace = allocate_sampler_workspace(
            limits.max_num_seqs, limits.vocab_size, flavour=SamplerFlavour.FULL, device=device
        )
        shape_RK = (limits.max_num_seqs, MAX_LOGPROBS + 1)
        self.logprob_ids_RK = torch.zeros(shape_RK, dtype=torch.int32, device=device)
        """Of the last step of flavour FULL, for rows that asked; others' mean nothing."""
        self.logprobs_RK = torch.zeros(shape_RK, dtype=torch.float32, device=device)

    def list_writes(self, admissions: tuple[Admission, ...]) -> Iterator[CellWrite]:
        """Yield what puts the parameters of newly admitted lanes there."""
        yield parameter_write(self.words_W, admissions, num_lanes=len(self._tables.seed_L))
        yield from self.list_rare_writes(admissions)

    def list_rare_writes(self, admissions: tuple[Admission, ...]) -> Iterator[CellWrite]:
        """Yield of it what only few lanes have."""
        for admission in admissions:
            sampling, tables, lane = admission.sampling, self._tables, admission.lane
            if len(sampling.bias_token_ids):
                yield _lane_write(tables.bias_token_ids_LX, lane, values=sampling.bias_token_ids)
                yield _lane_write(tables.bias_values_LX, lane, values=sampling.bias_values)
            if sampling.min_tokens:
                yield _lane_write(tables.stop_token_ids_LY, lane, values=sampling.stop_token_ids)

    def summary(self, rows: SampledRows, flavour: SamplingFlavour) -> LogitSummary | None:
        """Return what the kernel that computes these rows' logits is to write for sample, if it can."""
        if self._vocabulary is not None:
            return None
        return summary_of(
            rows.lanes_R,
            rows.positions_R,
            self._tables,
            flavour=_SAMPLER_FLAVOURS[flavour],
            workspace=self._workspace,
        )

    def sample(
        self,
        logits_RV: torch.Tensor,
        rows: SampledRows,
        *,
        flavour: SamplingFlavour,
        is_summarized: bool = False,
    ) -> None:
        """Queue the drawing of a token a row.

        Args:
            logits_RV: the model's own, or this rank's of them; left as they are.
            rows: theirs.
            flavour: of the most demanding row.
            is_summarized: whether what summary returned for these rows has been written.
        """
        vocabulary = self._vocabulary
        if vocabulary is not None:
            # Of a small vocabulary ranks may share a group of ids.
            if flavour <= SamplingFlavour.DRAWN and logits_RV.shape[1] % GROUP_SIZE == 0:
                logits_RV = logits_RV[:, : vocabulary.num_own_ids(logits_RV)]
                sample_decode_shared(
                    *(logits_RV, rows.lanes_R, rows.positions_R, self._tables, self._token_pool_LP),
                    rows.out_R,
                    told_2=rows.told_2,
                    first_id=vocabulary.first_id,
                    all_gather=vocabulary.all_gather,
                    is_drawn=flavour == SamplingFlavour.DRAWN,
                )
                return
            logits_RV = vocabulary.gather(logits_RV)
        num_rows, is_full = len(logits_RV), flavour == SamplingFlavour.FULL
        sample_decode(
            *(logits_RV, rows.lanes_R, rows.positions_R, self._tables, self._token_pool_LP, rows.out_R),
            flavour=_SAMPLER_FLAVOURS[flavour],
            workspace=self._workspace,
            told_2=rows.told_2,
            is_summarized=is_summarized,
            is_dependent=vocabulary is None,
            out_logprob_ids_BK=self.logprob_ids_RK[:num_rows] if is_full else None,
            out_logprobs_BK=self.logprobs_RK[:num_rows] if is_full else None,
        )


def _lane_write(table_LX: torch.Tensor, lane: int, *, values: npt.NDArray[Any]) -> CellWrite:
    return row_write(table_LX.view(-1).view(torch.int32), values, first=lane * table_LX.shape[1])
