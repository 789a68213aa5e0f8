"""Tells whether an address can be listened on, before anything takes time.

Knows nothing about who would listen there.
"""

import socket


def why_not_bound(host: str, port: int) -> str:
    """Return why no address of the host can be listened on; empty where one can, or only gRPC may know it."""
    reason = ""
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return ""
    for family, kind, protocol, _, address in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return ""
    return reason
