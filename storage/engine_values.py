"""How a value is kept: a checksum, its version and its time of expiry, 24 bytes in front of the
bytes of the client.

    checksum = xxh3_64(value, seeded with xxh3_64(key, seeded with xxh3_64(version, expiry)))

The one rule: what is kept is never empty, so an empty string stands for "deleted" in a memory
table, and whatever is falsy is not there. Memory and disk hold the same bytes, so a flush copies
them and makes none; they are the same on every replica, too.

LMDB has no checksums. This one tells, wherever the bytes lie, whether they were written for this
key. It is made once, when a write is applied, by loops in C: about 50 ns for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from struct import Struct
from typing import Any

from xxhash import xxh3_64_digest, xxh3_64_intdigest

_STAMP = Struct(">QQ")
_HEADER = Struct(">8xQQ")
HEADER_BYTES = _HEADER.size
CHECKSUM_BYTES = HEADER_BYTES - _STAMP.size

_Cut = Callable[[Any], bytes]
_CUT_CHECKSUM: _Cut = itemgetter(slice(CHECKSUM_BYTES))
_CUT_STAMP: _Cut = itemgetter(slice(CHECKSUM_BYTES, HEADER_BYTES))
_CUT_VALUE: _Cut = itemgetter(slice(HEADER_BYTES, None))

DELETED = b""
"""In a memory table: the key is gone, whatever lies below."""

KEY_OVERHEAD_BYTES = 168
"""What one key costs in memory beside its own bytes and those of its value: measured with
`sys.getsizeof`, two byte strings, the header and a slot of a dict."""

split_header = _HEADER.unpack_from
"""(version, expires_ms) of a kept value."""


def keep_many(
    version: int, expires_ms: int, keys: Sequence[bytes], values: Sequence[bytes]
) -> Iterator[bytes]:
    """Values of these keys as they are kept, all with one version and one expiry; loops in C."""
    stamp = _STAMP.pack(version, expires_ms)
    seeds = map(xxh3_64_intdigest, keys, repeat(xxh3_64_intdigest(stamp)))
    return map(b"".join, zip(map(xxh3_64_digest, values, seeds), repeat(stamp), values))


def keep(version: int, expires_ms: int, key: bytes, value: bytes) -> bytes:
    """One value as it is kept."""
    return next(keep_many(version, expires_ms, [key], [value]))


def value_of(kept: bytes) -> bytes:
    """The client's bytes of a kept value."""
    return kept[HEADER_BYTES:]


def values_of(kept: Sequence[bytes | None]) -> list[bytes | None]:
    """The client's bytes of each kept value; None where there is none."""
    if all(kept):
        return list(map(_CUT_VALUE, kept))
    return [each[HEADER_BYTES:] if each else None for each in kept]


def version_of(kept: bytes | None) -> int:
    """0 when there is nothing."""
    return int(split_header(kept)[0]) if kept else 0


def are_sound(keys: Sequence[bytes], kept: Sequence[bytes]) -> bool:
    """Whether each of these is what was kept of its key; loops in C."""
    seeds = map(xxh3_64_intdigest, keys, map(xxh3_64_intdigest, map(_CUT_STAMP, kept)))
    expected = map(xxh3_64_digest, map(_CUT_VALUE, kept), seeds)
    return list(expected) == list(map(_CUT_CHECKSUM, kept))
