"""The connection between two hosts of a worker group, over 127.0.0.1."""

import queue
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from worker_svc.errors import StartupError
from worker_svc.tp.host_link import TOKEN_BYTES, HostLink, accept_hosts, connect_to_leader, open_listener

LIMIT_SECONDS = 60.0
TOKEN = bytes(range(TOKEN_BYTES))


class End:
    """One end of a link, and all that it was told."""

    def __init__(self, connection: socket.socket, peer: str, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.connection = connection
        self.told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.link = HostLink(
            connection,
            peer,
            limit_seconds=limit_seconds,
            on_lost=lambda error: self.told.put(str(error)),
            on_message=self.told.put,
            on_end=lambda: self.told.put("end"),
        )


@pytest.fixture
def connections() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return both ends of a connection that began with the token."""
    with open_listener() as listener:
        follower = connect_to_leader("127.0.0.1", listener.getsockname()[1], token=TOKEN)
        (leader,) = accept_hosts(listener, TOKEN, num_hosts=1)
    with leader, follower:
        yield leader, follower


def test_messages_come_in_order_and_whole(connections: tuple[socket.socket, socket.socket]) -> None:
    leader, follower = End(connections[0], "another host"), End(connections[1], "the first host")
    leader.link.start()
    follower.link.start()
    messages = [b"x", bytes(range(256)) * 4096, b"last"]
    for message in messages:
        leader.link.send(message)
    assert [follower.told.get(timeout=30) for _ in messages] == messages
    leader.link.end()
    assert follower.told.get(timeout=30) == "end"
    assert leader.told.empty()


def test_a_host_that_goes_is_lost(connections: tuple[socket.socket, socket.socket]) -> None:
    leader = End(connections[0], "another host")
    leader.link.start()
    connections[1].close()
    assert leader.told.get(timeout=30).startswith("another host of the worker group is lost: ")


def test_a_host_that_is_silent_is_lost(connections: tuple[socket.socket, socket.socket]) -> None:
    follower = End(connections[1], "the first host", limit_seconds=0.2)
    follower.link.start()
    assert follower.told.get(timeout=30) == "the first host of the worker group is lost: timed out"


def test_who_does_not_know_the_token_is_sent_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found: queue.SimpleQueue[list[socket.socket]] = queue.SimpleQueue()
        accepting = threading.Thread(target=lambda: found.put(accept_hosts(listener, TOKEN, num_hosts=1)))
        accepting.start()
        with connect_to_leader("127.0.0.1", port, token=bytes(TOKEN_BYTES)) as stranger:
            assert stranger.recv(1) == b""
        with connect_to_leader("127.0.0.1", port, token=TOKEN):
            accepting.join(30)
            (connection,) = found.get(timeout=30)
            connection.close()


def test_a_stranger_that_breaks_off_hinders_nobody() -> None:
    with open_listener() as listener:
        port = listener.getsockname()[1]
        stranger = socket.create_connection(("127.0.0.1", port))
        # Closing sends a reset.
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stranger.close()
        with connect_to_leader("127.0.0.1", port, token=TOKEN):
            (connection,) = accept_hosts(listener, TOKEN, num_hosts=1)
            connection.close()


def test_a_first_host_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(
            StartupError, match=f"cannot reach the worker group's first host at 127.0.0.1:{port}"
        ):
            connect_to_leader("127.0.0.1", port, token=TOKEN)
