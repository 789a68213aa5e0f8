"""Samples the rows of a step: binds their parameters to the sampling kernels.

Only what rows ask for is computed: a batch of greedy rows is one argmax. Knows nothing about the model.
Legend: R sampling rows, V vocabulary, X single logits, Q rows with penalties.
"""

import torch

from kernels.logit_edits import LogitEntries, PenaltyInputs
from kernels.sample import SampleInputs, sample_ref
from kernels.shared_sample import SharedVocabulary, argmax_shared, sample_shared
from worker_svc.batch.sampling_rows import PenaltyRows, SamplingRows, TokenEntries
from worker_svc.runner.token_pool import TokenPool
from worker_svc.runner.upload import upload


class Sampler:
    """Draws one token a row; penalties read the tokens so far from the token pool."""

    def __init__(self, token_pool: TokenPool, device: torch.device) -> None:
        self._token_pool = token_pool
        self._device = device

    def sample(
        self, logits_RV: torch.Tensor, rows: SamplingRows, *, vocabulary: SharedVocabulary | None = None
    ) -> torch.Tensor:
        """Return token_ids_R (int64); the logits stay as they are.

        Args:
            logits_RV: Of all token ids, or of this rank's.
            rows: How to sample them; without edits of logits where these are only this rank's.
            vocabulary: Where the other ranks' logits are.
        """
        if vocabulary is None:
            return logits_RV.argmax(-1) if rows.is_plain_greedy else sample_ref(logits_RV, self._inputs(rows))
        if rows.is_plain_greedy:
            return argmax_shared(logits_RV, vocabulary)
        return sample_shared(logits_RV, self._inputs(rows), vocabulary)

    def _inputs(self, rows: SamplingRows) -> SampleInputs:
        device = self._device
        return SampleInputs(
            temperature_R=upload(rows.temperature, device),
            top_k_R=upload(rows.top_k, device),
            top_p_R=upload(rows.top_p, device),
            min_p_R=upload(rows.min_p, device),
            seed_R=upload(rows.seed, device),
            position_R=upload(rows.positions, device),
            biases=self._entries(rows.biases),
            penalties=self._penalties(rows.penalties),
            masks=self._entries(rows.masks),
            is_greedy=not rows.temperature.any(),
            has_filters=bool(rows.top_k.any() or rows.min_p.any() or (rows.top_p < 1).any()),
        )

    def _entries(self, entries: TokenEntries | None) -> LogitEntries | None:
        if entries is None:
            return None
        return LogitEntries(
            rows_X=upload(entries.rows, self._device),
            token_ids_X=upload(entries.token_ids, self._device),
            values_X=upload(entries.values, self._device),
        )

    def _penalties(self, rows: PenaltyRows | None) -> PenaltyInputs | None:
        if rows is None:
            return None
        device = self._device
        return PenaltyInputs(
            rows_Q=upload(rows.rows, device),
            history_QW=self._token_pool.histories(upload(rows.lanes, device), int(rows.num_known.max())),
            num_known_Q=upload(rows.num_known, device),
            num_prompt_Q=upload(rows.num_prompt, device),
            presence_Q=upload(rows.presence, device),
            frequency_Q=upload(rows.frequency, device),
            repetition_Q=upload(rows.repetition, device),
        )
