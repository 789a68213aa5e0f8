"""How a channel to a server is set up: message sizes, keepalive, own connection.

Knows nothing about requests.
"""

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""As the server's default: gRPC's own 4 MiB are too few for long prompts and log-probabilities."""

ChannelOptions = tuple[tuple[str, int], ...]


def channel_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> ChannelOptions:
    """Return the options of a channel that carries messages of up to ``max_message_bytes``."""
    return (
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # The server takes a ping every 10 s; a dead network is noticed while a long answer is awaited.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Else all clients of a process share one connection, and with it one of the server's front ends.
        ("grpc.use_local_subchannel_pool", 1),
    )
