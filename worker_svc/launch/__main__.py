"""Starts the ranks of a worker group on this machine: torchrun with its flags, and an end that is short.

torchrun alone ends with a traceback of its own and a table, below the line in which a rank says why it
ended. Knows nothing about what the ranks do.
"""

import os
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from worker_svc.tp.group import LAUNCHER_PID

EXIT_FAILED = 1
EXIT_LOST = 3
"""Of a rank that may only have noticed that another one has ended."""
SIGNAL_BASE = 128
"""As shells tell which signal ended a program."""


def launch() -> None:
    """Run the command line of torchrun; end with the exit code of the rank that tells why."""
    os.environ[LAUNCHER_PID] = str(os.getpid())
    try:
        run.main()
    except ChildFailedError as error:
        # Which one was first is known to the second only.
        codes = (failure.exitcode for failure in error.failures.values())
        first = error.get_first_failure()[1].exitcode
        code = next((code for code in codes if code > 0 and code != EXIT_LOST), first)
        sys.exit(code if code > 0 else EXIT_FAILED)
    except SignalException as error:
        sys.exit(SIGNAL_BASE + error.sigval)


if __name__ == "__main__":
    launch()
