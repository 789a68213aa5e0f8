"""Samples on the device from lane tables, so that a step uploads no parameter.

Writes a lane's parameters when it is admitted. Knows nothing about the model.
Legend: L lanes, R sampling rows, V vocabulary, K log-probabilities of a row, A admissions, P positions,
C parameters of one word.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.device_sampler import sample_decode
from kernels.sampler_tables import (
    MAX_LOGPROBS,
    WORD_DTYPES,
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
from worker_svc.runner.packed_upload import PackedUpload
from worker_svc.runner.row_writer import RowWrite, RowWriter

_SAMPLER_FLAVOURS = {
    SamplingFlavour.GREEDY: SamplerFlavour.GREEDY,
    SamplingFlavour.DRAWN: SamplerFlavour.SAMPLED,
    SamplingFlavour.SAMPLED: SamplerFlavour.SAMPLED,
    SamplingFlavour.FULL: SamplerFlavour.FULL,
}


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
        upload: PackedUpload,
        writer: RowWriter,
        device: torch.device,
    ) -> None:
        self._vocabulary = vocabulary
        drawn = SamplingFlavour.SAMPLED if vocabulary is None else SamplingFlavour.DRAWN
        self.flavours = {flavour: flavour for flavour in SamplingFlavour} | {SamplingFlavour.DRAWN: drawn}
        """What a batch asks for -> the flavour of the step that does it: fewer need to be captured."""
        self._words_CL = allocate_lane_words(limits.max_num_seqs, device)
        self._tables = allocate_lane_sampling(limits.max_num_seqs, device, self._words_CL)
        self._token_pool_LP = token_pool_LP
        self._upload = upload
        self._writer = writer
        self._workspace = allocate_sampler_workspace(
            limits.max_num_seqs, limits.vocab_size, flavour=SamplerFlavour.FULL, device=device
        )
        shape_RK = (limits.max_num_seqs, MAX_LOGPROBS + 1)
        self.logprob_ids_RK = torch.zeros(shape_RK, dtype=torch.int32, device=device)
        """Of the last step of flavour FULL, for rows that asked; others' mean nothing."""
        self.logprobs_RK = torch.zeros(shape_RK, dtype=torch.float32, device=device)

    def admit(self, admissions: tuple[Admission, ...]) -> None:
        """Write the parameters of newly admitted lanes."""
        if not admissions:
            return
        arrays = admitted_parameters(admissions)
        words = np.concatenate([arrays.pop(name).view(np.int32) for name in WORD_DTYPES])
        on_device = self._upload.upload({**arrays, "words": words})
        lanes_A, words_CA = on_device["lanes"], on_device["words"].view(-1, len(admissions))
        self._words_CL.index_copy_(1, lanes_A, words_CA)
        self._tables.seed_L.index_copy_(0, lanes_A, on_device["seed"])
        self._writer.write(write for admission in admissions for write in self._list_writes(admission))

    def sample(
        self,
        logits_RV: torch.Tensor,
        *,
        lanes_R: torch.Tensor,
        positions_R: torch.Tensor,
        flavour: SamplingFlavour,
        out_R: torch.Tensor,
    ) -> None:
        """Queue the drawing of a token a row.

        Args:
            logits_RV: the model's own, or this rank's of them; left as they are.
            lanes_R: int32; a row of a negative lane is padding.
            positions_R: int32: absolute position of the row's last known token.
            flavour: of the most demanding row.
            out_R: int32, written.
        """
        vocabulary = self._vocabulary
        if vocabulary is not None:
            if flavour <= SamplingFlavour.DRAWN:
                sample_decode_shared(
                    logits_RV[:, : vocabulary.num_own_ids(logits_RV)],
                    lanes_R,
                    positions_R,
                    self._tables,
                    self._token_pool_LP,
                    out_R,
                    first_id=vocabulary.first_id,
                    all_gather=vocabulary.all_gather,
                    is_drawn=flavour == SamplingFlavour.DRAWN,
                )
                return
            logits_RV = vocabulary.gather(logits_RV)
        num_rows, is_full = len(logits_RV), flavour == SamplingFlavour.FULL
        sample_decode(
            logits_RV,
            lanes_R,
            positions_R,
            self._tables,
            self._token_pool_LP,
            out_R,
            flavour=_SAMPLER_FLAVOURS[flavour],
            workspace=self._workspace,
            out_logprob_ids_BK=self.logprob_ids_RK[:num_rows] if is_full else None,
            out_logprobs_BK=self.logprobs_RK[:num_rows] if is_full else None,
        )

    def _list_writes(self, admission: Admission) -> Iterator[RowWrite]:
        """Yield what only few lanes have."""
        sampling, tables, lane = admission.sampling, self._tables, admission.lane
        if len(sampling.bias_token_ids):
            yield RowWrite(row=tables.bias_token_ids_LX[lane], values=sampling.bias_token_ids)
            yield RowWrite(row=tables.bias_values_LX[lane], values=sampling.bias_values)
        if sampling.min_tokens:
            yield RowWrite(row=tables.stop_token_ids_LY[lane], values=sampling.stop_token_ids)


def admitted_parameters(admissions: tuple[Admission, ...]) -> dict[str, npt.NDArray[Any]]:
    """Return the lanes (int64) and, by its table's name, each parameter of the admissions."""
    samplings = [admission.sampling for admission in admissions]

    # Stop ids that are never masked stay on the host.
    num_stop_ids = [len(sampling.stop_token_ids) if sampling.min_tokens else 0 for sampling in samplings]

    def column(values: list[Any], dtype: Any) -> npt.NDArray[Any]:
        return np.array(values, dtype)

    return {
        "lanes": column([admission.lane for admission in admissions], np.int64),
        "seed": column([sampling.seed for sampling in samplings], np.uint64).view(np.int64),
        "temperature": column([sampling.temperature for sampling in samplings], np.float32),
        "top_k": column([sampling.top_k for sampling in samplings], np.int32),
        "top_p": column([sampling.top_p for sampling in samplings], np.float32),
        "min_p": column([sampling.min_p for sampling in samplings], np.float32),
        "presence": column([sampling.presence_penalty for sampling in samplings], np.float32),
        "frequency": column([sampling.frequency_penalty for sampling in samplings], np.float32),
        "repetition": column([sampling.repetition_penalty for sampling in samplings], np.float32),
        "num_prompt": column([admission.num_prompt_tokens for admission in admissions], np.int32),
        "min_tokens": column([sampling.min_tokens for sampling in samplings], np.int32),
        "num_logprobs_plus_one": column([sampling.num_logprobs_plus_one for sampling in samplings], np.int32),
        "num_biases": column([len(sampling.bias_token_ids) for sampling in samplings], np.int32),
        "num_stop_ids": column(num_stop_ids, np.int32),
    }
