"""What changed lately, for watchers.

The one rule: one tuple per entry of the log, never one per key, and a bound in bytes. What falls
out is gone: a watcher that is that slow gets `Compacted` and starts over.

It lives in memory only: after a restart it begins where redo begins. A position is one number
(`wire.cursors`): the log index and the place within the entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shardnode.wire import limits
from shardnode.wire.cursors import PLACE_MAX, position_of, split_position
from shardnode.wire.errors import Compacted
from shardnode.wire.kinds import ChangeKind
from shardnode.wire.replies import Changes
from shardnode.wire.requests import Watch

RECENT_BYTES_MAX = 16 << 20
"""A minute of a busy shard, and not a burden for an idle one."""

_ENTRY_OVERHEAD_BYTES = 256


class _Entry(NamedTuple):
    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    version: int
    kinds: ChangeKind | bytes
    keys: Sequence[bytes]
    values: Sequence[bytes | None] | None
    expires_ms: int | Sequence[int]
    size_bytes: int


class RecentChanges:
    """The changes of the last entries."""

    def __init__(self, applied_index: int, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._entries: deque[_Entry] = deque()
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._gone = position_of(applied_index) if applied_index else 0

    @property
    def first_available(self) -> int:
        """Every change of this log index and later ones is still here."""
        return split_position(self._gone)[0] + 1

    def add(
        self,
        index: int,
        version: int,
        kinds: ChangeKind | bytes,
        keys: Sequence[bytes],
        values: Sequence[bytes | None] | None,
        size_bytes: int,
        expires_ms: int | Sequence[int] = 0,
    ) -> None:
        """An entry changed these keys; `kinds` is one for all, or one byte for each, and so is the
        time at which they expire."""
        if not keys:
            return
        assert len(keys) <= PLACE_MAX, "a position has 16 bits for the place within an entry"
        size_bytes += _ENTRY_OVERHEAD_BYTES
        self._entries.append(_Entry(index, version, kinds, keys, values, expires_ms, size_bytes))
        self._size_bytes += size_bytes
        while self._size_bytes > self._bytes_max and len(self._entries) > 1:
            oldest = self._entries.popleft()
            self._size_bytes -= oldest.size_bytes
            self._gone = position_of(oldest.index, len(oldest.keys) - 1)

    def answer(self, ask: Watch, applied_index: int) -> Changes:
        """What a watch gets now; raises `Compacted` when something it asks for is gone."""
        now = position_of(applied_index)
        if ask.after is None:
            return Changes(b"", [], [], [], [], now)
        if ask.after < self._gone:
            raise Compacted(
                f"expected a position from log index {self.first_available} on, found one at"
                f" {split_position(ask.after)[0]}; the changes between are no longer kept: read"
                " the keys again and watch from now",
                first_available=self.first_available,
            )
        page = _Page(ask)
        index, place = split_position(ask.after)
        start = bisect_left(self._entries, index, key=lambda entry: entry.index)
        for number in range(start, len(self._entries)):
            entry = self._entries[number]
            if not page.add(entry, place + 1 if entry.index == index else 0):
                return page.close(page.last)
        return page.close(max(now, ask.after))


class _Page:
    """A reply being filled."""

    def __init__(self, ask: Watch) -> None:
        self._prefix = ask.prefix
        self._count_max = ask.limit or limits.batch_keys_max
        self._bytes_max = ask.page_bytes or limits.scan_page_bytes_max
        self._size_bytes = 0
        self._kinds = bytearray()
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._versions: list[int] = []
        self._positions: list[int] = []
        self._expires_ms: list[int] = []
        self.last = 0

    def add(self, entry: _Entry, first: int) -> bool:
        """The changes of an entry from a place on; False when the page is full before its end."""
        places: Sequence[int] = range(first, len(entry.keys))
        if self._prefix:
            keys, prefix = entry.keys, self._prefix
            places = [place for place in places if keys[place].startswith(prefix)]
        for place in places:
            if len(self._keys) >= self._count_max or self._size_bytes >= self._bytes_max:
                return False
            key = entry.keys[place]
            value = entry.values[place] if entry.values is not None else None
            self._keys.append(key)
            self._values.append(value)
            kinds = entry.kinds
            self._kinds.append(kinds[place] if isinstance(kinds, bytes) else kinds)
            expires_ms = entry.expires_ms
            self._expires_ms.append(
                expires_ms if isinstance(expires_ms, int) else expires_ms[place]
            )
            self._size_bytes += len(key) + len(value or b"")
            self.last = position_of(entry.index, place)
            self._positions.append(self.last)
            self._versions.append(entry.version)
        return True

    def close(self, following: int) -> Changes:
        return Changes(
            bytes(self._kinds),
            self._keys,
            self._values,
            self._versions,
            self._positions,
            following,
            self._expires_ms if any(self._expires_ms) else (),
        )
