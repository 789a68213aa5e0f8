"""Draws one token a row from logits, and tells log-probabilities: the reference in plain PyTorch.

Order: bias, penalties, masked ids, temperature, then top_k, top_p and min_p, then the draw. A row's
token depends on its own logits and inputs only. Where no limit drops tokens, one of the groups of
neighbouring ids is drawn by its weight first, and then one of its ids: that takes noise for each group and
for the ids of one, instead of noise for each id. Knows nothing about requests or text.

Shapes: R rows, V vocabulary, C the likeliest tokens of a row, in order, U rows that
are not settled yet, N groups of ids, O ids of a group.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from kernels.counter_random import GROUP_IDS_FROM, gumbel_noise_ref
from kernels.id_groups import GROUP_SIZE
from kernels.logit_edits import (
    LogitEntries,
    PenaltyInputs,
    add_biases_ref,
    apply_penalties_ref,
    mask_ids_ref,
)

NUM_LIKELIEST = (256, 4096)
"""Tokens sorted at first, and where they do not reach top_p; then all. Sorting 49,152 logits costs
4 ms a row on a CPU, against 0.2 ms for the 256 likeliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleInputs:
    """How each row's token is chosen; one entry a row, on the logits' device."""

    temperature_R: torch.Tensor
    """float32, at least 0; 0 takes the likeliest token, the lowest id where several are."""
    top_k_R: torch.Tensor
    """int32; 0 keeps all. Tokens as likely as the k-th are kept too."""
    top_p_R: torch.Tensor
    """float32 in (0, 1]; 1 keeps all."""
    min_p_R: torch.Tensor
    """float32 in [0, 1]; 0 keeps all."""
    seed_R: torch.Tensor
    """int64: the bits of the unsigned seed."""
    position_R: torch.Tensor
    """int64: the absolute position of the token to draw."""
    biases: LogitEntries | None = None
    penalties: PenaltyInputs | None = None
    masks: LogitEntries | None = None
    """Ids that may not be drawn; the values are -inf."""
    is_greedy: bool = False
    """The host knows that every temperature is 0."""
    has_filters: bool = True
    """False: the host knows that no row has a top_k, top_p or min_p that drops tokens."""


def sample_ref(
    logits_RV: torch.Tensor, inputs: SampleInputs, *, group_size: int = GROUP_SIZE
) -> torch.Tensor:
    """Return token_ids_R (int64), drawn from the logits as the inputs say.

    Args:
        logits_RV: float32; left as they are.
        inputs: how each row's token is chosen.
        group_size: GROUP_SIZE, but in tests.
    """
    logits_RV = edit_logits_ref(logits_RV, inputs)
    if inputs.is_greedy:
        return logits_RV.argmax(-1)
    is_greedy_R = inputs.temperature_R == 0
    # From the maximum down, so that no temperature, however small, makes two infinities.
    scaled_RV = (logits_RV - logits_RV.amax(-1, keepdim=True)).div_(
        inputs.temperature_R.masked_fill(is_greedy_R, 1.0)[:, None]
    )
    _, token_R = draw_grouped_ref(scaled_RV, inputs, group_size=group_size)
    if inputs.has_filters:
        rows_U = (is_limited(inputs, logits_RV.shape[1]) & ~is_greedy_R).nonzero().squeeze(1)
        if len(rows_U):
            token_R[rows_U] = _draw_kept_ref(scaled_RV[rows_U], rows_of(inputs, rows_U))
    token_R[is_greedy_R] = logits_RV[is_greedy_R].argmax(-1)
    return token_R


def is_limited(inputs: SampleInputs, vocab_size: int) -> torch.Tensor:
    """Return whether a row's top_k, top_p or min_p may drop tokens, (R,)."""
    has_top_k_R = (inputs.top_k_R > 0) & (inputs.top_k_R < vocab_size)
    return has_top_k_R | (inputs.top_p_R < 1) | (inputs.min_p_R > 0)


def rows_of(inputs: SampleInputs, rows_U: torch.Tensor) -> SampleInputs:
    """Return some rows' inputs, without edits of logits."""
    names = ("temperature_R", "top_k_R", "top_p_R", "min_p_R", "seed_R", "position_R")
    return SampleInputs(**{name: getattr(inputs, name)[rows_U] for name in names})


def draw_grouped_ref(
    scaled_RV: torch.Tensor, inputs: SampleInputs, *, first_id: int = 0, group_size: int = GROUP_SIZE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a group by its ids' weight, then one of its ids.

    Args:
        scaled_RV: logits after temperature, of ids from first_id on, with which a group begins.
        inputs: for seeds and positions.
        first_id: the first column's.
        group_size: GROUP_SIZE, but in tests.

    Returns:
        The group's value, by which it is drawn, and the id (int64), each (R,).
    """
    seeds = (inputs.seed_R, inputs.position_R)
    rest = -scaled_RV.shape[1] % group_size
    groups_RNO = pad(scaled_RV, (0, rest), value=float("-inf")).unflatten(1, (-1, group_size))
    first_group = GROUP_IDS_FROM + first_id // group_size
    value_RN = gumbel_noise_ref(*seeds, groups_RNO.shape[1], first_id=first_group)
    value_R, group_R = value_RN.add_(groups_RNO.logsumexp(-1)).max(-1)
    first_id_R = first_id + group_R * group_size
    value_RO = gumbel_noise_ref(*seeds, group_size, first_id=first_id_R)
    value_RO.add_(groups_RNO[torch.arange(len(group_R)), group_R])
    return value_R, first_id_R + value_RO.argmax(-1)


def _draw_kept_ref(scaled_UV: torch.Tensor, inputs: SampleInputs) -> torch.Tensor:
    """Draw from the tokens that the limits keep."""
    noise_UV = gumbel_noise_ref(inputs.seed_R, inputs.position_R, scaled_UV.shape[1])
    noise_UV.masked_fill_(scaled_UV < lowest_kept_ref(scaled_UV, inputs)[:, None], float("-inf"))
    return noise_UV.add_(scaled_UV).argmax(-1)


def edit_logits_ref(logits_RV: torch.Tensor, inputs: SampleInputs) -> torch.Tensor:
    """Return the logits after bias, penalties and masks: a copy where there are any."""
    if inputs.biases is None and inputs.penalties is None and inputs.masks is None:
        return logits_RV
    logits_RV = logits_RV.clone()
    if inputs.biases is not None:
        add_biases_ref(logits_RV, inputs.biases)
    if inputs.penalties is not None:
        apply_penalties_ref(logits_RV, inputs.penalties)
    if inputs.masks is not None:
        mask_ids_ref(logits_RV, inputs.masks)
    return logits_RV


def lowest_kept_ref(scaled_RV: torch.Tensor, inputs: SampleInputs) -> torch.Tensor:
    """Return the logit below which top_k, top_p or min_p drop a row's tokens: one a row.

    Args:
        scaled_RV: logits after temperature, each row's maximum being 0.
        inputs: for the three limits.
    """
    vocab_size = scaled_RV.shape[1]
    top_k_R = inputs.top_k_R.masked_fill(inputs.top_k_R == 0, vocab_size).clamp(max=vocab_size)
    lowest_R = inputs.min_p_R.log()
    # A row that keeps all tokens is not sorted: rounded sums could drop its last ones.
    rows_U = ((top_k_R < vocab_size) | (inputs.top_p_R < 1)).nonzero().squeeze(1)
    for num_likeliest in (*NUM_LIKELIEST, vocab_size):
        if len(rows_U) == 0:
            break
        scaled_UV = scaled_RV[rows_U]
        lowest_U, is_settled_U = lowest_of_likeliest_ref(
            scaled_UV.topk(min(num_likeliest, vocab_size)).values,
            scaled_UV.exp().sum(-1),
            top_k_R[rows_U],
            inputs.top_p_R[rows_U],
            vocab_size=vocab_size,
        )
        settled = rows_U[is_settled_U]
        lowest_R[settled] = torch.maximum(lowest_R[settled], lowest_U[is_settled_U])
        rows_U = rows_U[~is_settled_U]
    return lowest_R


def lowest_of_likeliest_ref(
    likeliest_UC: torch.Tensor,
    total_U: torch.Tensor,
    top_k_U: torch.Tensor,
    top_p_U: torch.Tensor,
    *,
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lowest logit that top_k and top_p keep, and whether so many of the likeliest settle it.

    Args:
        likeliest_UC: the largest logits of each row, in order, after temperature.
        total_U: the sum of exp over all of the row's logits.
        top_k_U: at least 1.
        top_p_U: as in SampleInputs.
        vocab_size: how many logits a row has.
    """
    num_likeliest = likeliest_UC.shape[1]
    weight_UC = likeliest_UC.exp()
    is_in_top_k_UC = torch.arange(num_likeliest, device=likeliest_UC.device) < top_k_U[:, None]
    total_in_top_k_U = (weight_UC * is_in_top_k_UC).sum(-1)
    total_U = torch.where(top_k_U < vocab_size, total_in_top_k_U, total_U)
    weight_before_UC = weight_UC.cumsum(-1) - weight_UC
    # A token stays while those before it have less than top_p; the first one always does.
    is_in_top_p_UC = weight_before_UC < (top_p_U * total_U)[:, None]
    is_in_top_p_UC |= (top_p_U >= 1)[:, None]
    # At least 1 even of NaNs: one broken row must not end the step for the others.
    num_kept_U = (is_in_top_k_UC & is_in_top_p_UC).sum(-1).clamp_(min=1)
    lowest_U = likeliest_UC.gather(1, num_kept_U[:, None] - 1).squeeze(1)
    is_settled_U = torch.where(top_k_U < vocab_size, top_k_U <= num_likeliest, num_kept_U < num_likeliest)
    return lowest_U, is_settled_U | (num_likeliest == vocab_size)


def logprobs_ref(
    logits_RV: torch.Tensor, token_ids_R: torch.Tensor, num_likeliest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's token and its likeliest ones with log-probabilities.

    Args:
        logits_RV: float32, the model's own, before any edit.
        token_ids_R: int64, the tokens drawn.
        num_likeliest: how many others to tell, the likeliest first.

    Returns:
        Token ids (int64) and their log-probabilities (float32), both (R, 1 + num_likeliest).
    """
    logprobs_RV = logits_RV.log_softmax(-1)
    likeliest = logprobs_RV.topk(num_likeliest)
    drawn_R1 = token_ids_R[:, None]
    ids = torch.cat((drawn_R1, likeliest.indices), -1)
    return ids, torch.cat((logprobs_RV.gather(1, drawn_R1), likeliest.values), -1)
