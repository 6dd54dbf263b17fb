"""How a value is kept: version and time of expiry, 16 bytes, in front of the bytes of the client.

The one rule: what is kept is never empty, so an empty string stands for "deleted" in a memory
table, and whatever is falsy is not there. Memory and disk hold the same bytes, so a flush copies
them and makes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import add, itemgetter
from struct import Struct
from typing import Any

_HEADER = Struct(">QQ")
HEADER_BYTES = _HEADER.size
_CUT: Callable[[Any], bytes] = itemgetter(slice(HEADER_BYTES, None))

DELETED = b""
"""In a memory table: the key is gone, whatever lies below."""

KEY_OVERHEAD_BYTES = 160
"""What one key costs in memory beside its own bytes and those of its value: measured with
`sys.getsizeof`, two byte strings, the header and a slot of a dict."""

split_header = _HEADER.unpack_from
"""(version, expires_ms) of a kept value."""


def keep_many(version: int, expires_ms: int, values: Sequence[bytes]) -> Iterator[bytes]:
    """Values as they are kept, all with one version and one expiry; loops in C."""
    return map(add, repeat(_HEADER.pack(version, expires_ms)), values)


def keep(version: int, expires_ms: int, value: bytes) -> bytes:
    """One value as it is kept."""
    return _HEADER.pack(version, expires_ms) + value


def value_of(kept: bytes) -> bytes:
    """The client's bytes of a kept value."""
    return kept[HEADER_BYTES:]


def values_of(kept: Sequence[bytes | None]) -> list[bytes | None]:
    """The client's bytes of each kept value; None where there is none."""
    if all(kept):
        return list(map(_CUT, kept))
    return [each[HEADER_BYTES:] if each else None for each in kept]


def version_of(kept: bytes | None) -> int:
    """0 when there is nothing."""
    return int(split_header(kept)[0]) if kept else 0
