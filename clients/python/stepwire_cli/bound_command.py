"""Runs a command that is killed when the process which started it has ended, however that ended.

A script that the command replaces: code between fork and exec could wait for ever for a lock of gRPC's
threads. Linux only, elsewhere the command just runs. Knows nothing about commands.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl; it stays over an exec."""


def bound(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return what to start in the place of a command whose first word is a path; 20 ms longer to start."""
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *command)


def _run(parent_pid: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent_pid:  # else it ended before that
        os.execv(command[0], command)


if __name__ == "__main__":
    _run(int(sys.argv[1]), sys.argv[2:])
