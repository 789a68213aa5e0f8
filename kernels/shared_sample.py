"""Draws one token a row from logits that lie on several ranks: what kernels.sample draws from all of them.

Each rank has the logits of a run of token ids, all runs equally long, the last one padded with -inf. Ranks
exchange some numbers a row: maxima, what is likeliest, sums. Only edits of logits need all of them: callers
gather first where a row has any, as for log-probabilities. So does a row whose top_k or top_p keeps more
than NUM_LIKELIEST tokens. What differs from one rank is the rounding of sums for top_p.

Every rank computes the same token from the same exchanged numbers. Knows nothing about how ranks reach each
other.

Shapes: R rows, V token ids of a rank, G ranks, U rows that are filtered, C the likeliest tokens of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kernels.counter_random import gumbel_noise_ref
from kernels.id_groups import GROUP_SIZE
from kernels.sample import (
    SampleInputs,
    draw_grouped_ref,
    is_limited,
    lowest_kept_ref,
    lowest_of_likeliest_ref,
    rows_of,
    sample_ref,
)

NUM_LIKELIEST = 256
"""Tokens of each rank that are exchanged for top_k and top_p: all that the likeliest of all ranks can be."""
MAX_TOKEN_IDS = 1 << 24
"""float32 holds a token id exactly below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedVocabulary:
    """Whose logits this rank has, and how to get the others'."""

    first_id: int
    num_ids: int
    """Of all ranks, without padding."""
    all_gather: Callable[[torch.Tensor], torch.Tensor]
    """Returns a contiguous tensor of every rank, in a new first dimension."""

    def __post_init__(self) -> None:
        """Refuse what an exchange would round."""
        assert self.num_ids <= MAX_TOKEN_IDS

    def num_own_ids(self, logits_RV: torch.Tensor) -> int:
        """Tell how many columns of this rank's logits are no padding."""
        return min(logits_RV.shape[1], self.num_ids - self.first_id)

    def gather(self, logits_RV: torch.Tensor) -> torch.Tensor:
        """Return the logits of all token ids, without padding."""
        gathered_GRV = self.all_gather(logits_RV.contiguous())
        return gathered_GRV.transpose(0, 1).flatten(1)[:, : self.num_ids]


def sample_shared(
    logits_RV: torch.Tensor, inputs: SampleInputs, vocabulary: SharedVocabulary
) -> torch.Tensor:
    """Return token_ids_R (int64), the same on every rank.

    Args:
        logits_RV: float32, of this rank's token ids; left as they are.
        inputs: the same on every rank, without edits of logits.
        vocabulary: of logits_RV.
    """
    assert inputs.biases is None
    assert inputs.penalties is None
    assert inputs.masks is None
    if inputs.is_greedy:
        return argmax_shared(logits_RV, vocabulary)
    if logits_RV.shape[1] % GROUP_SIZE:
        # Ranks share groups of ids: only of a small vocabulary, as model.share cuts them.
        return sample_ref(vocabulary.gather(logits_RV), inputs)
    is_greedy_R = inputs.temperature_R == 0
    maximum_R = vocabulary.all_gather(logits_RV.amax(-1)).amax(0)
    scaled_RV = (logits_RV - maximum_R[:, None]).div_(
        inputs.temperature_R.masked_fill(is_greedy_R, 1.0)[:, None]
    )
    value_R, id_R = draw_grouped_ref(scaled_RV, inputs, first_id=vocabulary.first_id)
    value_R[is_greedy_R], column_U = scaled_RV[is_greedy_R].max(-1)
    id_R[is_greedy_R] = column_U + vocabulary.first_id
    if inputs.has_filters:
        # The same rows on every rank.
        rows_U = (is_limited(inputs, vocabulary.num_ids) & ~is_greedy_R).nonzero().squeeze(1)
        if len(rows_U):
            kept_UV = _noisy_kept(scaled_RV[rows_U], rows_of(inputs, rows_U), vocabulary)
            value_R[rows_U], column_U = kept_UV.max(-1)
            id_R[rows_U] = column_U + vocabulary.first_id
    return _largest_of_all(value_R, id_R, vocabulary)


def _noisy_kept(scaled_UV: torch.Tensor, inputs: SampleInputs, vocabulary: SharedVocabulary) -> torch.Tensor:
    """Return the tokens that the limits keep with noise, -inf for others."""
    noise_UV = gumbel_noise_ref(
        inputs.seed_R, inputs.position_R, scaled_UV.shape[1], first_id=vocabulary.first_id
    )
    lowest_U = _lowest_kept(scaled_UV, inputs, vocabulary)
    noise_UV.masked_fill_(scaled_UV < lowest_U[:, None], float("-inf"))
    return noise_UV.add_(scaled_UV)


def argmax_shared(values_RV: torch.Tensor, vocabulary: SharedVocabulary) -> torch.Tensor:
    """Return the token id of each row's largest value (int64), the lowest id where several are."""
    value_R, index_R = values_RV.max(-1)
    return _largest_of_all(value_R, index_R + vocabulary.first_id, vocabulary)


def _largest_of_all(value_R: torch.Tensor, id_R: torch.Tensor, vocabulary: SharedVocabulary) -> torch.Tensor:
    """Return the id of the largest of all ranks' values (int64), the lowest id where several are."""
    # A NaN counts as the largest, as argmax has it, and must equal itself.
    value_R = value_R.nan_to_num(nan=float("inf"), posinf=float("inf"), neginf=float("-inf"))
    best_R2 = torch.stack((value_R, id_R.float()), -1)
    value_GR, id_GR = vocabulary.all_gather(best_R2).unbind(-1)
    return id_GR.masked_fill(value_GR < value_GR.amax(0), MAX_TOKEN_IDS).amin(0).long()


def _lowest_kept(scaled_RV: torch.Tensor, inputs: SampleInputs, vocabulary: SharedVocabulary) -> torch.Tensor:
    """Return what kernels.sample.lowest_kept_ref does."""
    num_ids = vocabulary.num_ids
    top_k_R = inputs.top_k_R.masked_fill(inputs.top_k_R == 0, num_ids).clamp(max=num_ids)
    lowest_R = inputs.min_p_R.log()
    rows_U = ((top_k_R < num_ids) | (inputs.top_p_R < 1)).nonzero().squeeze(1)
    if len(rows_U) == 0:
        return lowest_R
    likeliest_UC, total_U = _gather_likeliest(scaled_RV[rows_U], vocabulary)
    lowest_U, is_settled_U = lowest_of_likeliest_ref(
        likeliest_UC, total_U, top_k_R[rows_U], inputs.top_p_R[rows_U], vocab_size=num_ids
    )
    # The same rows on every rank, which all have the same numbers.
    left = rows_U[~is_settled_U]
    lowest_R[rows_U] = torch.maximum(lowest_R[rows_U], lowest_U)
    if len(left):
        limits = {name: getattr(inputs, name)[left] for name in ("top_k_R", "top_p_R", "min_p_R")}
        lowest_R[left] = lowest_kept_ref(vocabulary.gather(scaled_RV[left]), replace(inputs, **limits))
    return lowest_R


def _gather_likeliest(
    scaled_UV: torch.Tensor, vocabulary: SharedVocabulary
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest logits of all ranks, in order, and the sum of exp over all logits."""
    num_likeliest = min(NUM_LIKELIEST, scaled_UV.shape[1])
    own = (scaled_UV.topk(num_likeliest).values, scaled_UV.exp().sum(-1, keepdim=True))
    gathered_GUX = vocabulary.all_gather(torch.cat(own, -1))
    likeliest_UX = gathered_GUX[..., :-1].transpose(0, 1).flatten(1)
    num_certain = min(NUM_LIKELIEST, vocabulary.num_ids)
    return likeliest_UX.topk(num_certain).values, gathered_GUX[..., -1].sum(0)
