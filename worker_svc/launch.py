"""Starts the ranks of a worker group on this machine: torchrun with its flags, and an end that is short.

torchrun alone ends with a traceback of its own and a table, below the line in which a rank says why it
ended. Knows nothing about what the ranks do.
"""

import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

EXIT_FAILED = 1
SIGNAL_BASE = 128
"""As shells tell which signal ended a program."""


def launch() -> None:
    """Run the command line of torchrun; end with the exit code of the rank that failed first."""
    try:
        run.main()
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        sys.exit(code if code > 0 else EXIT_FAILED)
    except SignalException as error:
        sys.exit(SIGNAL_BASE + error.sigval)


if __name__ == "__main__":
    launch()
