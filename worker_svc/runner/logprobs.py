"""Log-probabilities of the rows that asked for them, ragged on the host.

Of the model's raw distribution: no edit of the logits shows. Knows nothing about how tokens are drawn.
Legend: R sampling rows, A rows that asked, C entries of the row that asked for most, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch

from kernels.sample import logprobs_ref
from worker_svc.batch.step import Int32Array, Logprobs
from worker_svc.runner.upload import upload


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLogprobs:
    """What the device computed, as wide as the row that asked for most."""

    counts: Int32Array
    """(R,): entries each sampling row asked for."""
    token_ids_AC: torch.Tensor
    values_AC: torch.Tensor

    def download(self) -> Logprobs:
        """Return each row's own entries, one row after another."""
        is_asked_AC = np.arange(self.values_AC.shape[1]) < self.counts[self.counts > 0][:, None]
        return Logprobs(
            counts=self.counts,
            token_ids=self.token_ids_AC.cpu().numpy()[is_asked_AC].astype(np.int32),
            values=self.values_AC.cpu().numpy()[is_asked_AC],
        )


def compute_logprobs(
    logits_RV: torch.Tensor, token_ids_R: torch.Tensor, *, counts: Int32Array
) -> DeviceLogprobs | None:
    """Compute what the rows asked for.

    Args:
        logits_RV: The model's own.
        token_ids_R: The tokens drawn, int64.
        counts: Entries of each row: 0 for none, k + 1 for the drawn token and the k likeliest.

    Returns:
        None where no row asked.
    """
    if not counts.any():
        return None
    asking_A = upload(np.flatnonzero(counts), logits_RV.device)
    most = int(counts.max()) - 1
    token_ids_AC, values_AC = logprobs_ref(logits_RV[asking_A], token_ids_R[asking_A], most)
    return DeviceLogprobs(counts=counts, token_ids_AC=token_ids_AC, values_AC=values_AC)
