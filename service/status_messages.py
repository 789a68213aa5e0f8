"""Keeps the message of a status as short as gRPC's clients take it; pure.

Knows nothing about errors or codes: each service has its own table of them.
"""

MAX_MESSAGE_CHARACTERS = 500
"""Messages travel in trailers, of which gRPC's clients refuse some above 8 KiB; an emoji takes 12 bytes."""


def shortened(message: str) -> str:
    """Return a message, or its two ends, short enough to arrive whatever value it names."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    half = MAX_MESSAGE_CHARACTERS // 2
    return f"{message[:half]} ... {message[-half:]}"
