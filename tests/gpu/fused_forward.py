"""The fused forward pass of a checkpoint over rows of equal length, for comparisons of its logits.

Holds no tests. Knows nothing about what it is compared with. Triton is imported only when a model is loaded.

Shapes: B rows, P positions a row, T = B * P tokens, M blocks a row, V vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.attention_backend import make_lane_backend
from kernels.lane_step import LaneStep, PrefillRows
from kernels.shared_sample import SharedVocabulary
from model.config import read_model_config
from model.load import load_model
from model.ranks import Ranks

BLOCK_SIZE = 16


@dataclass(frozen=True)
class FusedForward:
    """Our forward pass over rows of equal length, each with blocks of its own."""

    decoder: Any
    caches: Any
    table_BM: torch.Tensor
    vocabulary: SharedVocabulary | None
    """None where one rank holds all of the model."""

    @classmethod
    def load(
        cls, folder: Path, *, num_rows: int, num_blocks: int, dtype: torch.dtype, ranks: Ranks | None = None
    ) -> "FusedForward":
        """Load the model, or this rank's share of it, on the current GPU."""
        from model.fused_decoder import FusedDecoder  # noqa: PLC0415
        from worker_svc.runner.kv_cache import allocate_kv_caches  # noqa: PLC0415

        device = torch.device("cuda", torch.cuda.current_device())
        model = load_model(folder, read_model_config(folder), device=device, dtype=dtype, ranks=ranks)
        total = num_rows * num_blocks
        caches = allocate_kv_caches(model.config, total, block_size=BLOCK_SIZE, dtype=dtype, device=device)
        max_tokens = total * BLOCK_SIZE
        decoder = FusedDecoder(model, max_num_tokens=max_tokens, max_position=num_blocks * BLOCK_SIZE)
        table_BM = 1 + torch.randperm(total, device=device, dtype=torch.int32).view(num_rows, num_blocks)
        return cls(decoder=decoder, caches=caches, table_BM=table_BM, vocabulary=model.shared_vocabulary)

    @torch.inference_mode()
    def prefill(self, ids_BP: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions, (B, P, V) in float32."""
        num_rows, num_positions = ids_BP.shape
        device = ids_BP.device
        positions_T = torch.arange(num_positions, dtype=torch.int32, device=device).repeat(num_rows)
        rows = LaneStep(
            block_table_LM=self.table_BM,
            lanes_B=torch.arange(num_rows, dtype=torch.int32, device=device),
            seq_lens_B=torch.full((num_rows,), num_positions, dtype=torch.int32, device=device),
            num_decode_rows=0,
            prefill=PrefillRows(
                cu_seqlens_q=torch.arange(num_rows + 1, dtype=torch.int32, device=device) * num_positions,
                max_seqlen_q=num_positions,
            ),
        )
        step = self._step(ids_BP, positions_T.view(num_rows, -1), rows)
        hidden_TE: torch.Tensor = self.decoder.forward(step, self.caches)
        logits_TV = hidden_TE.new_empty((len(hidden_TE), self.decoder.config.vocab_size))
        self.decoder.compute_logits(hidden_TE, logits_TV)
        return self._whole(logits_TV).float().view(num_rows, num_positions, -1)

    @torch.inference_mode()
    def decode(self, ids_B: torch.Tensor, position: int) -> torch.Tensor:
        """Return the logits of one more token a row, (B, V) in float32."""
        num_rows, device = len(ids_B), ids_B.device
        positions_B = torch.full((num_rows,), position, dtype=torch.int32, device=device)
        rows = LaneStep(
            block_table_LM=self.table_BM,
            lanes_B=torch.arange(num_rows, dtype=torch.int32, device=device),
            seq_lens_B=positions_B + 1,
            num_decode_rows=num_rows,
        )
        step = self._step(ids_B[:, None], positions_B[:, None], rows)
        vocab_size = self.decoder.config.vocab_size
        logits_BV = torch.empty((num_rows, vocab_size), dtype=self.caches[0][0].dtype, device=device)
        self.decoder.decode(step, self.caches, out_TV=logits_BV)
        return self._whole(logits_BV).float()

    def _whole(self, logits_TV: torch.Tensor) -> torch.Tensor:
        return logits_TV if self.vocabulary is None else self.vocabulary.gather(logits_TV)

    def _step(self, ids_BP: torch.Tensor, positions_BP: torch.Tensor, rows: LaneStep) -> Any:
        from model.fused_step import FusedStep  # noqa: PLC0415

        backend = make_lane_backend("triton", block_size=BLOCK_SIZE)
        return FusedStep(
            input_ids_T=ids_BP.flatten().int(),
            positions_T=positions_BP.flatten(),
            slot_mapping_T=self._slots(positions_BP).flatten(),
            attention=backend,
            attention_plan=backend.plan_lanes(rows),
        )

    def _slots(self, positions_BP: torch.Tensor) -> torch.Tensor:
        blocks_BP = self.table_BM[: len(positions_BP)].long().gather(1, positions_BP.long() // BLOCK_SIZE)
        return blocks_BP * BLOCK_SIZE + positions_BP.long() % BLOCK_SIZE
