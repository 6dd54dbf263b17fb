"""The committed state in memory: for tests, and for nodes that forget everything at their end.

The one rule: it keeps the same promises as the files do, and no better ones. `crash` goes back to
the last commit or, as after a power failure, to the one before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardnode.storage.engine_store import Item, time_rows
from shardnode.storage.engine_values import split_header


class _Rows:
    """A dict that knows its keys in order when somebody asks."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = []

    def change(self, changes: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        """Apply changes, None being a removal; what undoes them."""
        undo = {key: self.data.get(key) for key in changes}
        for key, kept in changes.items():
            if kept is None:
                self.data.pop(key, None)
            else:
                self.data[key] = kept
        self._order = None
        return undo

    def take(self, low: bytes, high: bytes | None, count: int, reverse: bool) -> list[Item]:
        order = self.order()
        first = bisect_left(order, low)
        last = len(order) if high is None else max(first, bisect_left(order, high))
        keys = order[max(first, last - count) : last] if reverse else order[first:last][:count]
        return [(key, self.data[key]) for key in (reversed(keys) if reverse else keys)]

    def order(self) -> list[bytes]:
        if self._order is None:
            self._order = sorted(self.data)
        return self._order


@dataclass(slots=True)
class _Changes:
    """A transaction, or what undoes one."""

    index: int = 0
    keys: dict[bytes, bytes | None] = field(default_factory=dict)
    times: dict[bytes, bytes | None] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)


class DictStore:
    """Dicts, and how to undo the last commit."""

    def __init__(self) -> None:
        self.index = 0
        self.durable_index = 0
        self._keys = _Rows()
        self._times = _Rows()
        self._blobs: dict[str, bytes] = {}
        self._txn: _Changes | None = None
        self._undo: _Changes | None = None

    def crash(self, *, power: bool) -> None:
        """Forget what was not committed; without power, the last commit too."""
        self._txn = None
        undo, self._undo = self._undo, None
        if power and undo is not None:
            self._keys.change(undo.keys)
            self._times.change(undo.times)
            self._blobs = undo.blobs
            self.index = undo.index
        self.durable_index = self.index

    def blob(self, name: str) -> bytes:
        return self._blobs.get(name, b"")

    def get(self, key: bytes) -> bytes | None:
        return self._keys.data.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._keys.data.get, keys))

    def take(self, low: bytes, high: bytes | None, count: int, reverse: bool) -> list[Item]:
        return self._keys.take(low, high, count, reverse)

    def times(self, low: bytes, high: bytes, count: int) -> list[Item]:
        return self._times.take(low, high, count, reverse=False)

    def pin(self, count: int) -> Iterator[list[Item]]:
        items = self._keys.take(b"", None, len(self._keys.data), reverse=False)
        return (items[start : start + count] for start in range(0, len(items), count))

    def begin(self) -> None:
        assert self._txn is None, "one transaction at a time"
        self._txn = _Changes()

    def put(self, items: Iterable[Item]) -> None:
        self._open.keys.update(items)

    def remove(self, keys: Iterable[bytes]) -> None:
        self._open.keys.update(dict.fromkeys(keys))

    def put_times(self, rows: Iterable[Item]) -> None:
        self._open.times.update(rows)

    def remove_times(self, rows: Iterable[bytes]) -> None:
        self._open.times.update(dict.fromkeys(rows))

    def commit(self, index: int, blobs: Mapping[str, bytes], *, wait: bool = True) -> bool:  # noqa: ARG002
        txn, self._txn = self._open, None
        self._undo = _Changes(
            self.index,
            self._keys.change(txn.keys),
            self._times.change(txn.times),
            self._blobs,
        )
        self._blobs = {**self._blobs, **blobs}
        self.durable_index, self.index = self.index, index
        return True

    def abort(self) -> None:
        self._txn = None

    def grow(self) -> bool:
        return False

    def replace(
        self, index: int, blobs: Mapping[str, bytes], batches: Iterable[Sequence[Item]]
    ) -> None:
        keys, times = _Rows(), _Rows()
        for batch in batches:
            keys.change(dict(batch))
            for key, kept in batch:
                version, expires_ms = split_header(kept)
                if expires_ms:
                    times.change(dict(time_rows(expires_ms, version, [key])))
        self._keys, self._times, self._blobs = keys, times, dict(blobs)
        self._txn = self._undo = None
        self.index = self.durable_index = index

    def close(self) -> None:
        self._txn = None

    @property
    def _open(self) -> _Changes:
        assert self._txn is not None, "begin first"
        return self._txn
