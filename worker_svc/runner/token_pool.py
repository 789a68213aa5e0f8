"""The tokens of every lane, on the device, so that no sampled token has to come from the host.

Knows nothing about lengths: callers say which positions they mean. Legend: L lanes, P positions,
T packed tokens, R sampling rows, Q rows with penalties, W tokens of the longest history.
"""

import torch

from worker_svc.batch.step import Admission


class TokenPool:
    """One row of token ids a lane."""

    def __init__(self, max_num_seqs: int, max_model_len: int, *, device: torch.device) -> None:
        # Zeros, because padding rows read lane 0 before anybody has written it.
        self._token_pool_LP = torch.zeros((max_num_seqs, max_model_len + 1), dtype=torch.int32, device=device)

    def admit(self, admissions: tuple[Admission, ...]) -> None:
        """Write the known tokens of newly admitted lanes."""
        for admission in admissions:
            # torch.tensor copies: the array may be a read-only view of a message.
            tokens = torch.tensor(admission.token_ids, dtype=torch.int32)
            self._token_pool_LP[admission.lane, : len(tokens)] = tokens

    def gather(self, lanes_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        """Return the ids of these tokens, int32."""
        return self._token_pool_LP[lanes_T, positions_T]

    def store(self, token_ids_R: torch.Tensor, *, lanes_R: torch.Tensor, positions_R: torch.Tensor) -> None:
        """Write sampled tokens, int32, at their positions."""
        self._token_pool_LP[lanes_R, positions_R] = token_ids_R

    def histories(self, lanes_Q: torch.Tensor, longest: int) -> torch.Tensor:
        """Return the first ``longest`` ids of these lanes.

        Returns:
            (Q, W) int64; what stands past a lane's own tokens means nothing.
        """
        return self._token_pool_LP[:, :longest][lanes_Q].long()
