"""How processes that wait for each other end where one of them fails, or who started them is killed.

A rank on a GPU would wait for the others for ever, and keep its GPU from whoever comes next. Holds no tests.
Knows nothing about what the processes do.
"""

import ctypes
import signal
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl."""


def end_with_parent() -> None:
    """Have this process killed once the one that started it has ended, however it did."""
    assert ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0


def wait_for_all(processes: Sequence[BaseProcess]) -> int:
    """Wait until all have ended; once one has failed, end the others, which might wait for it.

    Returns:
        The first failure's exit code, without its sign; 0 where there was none.
    """
    left = list(processes)
    while left:
        wait([process.sentinel for process in left])
        ended = [process for process in left if not process.is_alive()]
        left = [process for process in left if process not in ended]
        code = next((process.exitcode for process in ended if process.exitcode), 0)
        if code:
            _kill_all(left)
            return abs(code)
    return 0


def _kill_all(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
