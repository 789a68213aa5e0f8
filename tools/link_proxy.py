"""A link that is slow, stalls or breaks: a TCP proxy between two services, for fault tests and measurements.

    python -m tools.link_proxy --target 127.0.0.1:50061 [--port 50062] [--delay-ms 5]

Passes bytes on, each after the delay of its direction. Knows nothing about what they mean.
"""

import argparse
import asyncio
import contextlib
import signal
import socket
import struct
from dataclasses import dataclass, field
from enum import Enum

CHUNK_BYTES = 1 << 16
MAX_CHUNKS_UNDER_WAY = 256
"""Of one direction of one connection; more are not read, as by a network that is full."""
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Which way bytes go."""

    UP = "up"
    """From who connected to the target."""
    DOWN = "down"


@dataclass(slots=True)
class _Way:
    """What one direction of all connections does now."""

    delay_seconds: float = 0.0
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    num_bytes: int = 0
    num_bytes_until_cut: int | None = None


class LinkProxy:
    """One listening port that leads to ``target``; steer it from its event loop."""

    def __init__(self, target: str, *, delay_seconds: float = 0.0) -> None:
        """Make a proxy that does not listen yet.

        Args:
            target: host:port of the service behind it.
            delay_seconds: how long each byte is under way, in each direction.
        """
        self.address = ""
        """Where it listens, once started."""
        self.num_connections = 0
        """Connections since the start."""
        self.num_broken = 0
        """Those that one of the two sides broke, or whose target did not answer."""
        self._target = target
        self._ways = {direction: _Way(delay_seconds) for direction in Direction}
        self._is_cut = False
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self.resume()

    @property
    def num_open(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def is_cut(self) -> bool:
        """Tell whether it is cut, and not mended yet."""
        return self._is_cut

    def num_bytes(self, direction: Direction) -> int:
        """Bytes passed on in a direction since the start."""
        return self._ways[direction].num_bytes

    async def start(self, port: int = 0) -> None:
        """Listen; ``address`` tells where."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Break all connections and close the port."""
        assert self._server is not None, "not started"
        self._server.close()
        self._break_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def delay(self, delay_seconds: float, *directions: Direction) -> None:
        """Set how long bytes that come from now on are under way; both directions where none is named."""
        for direction in directions or Direction:
            self._ways[direction].delay_seconds = delay_seconds

    def lead_to(self, target: str) -> None:
        """Lead new connections to another ``host:port``: the service behind it has moved."""
        self._target = target

    def stall(self, *directions: Direction) -> None:
        """Hold all bytes back, as a network that loses every packet; connections stay open."""
        for direction in directions or Direction:
            self._ways[direction].flows.clear()

    def resume(self) -> None:
        """End a stall."""
        for way in self._ways.values():
            way.flows.set()

    def cut(self) -> None:
        """Reset all connections, and each new one at once, until mend()."""
        self._is_cut = True
        for way in self._ways.values():
            way.num_bytes_until_cut = None
        self._break_connections()

    def cut_after(self, num_bytes: int, direction: Direction) -> None:
        """Cut once so many more bytes have passed in a direction, in the middle of a message if need be."""
        assert num_bytes >= 0, num_bytes
        self._ways[direction].num_bytes_until_cut = num_bytes

    def mend(self) -> None:
        """End a cut: connections are taken again."""
        self._is_cut = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end; the server makes a task of it."""
        task, writers, has_ended_well = asyncio.current_task(), [writer], False
        assert task is not None
        self.num_connections += 1
        self._connections[task] = writers
        # Only we cancel it, and Python 3.11's streams take a cancelled task for a fault.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                if not self._is_cut:
                    await self._join(reader, writers)
                    has_ended_well = True
            except* OSError:
                self.num_broken += 1
            finally:
                del self._connections[task]
                for each in writers:
                    each.close() if has_ended_well else _reset(each)

    async def _join(self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]) -> None:
        host, port = self._target.rsplit(":", 1)
        target_reader, target_writer = await asyncio.open_connection(host, int(port))
        writers.append(target_writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._carry(reader, target_writer, Direction.UP))
            group.create_task(self._carry(target_reader, writers[0], Direction.DOWN))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        """Carry one direction of a connection to its end."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS_UNDER_WAY)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(reader, chunks, direction))
            group.create_task(self._give(chunks, writer, direction))

    async def _take(
        self, reader: asyncio.StreamReader, chunks: asyncio.Queue[tuple[float, bytes]], direction: Direction
    ) -> None:
        now, data = asyncio.get_running_loop().time, b"-"
        while data:  # an empty chunk is the end, and is carried too
            data = await reader.read(CHUNK_BYTES)
            await chunks.put((now() + self._ways[direction].delay_seconds, data))

    async def _give(
        self, chunks: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        way, now = self._ways[direction], asyncio.get_running_loop().time
        while True:
            due, data = await chunks.get()
            if (wait_seconds := due - now()) > 0:
                await asyncio.sleep(wait_seconds)
            await way.flows.wait()
            if not data:
                writer.write_eof()
                return
            await self._pass_on(data, writer, way)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter, way: _Way) -> None:
        left = way.num_bytes_until_cut
        writer.write(data if left is None else data[:left])
        way.num_bytes += len(data) if left is None else min(left, len(data))
        await writer.drain()
        if left is None:
            return
        way.num_bytes_until_cut = left - len(data)
        if left <= len(data):
            self.cut()

    def _break_connections(self) -> None:
        for task, writers in self._connections.items():
            for writer in writers:
                _reset(writer)
            task.cancel()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once, and tell the other side that the connection broke."""
    if (sock := writer.get_extra_info("socket")) is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    writer.transport.abort()


async def _run(target: str, port: int, delay_seconds: float) -> None:
    proxy, has_to_stop = LinkProxy(target, delay_seconds=delay_seconds), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, has_to_stop.set)
    await proxy.start(port)
    print(f"link listening on {proxy.address}", flush=True)
    await has_to_stop.wait()
    await proxy.stop()


def main() -> None:
    """Run a link until it is told to stop."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, metavar="HOST:PORT", help="the service behind the link")
    parser.add_argument("--port", type=int, default=0, help="to listen on; 0 picks a free one")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="in each direction")
    arguments = parser.parse_args()
    asyncio.run(_run(arguments.target, arguments.port, arguments.delay_ms / 1e3))


if __name__ == "__main__":
    main()
