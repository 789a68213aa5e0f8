"""The link of fault tests: what it delays, holds back and breaks, seen from both of its ends."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tools.link_proxy import Direction, LinkProxy
from tools.services import running

LIMIT_SECONDS = 10.0
SECONDS_TO_SEE_NOTHING = 0.1
"""How long is looked for bytes that must not come."""


@dataclass(eq=False)
class Echo:
    """A server that sends back what it reads, and keeps it."""

    received: bytearray = field(default_factory=bytearray)
    num_broken: int = 0
    address: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.received += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            self.num_broken += 1
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield echo
    server.close()


@pytest.fixture
async def link(echo: Echo) -> AsyncIterator[LinkProxy]:
    link = LinkProxy(echo.address)
    await link.start()
    yield link
    await asyncio.wait_for(link.stop(), LIMIT_SECONDS)
    assert link.num_open == 0


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            yield reader, writer
    finally:
        writer.close()


async def is_reset(reader: asyncio.StreamReader) -> bool:
    """Read to the end; tell whether it was a break."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionResetError:
        return True
    return False


async def test_bytes_pass_and_both_ends_end_well(link: LinkProxy, echo: Echo) -> None:
    sent = bytes(range(256)) * 4096
    async with connected(link.address) as (reader, writer):
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
    assert (bytes(echo.received), echo.num_broken) == (sent, 0)
    assert link.num_bytes(Direction.UP) == link.num_bytes(Direction.DOWN) == len(sent)
    assert (link.num_connections, link.num_broken) == (1, 0)


async def test_a_delay_holds_each_way_and_not_for_each_chunk(link: LinkProxy) -> None:
    async with connected(link.address) as (reader, writer):
        writer.write(b"-")
        await reader.readexactly(1)
        link.delay(0.2)
        start = time.monotonic()
        for _ in range(20):  # one after the other they would take 8 s
            writer.write(b"x")
            await asyncio.sleep(0.001)
        await reader.readexactly(20)
        assert 0.4 <= time.monotonic() - start < 4.0
        link.delay(0.0, Direction.UP)
        start = time.monotonic()
        writer.write(b"x")
        await reader.readexactly(1)
        assert 0.2 <= time.monotonic() - start < 0.4


@pytest.mark.parametrize("direction", list(Direction))
async def test_a_stall_holds_bytes_back_and_loses_none(
    link: LinkProxy, echo: Echo, direction: Direction
) -> None:
    async with connected(link.address) as (reader, writer):
        link.stall(direction)
        writer.write(b"abc")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), SECONDS_TO_SEE_NOTHING)
        assert bytes(echo.received) == (b"" if direction is Direction.UP else b"abc")
        link.resume()
        assert await reader.readexactly(3) == b"abc"
    assert link.num_connections == 1


async def test_a_cut_resets_both_ends_and_takes_no_new_connection(link: LinkProxy, echo: Echo) -> None:
    async with connected(link.address) as (reader, writer), connected(link.address) as (second, _):
        writer.write(b"abc")
        await reader.readexactly(3)
        link.cut()
        assert await is_reset(reader)
        assert await is_reset(second)
    async with connected(link.address) as (reader, _):
        assert await is_reset(reader)
    link.mend()
    async with connected(link.address) as (reader, writer):
        writer.write(b"def")
        assert await reader.readexactly(3) == b"def"
    assert bytes(echo.received) == b"abcdef"


async def test_a_stalled_link_can_be_cut(link: LinkProxy) -> None:
    async with connected(link.address) as (reader, writer):
        link.stall()
        writer.write(b"abc")
        await asyncio.sleep(0)
        link.cut()
        assert await is_reset(reader)


async def test_a_cut_after_so_many_bytes(link: LinkProxy, echo: Echo) -> None:
    async with connected(link.address) as (reader, writer):
        link.cut_after(5, Direction.UP)
        for data in (b"abc", b"def", b"ghi"):
            writer.write(data)
        await is_reset(reader)
        assert link.num_bytes(Direction.UP) == 5
    assert b"abcde".startswith(bytes(echo.received))
    link.mend()
    async with connected(link.address) as (reader, writer):
        writer.write(b"more than five")
        assert await reader.readexactly(14) == b"more than five"


async def test_a_target_that_is_not_there_is_a_break(echo: Echo) -> None:
    link = LinkProxy("127.0.0.1:9")
    await link.start()
    async with connected(link.address) as (reader, _):
        assert await is_reset(reader)
    await link.stop()
    assert link.num_broken == 1
    assert not echo.received


async def test_new_connections_follow_a_target_that_moves(echo: Echo) -> None:
    link = LinkProxy("127.0.0.1:9")
    await link.start()
    link.lead_to(echo.address)
    async with connected(link.address) as (reader, writer):
        writer.write(b"abc")
        assert await reader.readexactly(3) == b"abc"
    await link.stop()


async def test_a_link_of_its_own_process(echo: Echo) -> None:
    with running("tools.link_proxy", "--target", echo.address, "--delay-ms", "20") as service:
        address = await asyncio.to_thread(service.address)
        async with connected(address) as (reader, writer):
            start = time.monotonic()
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            assert time.monotonic() - start >= 0.04
