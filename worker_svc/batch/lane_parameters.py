"""Sampling parameters of every lane, as a structure of arrays.

Stores what admissions say. Knows nothing about steps, lengths or how tokens are sampled.
"""

from enum import IntEnum

import numpy as np

from worker_svc.batch.step import Float32Array, Int32Array, Int64Array, LaneSampling


class SamplingFlavour(IntEnum):
    """How much it takes to sample a lane; a batch takes as much as its most demanding row."""

    GREEDY = 0
    """The argmax of the raw logits."""
    DRAWN = 1
    """Temperature."""
    SAMPLED = 2
    """Also top_k, top_p, min_p."""
    FULL = 3
    """Also edited logits, or log-probabilities to tell."""


class LaneParameters:
    """One array a parameter, indexed by lane; ragged ones (bias, stop ids) as lists of arrays."""

    def __init__(self, max_num_seqs: int) -> None:
        self.temperature = np.zeros(max_num_seqs, np.float32)
        self.top_k = np.zeros(max_num_seqs, np.int32)
        self.top_p = np.ones(max_num_seqs, np.float32)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.seed = np.zeros(max_num_seqs, np.uint64)
        self.presence_penalty = np.zeros(max_num_seqs, np.float32)
        self.frequency_penalty = np.zeros(max_num_seqs, np.float32)
        self.repetition_penalty = np.ones(max_num_seqs, np.float32)
        self.min_tokens = np.zeros(max_num_seqs, np.int64)
        self.num_logprobs_plus_one = np.zeros(max_num_seqs, np.int32)
        self.has_penalties = np.zeros(max_num_seqs, np.bool_)
        self.has_bias = np.zeros(max_num_seqs, np.bool_)
        self.has_masks = np.zeros(max_num_seqs, np.bool_)
        self._flavour = np.zeros(max_num_seqs, np.int8)
        self._mask_end = np.zeros(max_num_seqs, np.int64)
        """Tokens known from which on a lane's stop ids may be sampled; 0 where they always may."""
        self.bias_token_ids: list[Int32Array] = [np.empty(0, np.int32)] * max_num_seqs
        self.bias_values: list[Float32Array] = [np.empty(0, np.float32)] * max_num_seqs
        self.stop_token_ids: list[Int32Array] = [np.empty(0, np.int32)] * max_num_seqs

    def flavour_of(self, lanes: Int64Array, *, num_known: Int64Array) -> SamplingFlavour:
        """Tell what it takes to sample these lanes, each with so many tokens known."""
        flavour = self.flavour_without_masks(lanes)
        if flavour < SamplingFlavour.FULL and (num_known < self._mask_end[lanes]).any():
            return SamplingFlavour.FULL
        return flavour

    def flavour_without_masks(self, lanes: Int64Array) -> SamplingFlavour:
        """Tell what it takes once all stop ids may be sampled."""
        return SamplingFlavour(int(self._flavour[lanes].max(initial=0)))

    def set(self, lane: int, sampling: LaneSampling, *, num_prompt: int) -> None:
        """Store the parameters of a newly admitted lane over those of the lane before it."""
        self.temperature[lane] = sampling.temperature
        self.top_k[lane] = sampling.top_k
        self.top_p[lane] = sampling.top_p
        self.min_p[lane] = sampling.min_p
        self.seed[lane] = sampling.seed
        self.presence_penalty[lane] = sampling.presence_penalty
        self.frequency_penalty[lane] = sampling.frequency_penalty
        self.repetition_penalty[lane] = sampling.repetition_penalty
        self.min_tokens[lane] = sampling.min_tokens
        self.num_logprobs_plus_one[lane] = sampling.num_logprobs_plus_one
        has_bias, has_stop_ids = len(sampling.bias_token_ids) > 0, len(sampling.stop_token_ids) > 0
        has_penalties = _has_penalty(sampling)
        has_masks = sampling.min_tokens > 0 and has_stop_ids
        self.has_penalties[lane] = has_penalties
        self.has_bias[lane] = has_bias
        self.has_masks[lane] = has_masks
        self._mask_end[lane] = num_prompt + sampling.min_tokens if has_masks else 0
        is_edited = has_penalties or has_bias
        self._flavour[lane] = SamplingFlavour.FULL if is_edited else _flavour_without_edits(sampling)
        self.bias_token_ids[lane] = sampling.bias_token_ids
        self.bias_values[lane] = sampling.bias_values
        self.stop_token_ids[lane] = sampling.stop_token_ids


def _has_penalty(sampling: LaneSampling) -> bool:
    """Tell whether tokens that were there change logits."""
    return (
        sampling.presence_penalty != 0 or sampling.frequency_penalty != 0 or sampling.repetition_penalty != 1
    )


def _flavour_without_edits(sampling: LaneSampling) -> SamplingFlavour:
    """Tell what it takes where no logit is edited."""
    if sampling.num_logprobs_plus_one:
        return SamplingFlavour.FULL
    if not sampling.temperature:
        return SamplingFlavour.GREEDY
    has_limit = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
    return SamplingFlavour.SAMPLED if has_limit else SamplingFlavour.DRAWN
