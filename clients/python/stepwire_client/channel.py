"""How a channel to a server and the calls on it are set up: message sizes, keepalive, deadlines.

Knows nothing about requests.
"""

from stepwire_client.errors import InvalidRequest

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""As the server's default: gRPC's own 4 MiB are too few for long prompts and log-probabilities."""

MAX_TIMEOUT_SECONDS = 1e9
"""31 years: gRPC's clock takes 292, and any longer deadline for one that has passed."""

ChannelOptions = tuple[tuple[str, int], ...]


def channel_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> ChannelOptions:
    """Return the options of a channel that carries messages of up to ``max_message_bytes``."""
    return (
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # The server takes a ping every 10 s; a dead network is noticed while a long answer is awaited.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # A server that restarts is found soon: gRPC's own waits begin at 1 s and grow to 2 minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # Else all clients of a process share one connection, and with it one of the server's front ends.
        ("grpc.use_local_subchannel_pool", 1),
    )


def check_timeout(timeout_seconds: float | None) -> float | None:
    """Return the deadline of a call as gRPC takes it; None is no deadline.

    Raises:
        InvalidRequest: if gRPC could not keep it.
    """
    if timeout_seconds is not None and not timeout_seconds <= MAX_TIMEOUT_SECONDS:  # NaN neither
        limit = f"must be at most {MAX_TIMEOUT_SECONDS:g}"
        raise InvalidRequest(f"timeout_seconds is {timeout_seconds}, but {limit}")
    return timeout_seconds


def check_resume_seconds(resume_seconds: float | None) -> float | None:
    """Return how long a broken stream is tried again; None: as long as makes sense.

    Raises:
        InvalidRequest: if it is no length of time.
    """
    if resume_seconds is not None and not resume_seconds >= 0:  # NaN neither
        raise InvalidRequest(f"resume_seconds is {resume_seconds}, but must be at least 0")
    return resume_seconds
