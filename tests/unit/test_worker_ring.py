"""The ring that hands messages to the other ranks: order, wrap, messages larger than it, slow readers."""

import random

import pytest

from worker_svc.tp.ring import RingReader, RingWriter, ring_bytes


def make_ring(capacity_bytes: int, num_readers: int) -> tuple[RingWriter, list[RingReader]]:
    memory = memoryview(bytearray(ring_bytes(capacity_bytes, num_readers=num_readers)))
    readers = [RingReader(memory, num_readers, index=index) for index in range(num_readers)]
    return RingWriter(memory, num_readers), readers


def test_each_reader_gets_each_message_once() -> None:
    writer, readers = make_ring(64, 3)
    assert all(reader.read() is None for reader in readers)
    assert (writer.write(b"one"), writer.write(b"two")) == (3, 3)
    for reader in readers:
        assert [reader.read() for _ in range(3)] == [b"one", b"two", None]


def test_a_slow_reader_holds_the_writer_and_loses_nothing() -> None:
    writer, (fast, slow) = make_ring(64, 2)
    messages = [bytes([number]) * 8 for number in range(6)]
    for message in messages[:4]:
        assert writer.write(message) == 8
    assert [fast.read() for _ in range(5)] == [*messages[:4], None]
    assert writer.write(messages[4]) == 0, "one has not read yet"
    assert slow.read() == messages[0]
    assert writer.write(messages[4]) == 8
    assert writer.write(messages[5]) == 0
    assert [slow.read() for _ in range(5)] == [*messages[1:5], None]
    assert [fast.read() for _ in range(2)] == [messages[4], None]


def test_a_message_larger_than_the_ring_comes_whole() -> None:
    writer, (reader,) = make_ring(32, 1)
    message, num_written, num_tries = bytes(range(200)), 0, 0
    while num_written < len(message):
        num_written = writer.write(message, num_written)
        found = reader.read()
        assert (found is None) == (num_written < len(message))
        num_tries += 1
    assert found == message
    assert num_tries == 9  # 24 bytes each


def test_a_message_that_meets_the_end_goes_on_at_the_begin() -> None:
    writer, (reader,) = make_ring(64, 1)
    for message in (b"a" * 33, b"b" * 33, b"c" * 8, b"d" * 41):
        assert writer.write(message) == len(message)
        assert reader.read() == message
        assert reader.read() is None


@pytest.mark.parametrize("capacity_bytes", [16, 24, 64, 1024])
def test_any_messages_in_any_order_of_turns(capacity_bytes: int) -> None:
    writer, readers = make_ring(capacity_bytes, 2)
    turns = random.Random(capacity_bytes)
    messages = [turns.randbytes(turns.randrange(1, 100)) for _ in range(300)]
    found: tuple[list[bytes], list[bytes]] = ([], [])
    index = num_written = 0
    while min(map(len, found)) < len(messages):
        turn = turns.randrange(3)
        if turn == 2 and index < len(messages):
            num_written = writer.write(messages[index], num_written)
            if num_written == len(messages[index]):
                index, num_written = index + 1, 0
        elif turn < 2 and (message := readers[turn].read()) is not None:
            found[turn].append(message)
    assert found == (messages, messages)
