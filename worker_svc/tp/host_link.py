"""One TCP connection between the group's first host and another: messages one way, signs of life both ways.

What breaks or is silent for too long is lost, unless the end was told. Knows nothing about what messages
mean, nor about the ranks behind it.

    frame: size, 4 bytes little-endian | message.    Size 0: a sign of life. Size 2^32 - 1: the end.
"""

import hmac
import socket
import struct
import threading
import time
from collections.abc import Callable

from worker_svc.errors import DeviceLostError, StartupError
from worker_svc.tp.rank_watch import BEATS_IN_LIMIT, MAX_BEAT_SECONDS

JOIN_SECONDS = 60.0
"""How long hosts that have met over the rendezvous may take to connect."""
TOKEN_SECONDS = 5.0
"""How long whoever connects may take to say the token."""
TOKEN_BYTES = 32
_SIZE = struct.Struct("<I")
_BEAT = _SIZE.pack(0)
_END = _SIZE.pack(2**32 - 1)


class HostLink:
    """One end of a connection."""

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        *,
        limit_seconds: float,
        on_lost: Callable[[DeviceLostError], object],
        on_message: Callable[[bytes], object],
        on_end: Callable[[], object],
    ) -> None:
        """Make it; ``start`` starts it.

        Args:
            connection: Told who it is.
            peer: What the other end is called.
            limit_seconds: How long the other end may be silent.
            on_lost: Called from any thread, at most once.
            on_message: Called in a thread with each message, in order.
            on_end: Called there when the end was told.
        """
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Waited for twice: where this process itself stood still, the second wait finds what has come.
        connection.settimeout(limit_seconds / 2)
        self._connection = connection
        self._peer = peer
        self._limit_seconds = limit_seconds
        self._on_lost = on_lost
        self._on_message = on_message
        self._on_end = on_end
        self._sending = threading.Lock()
        self._ended = threading.Event()

    def start(self) -> None:
        """Start to beat and to receive, each in a thread of its own."""
        for name, run in (("host beat", self._beat), ("host link", self._receive)):
            # Daemons: a host that does not answer must not keep the process alive.
            threading.Thread(target=self._guard, args=(run,), name=name, daemon=True).start()

    def send(self, message: bytes) -> None:
        """Send a message; where that fails the other host is lost."""
        self._guard(lambda: self._send_all(_SIZE.pack(len(message)) + message))

    def end(self) -> None:
        """Tell the end: nothing is lost any more."""
        self._ended.set()
        try:
            self._send_all(_END)
        except OSError as error:
            # It went first.
            self._peer += f" ({error})"
        self._connection.close()

    def _send_all(self, data: bytes) -> None:
        with self._sending:
            self._connection.sendall(data)

    def _guard(self, run: Callable[[], object]) -> None:
        try:
            run()
        except OSError as error:
            with self._sending:
                is_over = self._ended.is_set()
                self._ended.set()
            if not is_over:
                self._on_lost(DeviceLostError(f"{self._peer} of the worker group is lost: {error}"))

    def _beat(self) -> None:
        while not self._ended.wait(min(MAX_BEAT_SECONDS, self._limit_seconds / BEATS_IN_LIMIT)):
            self._send_all(_BEAT)

    def _receive(self) -> None:
        while not self._ended.is_set():
            frame = self._take(_SIZE.size)
            if frame == _END:
                self._ended.set()
                self._on_end()
            elif frame != _BEAT:
                self._on_message(self._take(*_SIZE.unpack(frame)))

    def _take(self, num_bytes: int) -> bytes:
        """Receive so many bytes."""
        data = bytearray(num_bytes)
        view = memoryview(data)
        while view:
            try:
                num_received = self._connection.recv_into(view)
            except TimeoutError:
                num_received = self._connection.recv_into(view)
            if not num_received:
                raise ConnectionError("the connection was closed")
            view = view[num_received:]
        return bytes(data)


def open_listener() -> socket.socket:
    """Listen for other hosts on all addresses, at a free port; whoever connects must know the token."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def accept_hosts(listener: socket.socket, token: bytes, *, num_hosts: int) -> list[socket.socket]:
    """Take a connection of each other host; whoever does not know the token is sent away.

    Raises:
        StartupError: if one does not come.
    """
    deadline_seconds = time.monotonic() + JOIN_SECONDS
    connections: list[socket.socket] = []
    while len(connections) < num_hosts:
        # At least a moment: 0 would not wait at all.
        listener.settimeout(max(0.001, deadline_seconds - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except OSError as error:
            missing = num_hosts - len(connections)
            raise StartupError(f"{missing} hosts of the worker group did not connect: {error}") from error
        if _knows(connection, token):
            connections.append(connection)
        else:
            connection.close()
    return connections


def _knows(connection: socket.socket, token: bytes) -> bool:
    """Tell whether who has connected knows the token; a stranger may break off, or say nothing."""
    connection.settimeout(TOKEN_SECONDS)
    try:
        return hmac.compare_digest(connection.recv(TOKEN_BYTES, socket.MSG_WAITALL), token)
    except OSError:
        return False


def connect_to_leader(host: str, port: int, *, token: bytes) -> socket.socket:
    """Connect to the group's first host.

    Raises:
        StartupError: if it cannot be reached.
    """
    try:
        connection = socket.create_connection((host, port), timeout=JOIN_SECONDS)
        connection.sendall(token)
    except OSError as error:
        raise StartupError(
            f"cannot reach the worker group's first host at {host}:{port}, from MASTER_ADDR: {error}"
        ) from error
    return connection
