"""The stand-in worker as a process of its own: ``python -m tests.stand_in_process --model FOLDER ...``.

Says "worker listening on HOST:PORT" as a real worker does, and can "sample" the tokens of a text at a
set rate. Knows nothing about what is measured or tested with it.
"""

import argparse
import asyncio
import signal
from pathlib import Path

import numpy as np
import uvloop

from model.config import read_model_config
from model.folder import config_hash
from tests.stand_in_lanes import StandInLimits
from tests.stand_in_worker import StandInWorker


def _parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder whose config.json is told")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, help="token ids to tell, as .npy")
    parser.add_argument("--counts-from-output", action="store_true", help="of the script's positions")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="time each step takes")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=4096)
    return parser.parse_args()


async def _serve(flags: argparse.Namespace) -> None:
    block_size = 16
    limits = StandInLimits(
        block_size=block_size,
        num_blocks=flags.max_num_seqs * flags.max_model_len // block_size,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=max(8192, flags.max_num_seqs),
        max_model_len=flags.max_model_len,
        vocab_size=read_model_config(flags.model).vocab_size,
        config_hash=config_hash(flags.model),
    )
    script = None if flags.script is None else np.load(flags.script).astype(np.int32)
    worker = StandInWorker(limits, step_seconds=flags.step_seconds, checks_cache=False, script=script)
    worker.counts_from_output = flags.counts_from_output
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await worker.start(flags.port)
    print(f"worker listening on {worker.address}", flush=True)  # noqa: T201
    await stop.wait()
    await worker.stop()
    assert not worker.faults, worker.faults


if __name__ == "__main__":
    uvloop.run(_serve(_parse_flags()))
