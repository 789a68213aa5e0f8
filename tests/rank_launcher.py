"""What torchrun does, for tests: starts the ranks of a worker group, and all of them again when one ends.

Ranks are forks of a process that has imported everything, which takes a tenth of torchrun's time:

    python -m tests.rank_launcher 2 --model FOLDER --port 50061

Tells the process id of each rank. Ends on SIGTERM, once the ranks have ended.
"""

import contextlib
import os
import signal
import sys
import threading
import traceback
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from worker_svc import __main__ as worker_main
from worker_svc import start
from worker_svc.tp import ranks_start

PRELOADED = (start, ranks_start)
PATIENCE_SECONDS = 60.0
"""How long ranks may take to notice that one has ended."""


def _start_ranks(size: int, flags: list[str], *, store: TCPStore, attempt: int) -> dict[int, int]:
    """Fork all ranks; return each one's rank by process id."""
    ranks = {}
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            _run_rank(rank, size, flags, port=store.port)
        ranks[pid] = rank
        print(f"attempt {attempt} rank {rank} pid {pid}", flush=True)  # noqa: T201
    return ranks


def _run_rank(rank: int, size: int, flags: list[str], *, port: int) -> None:
    """Be a rank, in a process of its own; never returns."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RUN_ID="test",
    )
    sys.argv = ["worker_svc", *flags]
    code: object = 1
    try:
        worker_main.main()
        code = 0
    except SystemExit as end:
        code = end.code
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> int:
    """Run the ranks until SIGTERM; return 0 if they all ended well then."""
    size, flags = int(sys.argv[1]), sys.argv[2:]
    ranks: dict[int, int] = {}
    is_stopping = False

    def stop(*_: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        _send_all(ranks, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    # As torchrun's: what ranks have written that have ended is still there.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=1))
    attempt, codes = 0, {0: 1}
    while not is_stopping:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        ranks.update(_start_ranks(size, flags, store=store, attempt=attempt))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        codes = _wait_for_all(ranks)
        print(f"attempt {attempt} ended: {codes}", flush=True)  # noqa: T201
        attempt += 1
    return int(any(codes.values()))


def _wait_for_all(ranks: dict[int, int]) -> dict[int, int]:
    """Wait until all ranks have ended; return the exit code of each.

    They get a while to end by themselves when one has: torchrun would not leave it at that.
    """
    codes: dict[int, int] = {}
    killing = threading.Timer(PATIENCE_SECONDS, _send_all, (ranks, signal.SIGKILL))
    killing.daemon = True
    while ranks:
        pid, status = os.wait()
        codes[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
        if len(codes) == 1:
            killing.start()
    killing.cancel()
    return dict(sorted(codes.items()))


def _send_all(ranks: dict[int, int], number: signal.Signals) -> None:
    for pid in tuple(ranks):
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
