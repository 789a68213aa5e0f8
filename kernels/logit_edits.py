"""Changes to logits before a token is drawn: biases, penalties for repetition, masked ids.

Knows nothing about how a token is drawn. Each change lists only the rows that have it, so that a
batch without any costs nothing.

Shapes: R rows, V vocabulary, X single logits, Q rows with penalties, W tokens of the longest history.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitEntries:
    """Values for single logits, by (row, token id)."""

    rows_X: torch.Tensor
    """int64."""
    token_ids_X: torch.Tensor
    """int64."""
    values_X: torch.Tensor
    """float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyInputs:
    """The rows with penalties and their tokens so far."""

    rows_Q: torch.Tensor
    """int64, distinct."""
    history_QW: torch.Tensor
    """int64: prompt and output; what stands past a row's known tokens is not read."""
    num_known_Q: torch.Tensor
    """int64: tokens of prompt and output so far."""
    num_prompt_Q: torch.Tensor
    """int64: how many of them are the prompt's."""
    presence_Q: torch.Tensor
    frequency_Q: torch.Tensor
    repetition_Q: torch.Tensor
    """float32, as the other two; 1 changes nothing."""


def add_biases_ref(logits_RV: torch.Tensor, biases: LogitEntries) -> None:
    """Add each bias to its logit, in place."""
    logits_RV.index_put_((biases.rows_X, biases.token_ids_X), biases.values_X, accumulate=True)


def mask_ids_ref(logits_RV: torch.Tensor, masks: LogitEntries) -> None:
    """Set each listed logit to its value, -inf, in place."""
    logits_RV.index_put_((masks.rows_X, masks.token_ids_X), masks.values_X)


def apply_penalties_ref(logits_RV: torch.Tensor, penalties: PenaltyInputs) -> None:
    """Make repeated tokens less likely, in place.

    Repetition counts tokens of prompt and output: a positive logit is divided by it, another one
    multiplied. Frequency is subtracted once an occurrence in the output, presence once in all.

    Source: the definitions of vLLM, which follow OpenAI's API and CTRL (Keskar et al., 2019).
    """
    logits_QV = logits_RV[penalties.rows_Q]
    place_W = torch.arange(penalties.history_QW.shape[1], device=logits_RV.device)
    is_known_QW = place_W < penalties.num_known_Q[:, None]
    is_output_QW = is_known_QW & (place_W >= penalties.num_prompt_Q[:, None])
    # Places that do not count may hold anything: 0 is a valid id, and adds 0.
    history_QW = penalties.history_QW.where(is_known_QW, 0)
    num_known_QV = torch.zeros_like(logits_QV).scatter_add_(1, history_QW, is_known_QW.float())
    num_output_QV = torch.zeros_like(logits_QV).scatter_add_(1, history_QW, is_output_QW.float())
    factor_QV = penalties.repetition_Q[:, None].where(num_known_QV > 0, 1.0)
    logits_QV = torch.where(logits_QV > 0, logits_QV / factor_QV, logits_QV * factor_QV)
    logits_QV -= penalties.frequency_Q[:, None] * num_output_QV
    logits_QV -= penalties.presence_Q[:, None] * (num_output_QV > 0)
    logits_RV[penalties.rows_Q] = logits_QV
