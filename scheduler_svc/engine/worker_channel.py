"""A channel to a worker: message sizes, and TLS where there are credentials.

Knows nothing about what is sent over it.
"""

import grpc

_OPTIONS = (
    # Both ends are ours; what clients may send is limited where it comes in.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Nothing of another channel is reused, its backoff least.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_worker_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Open a channel of its own to ``address``."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
