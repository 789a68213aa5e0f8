"""Starts a rank of several: joins it to the group, then has it lead the others, or follow.

Knows nothing about flags, gRPC servers or how a model is loaded.
"""

import dataclasses
import signal
from collections.abc import Callable

from worker_svc.config import WorkerConfig
from worker_svc.errors import DeviceLostError, StartupError
from worker_svc.rpc.convert import step_from_bytes
from worker_svc.runner.worker_info import LoadedWorker
from worker_svc.tp.follower import Follower
from worker_svc.tp.group import TpGroup
from worker_svc.tp.join import Membership, join_group
from worker_svc.tp.leading_executor import LeadingExecutor

SHARED_OPTIONS = (
    "device",
    "dtype",
    "attention_backend",
    "cuda_graphs",
    "block_size",
    "num_blocks",
    "kv_cache_gib",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
)
"""What decides which steps there are and how they are computed. The rest each rank may have its own of."""


def shared_options(config: WorkerConfig) -> str:
    """Return the options that must be the same on all ranks, to be compared and read."""
    return str({name: getattr(config, name) for name in SHARED_OPTIONS})


def join(config: WorkerConfig, group: TpGroup, *, on_lost: Callable[[DeviceLostError], object]) -> Membership:
    """Meet the other ranks, and end with them from now on.

    Raises:
        StartupError: if the ranks do not fit together.
    """
    limit_seconds = config.silence_limit_seconds
    return join_group(group, options=shared_options(config), limit_seconds=limit_seconds, on_lost=on_lost)


def lead(worker: LoadedWorker, membership: Membership) -> LoadedWorker:
    """Put all other ranks behind a worker's executor, once they are loaded.

    Raises:
        StartupError: if they have loaded something else.
    """
    _compare(worker, membership)
    executor = LeadingExecutor(worker.executor, membership.publish)
    return dataclasses.replace(worker, executor=executor, check_device=_lose_group)


def follow(worker: LoadedWorker, membership: Membership) -> None:
    """Do what rank 0 does, until the group ends.

    Raises:
        StartupError: if rank 0 has loaded something else.
        DeviceLostError: if this rank can go no further.
    """
    # Rank 0 gets the same signal, ends what runs, and then the group; whatever ends it ends this rank, too.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _compare(worker, membership)
    follower = Follower(worker.executor, step_from_bytes)
    while (message := membership.next_message()) is not None:
        try:
            follower.take(message)
        except Exception as error:
            raise DeviceLostError(
                f"a step failed on rank {membership.rank}: {type(error).__name__}: {error}"
            ) from error


def _compare(worker: LoadedWorker, membership: Membership) -> None:
    """Wait until all ranks are loaded; raise unless they have loaded the same."""
    own = f"config {worker.info.config_hash}, {worker.info.limits}"
    for rank, other in enumerate(membership.gather(own)):
        if other != own:
            raise StartupError(f"rank {rank} has loaded {other}, but this rank {own}")


def _lose_group() -> None:
    """Refuse to go on after a step that failed here: other ranks may wait in it for ever."""
    raise RuntimeError("the other ranks may be in the middle of that step")
