"""What lies below the memory tables: the state as of the last commit.

The one rule: a commit is all or nothing. It brings keys, the index of times to live, named blobs
and the index of the log that they reflect, together; a crash shows the last one, or, when the
power failed, the one before it.

`LmdbStore` keeps it in files, `DictStore` in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add
from struct import Struct
from typing import Protocol

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from shardnode.storage.errors import NoSpace

Item = tuple[bytes, bytes]
"""A key and what is kept of it; see `engine_values`."""

_TIME = Struct(">Q")
TIME_BYTES = _TIME.size


class MapFull(NoSpace):
    """The store's own bound is reached. `grow` may raise it."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Bounds of one engine."""

    table_bytes: int = 64 << 20
    """The memory table is to be flushed at this size. It also bounds the redo after a crash."""

    slice_keys: int = 2_000
    """Keys that one slice of a flush writes: about 5 ms."""

    map_bytes: int = 64 << 30
    """Address space for the files, not disk space: the files grow as they fill. Doubled when it
    is used up."""

    map_bytes_max: int = 16 << 40


class Store(Protocol):
    """Read at any time; written by one transaction at a time, which readers do not see."""

    @property
    def index(self) -> int:
        """The log index of the last commit."""

    @property
    def durable_index(self) -> int:
        """The log index that even a power failure leaves."""

    def blob(self, name: str) -> bytes:
        """A named blob; empty when there is none."""

    def get(self, key: bytes) -> bytes | None:
        """What is kept of a key."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept of each key."""

    def take(self, low: bytes, high: bytes | None, count: int, reverse: bool) -> list[Item]:
        """The first `count` items of a range, low ≤ key < high, in order."""

    def times(self, low: bytes, high: bytes, count: int) -> list[Item]:
        """Rows of the index of times in order, as `time_rows` made them."""

    def begin(self) -> None:
        """Open the transaction."""

    def put(self, items: Iterable[Item]) -> None:
        """Set keys; quicker when they are in order."""

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove keys, also those that are not there."""

    def put_times(self, rows: Iterable[Item]) -> None:
        """Add rows to the index of times."""

    def remove_times(self, rows: Iterable[bytes]) -> None:
        """Remove rows of the index of times."""

    def commit(self, index: int, blobs: Mapping[str, bytes], *, wait: bool = True) -> bool:
        """Make it all durable and visible; True when that is done. Without `wait` it may go on
        behind the caller, who asks again. After an error the transaction is gone."""

    def abort(self) -> None:
        """Forget the transaction, if there is one."""

    def grow(self) -> bool:
        """After `MapFull`: whether there is more room now."""

    def pin(self, count: int) -> Iterator[list[Item]]:
        """All items as of now in order, `count` at a time, whatever is committed meanwhile."""

    def replace(
        self, index: int, blobs: Mapping[str, bytes], batches: Iterable[Sequence[Item]]
    ) -> None:
        """Let other content take the place of everything, durably and at once."""

    def close(self) -> None:
        """Let go of files. What was not committed is gone."""


def time_row(expires_ms: int, key: bytes) -> bytes:
    """Rows of the index of times are in the order of the time."""
    return _TIME.pack(expires_ms) + key


def time_rows(expires_ms: int, version: int, keys: Sequence[bytes]) -> list[Item]:
    """The rows of keys that expire together, in order: time and key → version and checksum."""
    rows: list[bytes] = sorted(map(add, repeat(_TIME.pack(expires_ms)), keys))
    packed = _TIME.pack(version)
    checksums = map(xxh3_64_digest, rows, repeat(xxh3_64_intdigest(packed)))
    return list(zip(rows, map(add, repeat(packed), checksums), strict=True))


def split_time_row(row: Item) -> tuple[bytes, int]:
    """(key, version) of a row."""
    return row[0][TIME_BYTES:], _TIME.unpack_from(row[1])[0]


def are_sound_times(rows: Sequence[bytes], values: Sequence[bytes]) -> bool:
    """Whether `time_rows` made these."""
    seeds = [xxh3_64_intdigest(value[:TIME_BYTES]) for value in values]
    return list(map(xxh3_64_digest, rows, seeds)) == [value[TIME_BYTES:] for value in values]
