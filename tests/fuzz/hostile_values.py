"""Values at the edges of what a protobuf field can hold, by its type.

Knows nothing about which message a field is of: the same hostile values are tried everywhere.
"""

import random
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

LONG = 5000
"""Entries, characters or bytes of what is meant to be long: above every limit of a request's own fields."""
_AROUND_LIMITS = (20, 21, 22, 63, 64, 65, 128, 129, 255, 256, 257, 999, 1000, 1001)
"""Numbers around limits of the contract, and of the model and worker that the tests run."""
_INT32 = (0, 1, -1, 2, *_AROUND_LIMITS, 2**31 - 1, -(2**31))
_UINT32 = (0, 1, 2, *_AROUND_LIMITS, 2**31 - 1, 2**31, 2**32 - 1)
_INT64 = (*_INT32, 2**31, 2**63 - 1, -(2**63))
_UINT64 = (*_UINT32, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.0, 100.0, 100.5, -100.0),
    *(float("nan"), float("inf"), float("-inf"), 1e-45, 3.4028234e38, -3.4028234e38),
)
_STRINGS = (
    *("", " ", "a", "\0", "a\0b", "\x7f", "\r\n", "é", "🙂", "\u202e", "\ufffd", "\ud7ff", "\U0010ffff"),
    *("<|im_end|>", "user", "assistant", "alice/x", "../../etc/passwd", "%s%n{}{{7*7}}", "' OR 1=1 --"),
    *(
        "null",
        "1",
        "[]",
        "{}",
        '{"a": ',
        '{"name": {"name": 1}}',
        '{"messages": 1, "m": []}',
        "NaN",
        '"\\ud800"',
    ),
    *('{"\\ud800": 1}', '{"name": "\\ud800"}', "[" * LONG, '{"a":' * LONG, '{"name": 1e999}', "9" * LONG),
    *("x" * 128, "x" * 129, "x" * 256, "x" * 257, "x" * 1024, "x" * 1025, "🙂" * LONG),
)
_INT32_ARRAYS = (
    (),
    (0,),
    (-1,),
    (1, 2, 3),
    (999,),
    (1000,),
    (2**31 - 1,),
    (-(2**31),),
    (5, 5),
    tuple(range(64)),
)
_BYTES = (
    *(struct.pack(f"<{len(values)}i", *values) for values in _INT32_ARRAYS),
    *(b"\0", b"\1", b"\2", b"\xff", b"\1\1", b"\0\1\2", b"\xff" * 7),
    *(struct.pack("<f", value) for value in _FLOATS),
    bytes(4 * LONG),
)

_F = FieldDescriptor
_EDGES: dict[int, tuple[Any, ...]] = {
    _F.TYPE_BOOL: (False, True),
    _F.TYPE_STRING: _STRINGS,
    _F.TYPE_BYTES: _BYTES,
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), _INT32),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), _UINT32),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), _INT64),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), _UINT64),
    **dict.fromkeys((_F.TYPE_FLOAT, _F.TYPE_DOUBLE), _FLOATS),
}


def edges_of(field: FieldDescriptor) -> tuple[Any, ...]:
    """Return the hostile values of one entry of a field that is no message."""
    if field.type == _F.TYPE_ENUM:
        # Proto3 enums are open: numbers that nobody has defined arrive, too.
        kind: Any = field.enum_type
        return (*kind.values_by_number, -1, 99, 2**31 - 1)
    return _EDGES[field.type]


def repeated_edges(field: FieldDescriptor, rng: random.Random) -> list[list[Any]]:
    """Return lists of hostile values: each alone, several, and very many."""
    edges = edges_of(field)
    short = [edge for edge in edges if not isinstance(edge, (str, bytes)) or len(edge) < 100]
    return [
        [],
        *([edge] for edge in edges),
        rng.sample(short, k=min(len(short), 3)),
        [rng.choice(short)] * 17,
        rng.choices(short, k=LONG),
        [short[-1]] * LONG,
    ]
