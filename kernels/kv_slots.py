"""Writes rows into slots of a paged cache, in plain PyTorch.

Knows nothing about Triton, so that a CPU needs none, nor about requests or blocks: a slot is a cell's
number, counted over the whole cache.

Shapes: T packed tokens, N blocks, S block size, K KV heads, D head dim.
"""

import torch


def write_slots(x_TKD: torch.Tensor, cache_NSKD: torch.Tensor, slots_T: torch.Tensor) -> None:
    """Write rows into slots that are all at least 0. Addresses are int64, as all of PyTorch's are."""
    cache_CX = cache_NSKD.view(-1, x_TKD.shape[1] * x_TKD.shape[2])  # C cells of X = K * D numbers
    cache_CX.index_copy_(0, slots_T, x_TKD.flatten(1))
