"""As much of the protobuf encoding as an execution trace takes: varints, and fields of bytes.

The encoding is described at protobuf.dev/programming-guides/encoding; proto3 leaves out what is 0 or empty.
"""

from __future__ import annotations

from collections.abc import Iterable

VARINT, BYTES = 0, 2


def varint(value: int) -> bytes:
    """Return a whole number in groups of seven bits, the lowest first; a negative one as 64 bits."""
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def number(field: int, value: int, *, always: bool = False) -> bytes:
    """Return a field with a whole number or a truth value.

    Parameters
    ----------
    always : bool
        Write a 0 too, as members of a oneof are.
    """
    return varint(field << 3 | VARINT) + varint(value) if value or always else b""


def content(field: int, value: bytes | str) -> bytes:
    """Return a field with text, bytes or a message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | BYTES) + varint(len(data)) + data


def numbers(field: int, values: Iterable[int]) -> bytes:
    """Return a repeated field of whole numbers, packed."""
    data = b"".join(map(varint, values))
    return content(field, data) if data else b""


def delimited(message: bytes) -> bytes:
    """Return a message with its length before it, as files of many messages have them."""
    return varint(len(message)) + message
