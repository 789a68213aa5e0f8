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

_OWN_OPTIONS = {"model": "", "host": "", "port": 0, "log_level": ""}
"""What each rank may have its own of: the model's path, and what only rank 0 needs."""


def join(config: WorkerConfig, group: TpGroup, *, on_lost: Callable[[DeviceLostError], object]) -> Membership:
    """Meet the other ranks, and end with them from now on.

    Raises:
        StartupError: if the ranks do not fit together.
    """
    options = dataclasses.asdict(config) | _OWN_OPTIONS
    return join_group(
        group, options=repr(options), limit_seconds=config.silence_limit_seconds, on_lost=on_lost
    )


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
