"""The token embedding table, and the output head that may share it.

Each rank holds the rows of its token ids. Knows nothing about where weights come from.

Shapes: T tokens, R rows, V token ids of this rank, padding included, E hidden.
"""

import torch
from torch import nn
from torch.nn.functional import embedding

from model.linear import Linear
from model.ranks import Ranks
from model.share import ModelShare


class Embedding(nn.Module):
    """A vector for each token id."""

    def __init__(self, share: ModelShare, *, ranks: Ranks, dtype: torch.dtype) -> None:
        super().__init__()
        shape = (share.config.vocab_size, share.config.hidden_size)
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        self.vocabulary = share.vocabulary
        self.ranks = ranks

    def forward(self, input_ids_T: torch.Tensor) -> torch.Tensor:
        """Return hidden_TE, on every rank."""
        if self.ranks.size == 1:
            return embedding(input_ids_T, self.weight)
        rows_T = input_ids_T - self.vocabulary.start
        is_elsewhere_T = (rows_T < 0) | (rows_T >= len(self.vocabulary))
        hidden_TE = embedding(rows_T.masked_fill(is_elsewhere_T, 0), self.weight)
        hidden_TE.masked_fill_(is_elsewhere_T[:, None], 0.0)
        self.ranks.all_reduce(hidden_TE)
        return hidden_TE


class OutputHead(Linear):
    """Hidden states to logits, with a weight of its own or the embedding table's."""

    def __init__(self, share: ModelShare, *, dtype: torch.dtype) -> None:
        super().__init__(share.config.hidden_size, share.config.vocab_size, dtype=dtype)
        self.num_token_ids = len(share.vocabulary)

    def tie(self, table: Embedding) -> None:
        """Take the embedding table as weight; packing leaves the table itself as it is."""
        self.weight = table.weight

    def forward(self, hidden_RE: torch.Tensor) -> torch.Tensor:
        """Return logits_RV in float32, for the token ids of this rank; padding has -inf."""
        logits_RV = super().forward(hidden_RE).float()
        if self.num_token_ids < logits_RV.shape[1]:
            logits_RV[:, self.num_token_ids :] = float("-inf")
        return logits_RV
