"""Starts the ``stepwire`` command; ``python -m stepwire_cli`` does the same.

Sets what gRPC reads from the environment when it is imported. Knows nothing about the commands.
"""

import os
import signal

GRPC_ENVIRONMENT = {
    # Else a server that stops writes a line of gRPC's own before our one-line error.
    "GRPC_VERBOSITY": "ERROR",
    # Its handlers would warn when the services are started.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    # The older event engine, as the services: a message costs a client of `bench` a fifth less.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}


def run() -> None:
    """Run the command line."""
    for name, value in GRPC_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # imports that are interrupted show a traceback
    from stepwire_cli.main import app  # noqa: PLC0415  # it imports grpc

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="stepwire")


if __name__ == "__main__":
    run()
