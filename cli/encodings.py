"""Keys and values as words and as JSON, and back.

The one rule: bytes survive. An argument's bytes are taken as the shell gave them, whatever they
are; in JSON, bytes that are no UTF-8 become {"base64": "…"} and are read back from it.
"""

from __future__ import annotations

import os
import sys
from base64 import b64decode, b64encode
from binascii import unhexlify

import click

STDIN = "-"
_CHUNK_BYTES = 1 << 20


def decode(text: bytes, encoding: str) -> bytes:
    """The bytes that a word or the standard input stands for."""
    if encoding == "utf8":
        return text
    try:
        packed = b"".join(text.split())
        return unhexlify(packed) if encoding == "hex" else b64decode(packed, validate=True)
    except ValueError as error:
        shown = repr(text[:40])[1:]
        raise click.UsageError(f"expected {encoding}, found {shown}: {error}") from None


def encode(data: bytes, encoding: str) -> bytes:
    """The inverse, for output that is not JSON."""
    if encoding == "hex":
        return data.hex().encode()
    return b64encode(data) if encoding == "base64" else data


def argument(word: str, encoding: str) -> bytes:
    """The bytes of a word of the command line, which Python has decoded in a way of its own."""
    return decode(os.fsencode(word), encoding)


def value_argument(word: str, encoding: str) -> bytes:
    """… of a VALUE, which is read from the standard input if it is a dash."""
    if word != STDIN:
        return argument(word, encoding)
    return decode(read_stdin(), encoding)


def read_stdin() -> bytes:
    """All of the standard input, or enough of it to be refused as too large."""
    from shardnode.wire.limits import value_bytes_max

    source = sys.stdin.buffer if sys.stdin is not None else None
    if source is None:
        raise click.UsageError("expected a value on stdin, found stdin closed")
    parts: list[bytes] = []
    room = 4 * value_bytes_max  # in hex a value takes twice its size, and line ends come on top
    while room > 0 and (part := source.read(min(room, _CHUNK_BYTES))):
        parts.append(part)
        room -= len(part)
    return b"".join(parts)


def to_json(data: bytes, encoding: str = "utf8") -> str | dict[str, str]:
    """Bytes in JSON: text where they are UTF-8, or in the encoding that was asked for."""
    if encoding != "utf8":
        return encode(data, encoding).decode()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def from_json(value: object, encoding: str = "utf8") -> bytes:
    """The inverse; raises a `ValueError` that says what was expected."""
    if isinstance(value, str):
        if encoding == "utf8":
            return value.encode()
        return unhexlify(value) if encoding == "hex" else b64decode(value, validate=True)
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return b64decode(value["base64"], validate=True)
    raise ValueError('expected text or {"base64": "…"}')


def printable(data: bytes) -> str:
    """Bytes on one line of a terminal: nothing in them moves the cursor or ends the line."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
