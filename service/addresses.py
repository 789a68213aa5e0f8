"""Tells whom an address lets in, or leads to; pure.

Knows nothing about who listens there or connects, nor about names of machines.
"""

import ipaddress


def is_this_machine(host: str) -> bool:
    """Tell whether an address to listen on, or to connect to, is this machine's own loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return False
