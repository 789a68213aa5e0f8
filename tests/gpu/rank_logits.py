"""Logits of random prompts in bfloat16, from a model that torchrun's ranks share.

    torchrun --nproc-per-node 2 -m tests.gpu.rank_logits FOLDER OUT

The first rank leaves them in OUT, without torchrun those of one GPU. Holds no tests and checks nothing.
"""

import sys
from pathlib import Path

import torch
from torch import distributed

from benchmarks.join_torchrun import join_torchrun
from tests.ending_ranks import end_with_parent
from tests.gpu.fused_forward import BLOCK_SIZE, FusedForward
from tests.rank_progress import RankProgress
from worker_svc.tp.model_ranks import make_ranks

NUM_PROMPTS, NUM_POSITIONS = 8, 64
VOCAB_SIZE = 151936


def prompts() -> torch.Tensor:
    """Return ids_BP, the same in every process."""
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, VOCAB_SIZE, (NUM_PROMPTS, NUM_POSITIONS), generator=generator)


def main() -> None:
    """Compute the prompts, but for each one's last token, which is decoded."""
    end_with_parent()
    folder, out = map(Path, sys.argv[1:])
    group = join_torchrun("cuda")
    progress = RankProgress(group.rank)
    ours = FusedForward.load(
        folder,
        num_rows=NUM_PROMPTS,
        num_blocks=NUM_POSITIONS // BLOCK_SIZE,
        dtype=torch.bfloat16,
        ranks=make_ranks(group),
    )
    progress.tell("loaded")
    ids_BP = prompts().to(group.device)
    prefilled_BPV = ours.prefill(ids_BP[:, :-1])
    progress.tell("computed the prompts")
    decoded_BV = ours.decode(ids_BP[:, -1], NUM_POSITIONS - 1)
    progress.tell("decoded")
    if group.is_leader:
        torch.save(torch.cat((prefilled_BPV, decoded_BV[:, None]), 1).cpu(), out)
    if group.size > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
