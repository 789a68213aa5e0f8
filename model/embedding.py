"""The token embedding table, and the output head that may share it.

Knows nothing about where weights come from. Shapes: T tokens, R rows, V vocabulary, E hidden.
"""

import torch
from torch import nn
from torch.nn.functional import embedding

from model.linear import Linear


class Embedding(nn.Module):
    """A vector for each token id."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype), requires_grad=False)

    def forward(self, input_ids_T: torch.Tensor) -> torch.Tensor:
        """Return hidden_TE."""
        return embedding(input_ids_T, self.weight)


class OutputHead(Linear):
    """Hidden states to logits, with a weight of its own or the embedding table's."""

    def tie(self, table: Embedding) -> None:
        """Take the embedding table as weight; packing leaves the table itself as it is."""
        self.weight = table.weight
