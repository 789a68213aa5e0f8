"""Hostile messages out of the contract's own descriptors: valid protobuf that no honest client sends.

Each is made from an honest message: first one field after the other at each of its edges, then many
fields at random, then what only the wire can say: unknown fields, contradicting members of a oneof,
bytes that are no UTF-8, deep nesting. Knows nothing about services or what they answer.
"""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.hostile_values import edges_of, repeated_edges

_MESSAGE = FieldDescriptor.TYPE_MESSAGE
_MAX_DEPTH = 4
_Path = tuple[FieldDescriptor, ...]
_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = 0, 1, 2, 3, 4, 5


def hostile_messages(honest: Message, count: int, *, seed: int) -> Iterator[bytes]:
    """Give ``count`` hostile relatives of an honest message, always the same ones for a seed."""
    rng = random.Random(seed)
    edges = [(path, value) for path in _paths(honest.DESCRIPTOR, ()) for value in _choices(path[-1], rng)]
    if len(edges) > count // 2:
        edges = rng.sample(edges, count // 2)
    for path, value in edges:
        yield _at_edge(honest, path, value)
    yield from islice(_at_random(honest, rng), count - len(edges))


def random_bytes(count: int, *, seed: int, max_bytes: int = 200) -> Iterator[bytes]:
    """Give ``count`` byte strings that are no message but by chance."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.randbytes(rng.randrange(1, max_bytes))


def _paths(descriptor: Any, path: _Path) -> Iterator[_Path]:
    """Name every field of a message and of the messages in it."""
    for field in descriptor.fields:
        here = (*path, field)
        yield here
        if field.type == _MESSAGE and not _is_map(field) and len(path) < _MAX_DEPTH:
            yield from _paths(field.message_type, here)


def _at_edge(honest: Message, path: _Path, value: Any) -> bytes:
    """Give the honest message with one field at one of its edges."""
    message = _copy(honest)
    holder: Any = message
    for step in path[:-1]:
        holder = getattr(holder, step.name)
        if step.is_repeated:
            holder = holder[0] if len(holder) else holder.add()
    _set(holder, path[-1], value)
    return bytes(message.SerializeToString())


def _at_random(honest: Message, rng: random.Random) -> Iterator[bytes]:
    while True:
        message = _copy(honest)
        _disturb(message, rng, rate=rng.choice((0.02, 0.1, 0.3)))
        data = message.SerializeToString()
        if rng.random() < 0.3:
            data += _wire_tricks(message, rng)
        yield data


def _disturb(message: Any, rng: random.Random, *, rate: float, depth: int = 0) -> None:
    """Set fields to hostile values, each with probability ``rate``."""
    for field in message.DESCRIPTOR.fields:
        if field.type == _MESSAGE and not _is_map(field) and depth < _MAX_DEPTH:
            _disturb_within(message, field, rng, rate=rate, depth=depth)
        elif rng.random() < rate:
            _set(message, field, rng.choice(_choices(field, rng)))


def _disturb_within(
    message: Any, field: FieldDescriptor, rng: random.Random, *, rate: float, depth: int
) -> None:
    if field.is_repeated:
        entries = getattr(message, field.name)
        if rng.random() < rate:
            entries.add()
        for entry in entries:
            _disturb(entry, rng, rate=rate, depth=depth + 1)
    elif message.HasField(field.name) or rng.random() < rate:
        getattr(message, field.name).SetInParent()
        _disturb(getattr(message, field.name), rng, rate=rate, depth=depth + 1)


def _choices(field: FieldDescriptor, rng: random.Random) -> list[Any]:
    """List the values to set a field to."""
    if _is_map(field):
        entry: Any = field.message_type
        keys, values = entry.fields
        if values.type == _MESSAGE:
            return [{}, *({key: None} for key in edges_of(keys))]
        edges = edges_of(keys), edges_of(values)
        pairs = [{key: rng.choice(edges[1])} for key in edges[0]] + [
            {edges[0][1]: value} for value in edges[1]
        ]
        many = [{number: edges[1][0] for number in range(1025)}] if keys.type != keys.TYPE_STRING else []
        return [{}, *pairs, *many]
    if field.type == _MESSAGE:
        return [[_new(field)], [_new(field)] * 3, []] if field.is_repeated else [_new(field)]
    return repeated_edges(field, rng) if field.is_repeated else list(edges_of(field))


def _set(message: Any, field: FieldDescriptor, value: Any) -> None:
    if _is_map(field):
        message.ClearField(field.name)
        entries = getattr(message, field.name)
        for key, entry in value.items():
            if entry is None:
                entries[key].SetInParent()  # a message, which comes to be by being named
            else:
                entries[key] = entry
    elif field.is_repeated:
        message.ClearField(field.name)
        getattr(message, field.name).extend(value)
    elif field.type == _MESSAGE:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


def _wire_tricks(message: Any, rng: random.Random) -> bytes:
    """Give bytes to append to a message, most of which leave it readable."""
    fields = message.DESCRIPTOR.fields
    field = rng.choice(fields) if fields else None
    tricks = [
        _tag(rng.choice((19, 1000, 2**29 - 1)), _VARINT) + b"\xff" * 9 + b"\x01",
        _tag(1000, _LENGTH) + _varint(3) + b"\xff\xfe\xfd",
        _tag(1001, _FIXED64) + bytes(8) + _tag(1002, _FIXED32) + bytes(4),
        _nested_groups(rng.choice((1, 50, 99, 150))),
        _nested_lengths(rng.choice((3, 90, 150)), 1003),
    ]
    if field is not None:
        tricks += [
            _tag(field.number, _LENGTH) + _varint(2) + b"\xc3\x28",  # no UTF-8, no message
            _tag(field.number, _VARINT) + b"\x80\x00",  # a number in more bytes than it needs
            _tag(field.number, _LENGTH) + _varint(2**31),  # longer than the message
            _nested_lengths(rng.choice((3, 150)), field.number),
        ]
    # Where one member of a oneof is set, another follows: the last one counts.
    for oneof in message.DESCRIPTOR.oneofs:
        other = type(message)()
        member = rng.choice(oneof.fields)
        _set(other, member, rng.choice(_choices(member, rng)))
        tricks.append(other.SerializeToString())
    return rng.choice(tricks)


def _nested_groups(depth: int) -> bytes:
    return _tag(1004, _START_GROUP) * depth + _tag(1004, _END_GROUP) * depth


def _nested_lengths(depth: int, number: int) -> bytes:
    data = b""
    for _ in range(depth):
        data = _tag(number, _LENGTH) + _varint(len(data)) + data
    return data


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _is_map(field: FieldDescriptor) -> bool:
    kind: Any = field.message_type
    return field.type == _MESSAGE and bool(kind.GetOptions().map_entry)


def _new(field: FieldDescriptor) -> Any:
    kind: Any = field.message_type
    return kind._concrete_class()


def _copy(message: Message) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
