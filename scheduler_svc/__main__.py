"""Starts the scheduler service with the environment, which no other module of it reads.

Sets what gRPC reads there when it is imported. Knows nothing about flags.
"""

import os
import signal

GRPC_ENVIRONMENT = {
    # The processes are spawned, never forked; with fork support gRPC stalls them at start.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # The older event engine: 0.3-0.4 ms from a step's send to its tokens at a front end (5th
    # percentile, one row, D = 1, two busy cores), against 0.65-0.75 ms with the newer one.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}


def main() -> None:
    """Run the command line."""
    for name, value in GRPC_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # imports that are interrupted show a traceback
    from scheduler_svc.command_line import run_command_line  # noqa: PLC0415

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command_line(os.environ)


if __name__ == "__main__":
    main()
