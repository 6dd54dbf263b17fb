"""The key-value engine: memory tables in front of a store that commits now and then.

The one rule: a read sees the table being written, then the one being flushed, then the store; so
a flush, done in slices between requests, changes nothing that anybody can see.

    engine = LmdbEngine("data/shard-0/kv")
    engine.put_many(keys, keep_many(version, expires_ms, keys, values), size_bytes)
    engine.begin_flush(index, blobs)            # from here on writes go to a fresh table
    while not engine.flush_slice(2_000): ...    # serve others meanwhile
    while not engine.commit_flush(wait=False): ...    # one fsync, meanwhile

A flush that fails (`NoSpace`) has lost nothing: what it was to write is still in its table, and
the next `flush_slice` begins again. A crash returns to the last commit.

Where to look:

    engine_values   how a value is kept: checksum, version, expiry, bytes
    engine_table    the memory table and its lazily sorted keys
    engine_store    what lies below, as a protocol, and the options
    engine_lmdb     … in files; with engine_blobs and engine_errors
    engine_memory   … in memory
    engine_merge    one ordered view over all of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Protocol

from shardnode.storage.engine_lmdb import LmdbStore
from shardnode.storage.engine_memory import DictStore
from shardnode.storage.engine_merge import merged
from shardnode.storage.engine_store import (
    EngineOptions,
    Item,
    MapFull,
    Store,
    split_time_row,
    time_row,
    time_rows,
)
from shardnode.storage.engine_table import MemoryTable
from shardnode.storage.engine_values import DELETED, KEY_OVERHEAD_BYTES, version_of
from shardnode.storage.errors import NoSpace

__all__ = ["Engine", "EngineOptions", "Item", "LmdbEngine", "MemoryEngine", "open_engine"]

_SORT_KEYS = 16_384
"""Keys sorted in one slice: about 10 ms."""

_PIN_KEYS = 1_024


class Engine(Protocol):
    """Keys and what is kept of them, named blobs, and the log index they reflect."""

    @property
    def index(self) -> int:
        """The log index of the last commit."""

    @property
    def durable_index(self) -> int:
        """The log index that even a power failure leaves."""

    @property
    def wants_flush(self) -> bool:
        """The memory table has reached its size."""

    @property
    def flushing(self) -> bool:
        """A flush has begun and is not committed."""

    @property
    def memory_bytes(self) -> int:
        """About what the memory tables take."""

    def blob(self, name: str) -> bytes:
        """A blob of the last commit; empty when there is none."""

    def get(self, key: bytes) -> bytes | None:
        """What is kept of a key; falsy when it is not there."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept of each key; falsy for those that are not there."""

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool) -> Iterator[list[Item]]:
        """What is there of low ≤ key < high, in order, in lists that grow. To be used at once."""

    def put_many(self, keys: Sequence[bytes], kept: Iterable[bytes], size_bytes: int) -> None:
        """Set keys. `size_bytes` is about what keys and values have together."""

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Delete keys, also those that are not there."""

    def expire_later(self, expires_ms: int, version: int, keys: Sequence[bytes]) -> None:
        """Remember when keys are due; `due` tells."""

    def due(self, stamp_ms: int, limit: int) -> tuple[list[bytes], list[int]]:
        """Keys, and their versions, whose time has come by then. Deletes nothing."""

    def begin_flush(self, index: int, blobs: Mapping[str, bytes]) -> None:
        """All that was written so far is to become durable, with the blobs, as of `index`."""

    def flush_slice(self, keys_max: int) -> bool:
        """Write some more; True when all is written and only the commit is left."""

    def commit_flush(self, *, wait: bool = True) -> bool:
        """Make it durable; True when it is. Without `wait`: ask again until it is."""

    def pin(self) -> Iterator[list[Item]]:
        """All items of the last commit in order, whatever is written meanwhile."""

    def replace(
        self, index: int, blobs: Mapping[str, bytes], batches: Iterable[Sequence[Item]]
    ) -> None:
        """Let sorted items and blobs take the place of everything, durably and at once."""

    def close(self) -> None:
        """Let go of files. What was not committed is gone."""


_END = object()


class _LayeredEngine:
    """Tables over a store; the two engines differ in the store alone."""

    def __init__(self, store: Store, options: EngineOptions) -> None:
        self._store = store
        self._options = options
        self._forget_tables()

    def _forget_tables(self) -> None:
        self._active = MemoryTable()
        self._frozen: MemoryTable | None = None
        self._target: tuple[int, Mapping[str, bytes]] = (0, {})
        self._steps: Iterator[None] | None = None
        self._written = False
        self._slice_keys = self._options.slice_keys
        self._times_done = b""

    @property
    def index(self) -> int:
        return self._store.index

    @property
    def durable_index(self) -> int:
        return self._store.durable_index

    @property
    def wants_flush(self) -> bool:
        return self._active.size_bytes >= self._options.table_bytes

    @property
    def flushing(self) -> bool:
        return self._frozen is not None

    @property
    def memory_bytes(self) -> int:
        return self._active.size_bytes + (self._frozen.size_bytes if self._frozen else 0)

    def blob(self, name: str) -> bytes:
        return self._store.blob(name)

    # -- reading ------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        found = self._active.data.get(key)
        if found is None and self._frozen is not None:
            found = self._frozen.data.get(key)
        return self._store.get(key) if found is None else found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = self._active.get_many(keys)
        if None not in found:
            return found
        if self._frozen is not None:
            _fill_gaps(found, keys, self._frozen.get_many)
        _fill_gaps(found, keys, self._store.get_many)
        return found

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool) -> Iterator[list[Item]]:
        return merged(self._store, self._tables(), low, high, reverse)

    def _tables(self) -> list[MemoryTable]:
        """Oldest first: what comes later hides what came before."""
        tables = [self._active] if self._frozen is None else [self._frozen, self._active]
        return [table for table in tables if table.data]

    # -- writing ------------------------------------------------------------------------------

    def put_many(self, keys: Sequence[bytes], kept: Iterable[bytes], size_bytes: int) -> None:
        self._active.update(keys, kept, size_bytes + KEY_OVERHEAD_BYTES * len(keys))

    def delete_many(self, keys: Sequence[bytes]) -> None:
        size_bytes = sum(map(len, keys)) + KEY_OVERHEAD_BYTES * len(keys)
        self._active.data.update(zip(keys, repeat(DELETED)))
        self._active.size_bytes += size_bytes

    # -- times to live ------------------------------------------------------------------------

    def expire_later(self, expires_ms: int, version: int, keys: Sequence[bytes]) -> None:
        self._active.expire_later(expires_ms, version, keys)

    def due(self, stamp_ms: int, limit: int) -> tuple[list[bytes], list[int]]:
        found: dict[bytes, int] = {}
        self._due_in_store(stamp_ms, limit, found)
        for table in filter(None, (self._frozen, self._active)):
            table.ripen(stamp_ms)
            self._due_in_table(table, limit, found)
        due = list(found)[:limit]
        return due, [found[key] for key in due]

    def _due_in_table(self, table: MemoryTable, limit: int, found: dict[bytes, int]) -> None:
        """Requests all of whose keys have changed since are forgotten."""
        rest = iter(table.ripe)
        kept = []
        for batch in rest:
            _, version, keys = batch
            live = [key for key in keys if version_of(self.get(key)) == version]
            if live:
                kept.append(batch)
                found.update(zip(live, repeat(version)))
                if len(found) >= limit:
                    break
        table.ripe = [*kept, *rest]

    def _due_in_store(self, stamp_ms: int, limit: int, found: dict[bytes, int]) -> None:
        """Rows whose key has changed since are passed over, and removed by the next flush."""
        high = time_row(stamp_ms + 1, b"")
        passing = True
        for row in self._store.times(self._times_done, high, 2 * limit):
            key, version = split_time_row(row)
            if version_of(self.get(key)) == version:
                found[key] = version
                passing = False
            elif passing:
                self._times_done = row[0] + b"\0"

    # -- flushing -----------------------------------------------------------------------------

    def begin_flush(self, index: int, blobs: Mapping[str, bytes]) -> None:
        assert self._frozen is None, "one flush at a time"
        self._frozen, self._active = self._active, MemoryTable()
        self._target = (index, blobs)
        self._restart()

    def flush_slice(self, keys_max: int) -> bool:
        assert self._frozen is not None, "begin_flush first"
        self._slice_keys = keys_max
        try:
            if self._steps is None:
                self._steps = self._write(self._frozen)
            self._written = next(self._steps, _END) is _END
        except NoSpace as error:
            self._no_space(error)
        except BaseException:
            self._store.abort()
            self._restart()
            raise
        return self._written

    def commit_flush(self, *, wait: bool = True) -> bool:
        assert self._written, "flush_slice until it is True"
        try:
            if not self._store.commit(*self._target, wait=wait):
                return False
        except NoSpace as error:
            self._no_space(error)
            while not self.flush_slice(self._slice_keys):
                pass
            return self.commit_flush(wait=wait)
        except BaseException:
            self._restart()
            raise
        self._frozen = None
        self._times_done = b""
        self._restart()
        return True

    def _restart(self) -> None:
        self._steps = None
        self._written = False

    def _no_space(self, error: NoSpace) -> None:
        """Begin again in a larger map, or say that there is no space."""
        self._store.abort()
        self._restart()
        if not (isinstance(error, MapFull) and self._store.grow()):
            raise error

    def _write(self, table: MemoryTable) -> Iterator[None]:
        """One transaction, in slices."""
        while table.sort_some(_SORT_KEYS):
            yield
        store = self._store
        store.begin()
        get = table.data.__getitem__
        for keys in table.in_order(self._slice_keys):
            kept = list(map(get, keys))
            if all(kept):
                store.put(zip(keys, kept, strict=True))
            else:
                store.put([item for item in zip(keys, kept, strict=True) if item[1]])
                store.remove([key for key, each in zip(keys, kept, strict=True) if not each])
            yield
        yield from self._write_times(table)

    def _write_times(self, table: MemoryTable) -> Iterator[None]:
        """Rows that `due` has passed go, those of this table come."""
        store, low, done = self._store, b"", self._times_done
        while done and (gone := store.times(low, done, self._slice_keys)):
            store.remove_times([row for row, _ in gone])
            low = gone[-1][0] + b"\0"
            yield
        rows: list[Item] = []
        for expires_ms, version, keys in [*table.ripe, *table.expiring]:
            rows += time_rows(expires_ms, version, keys)
            if len(rows) >= self._slice_keys:
                store.put_times(rows)
                rows = []
                yield
        store.put_times(rows)

    # -- the whole ----------------------------------------------------------------------------

    def pin(self) -> Iterator[list[Item]]:
        return self._store.pin(_PIN_KEYS)

    def replace(
        self, index: int, blobs: Mapping[str, bytes], batches: Iterable[Sequence[Item]]
    ) -> None:
        self._store.abort()
        self._restart()
        self._store.replace(index, blobs, batches)
        self._forget_tables()

    def close(self) -> None:
        self._store.close()
        self._forget_tables()


class LmdbEngine(_LayeredEngine):
    """An engine whose store is LMDB in a directory, made when it is missing."""

    def __init__(self, directory: str, options: EngineOptions | None = None) -> None:
        options = options or EngineOptions()
        super().__init__(LmdbStore(directory, options), options)


class MemoryEngine(_LayeredEngine):
    """An engine without files."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self._dicts = DictStore()
        super().__init__(self._dicts, options or EngineOptions())

    def crash(self, *, power: bool = False) -> None:
        """Back to the last commit; when the power failed, to the one before it."""
        self._forget_tables()
        self._dicts.crash(power=power)


def open_engine(kind: str, directory: str, options: EngineOptions | None = None) -> Engine:
    """The engine that the configuration names: "lmdb" or "memory"."""
    if kind == "memory":
        return MemoryEngine(options)
    assert kind == "lmdb", f"no engine is called {kind}"
    return LmdbEngine(directory, options)


def _fill_gaps(
    found: list[bytes | None],
    keys: Sequence[bytes],
    get_many: Callable[[Sequence[bytes]], list[bytes | None]],
) -> None:
    """Ask the next layer for what is None; a deleted key is not, it is empty."""
    gaps = found.count(None)
    if gaps == len(found):
        found[:] = get_many(keys)
    elif gaps:
        places = [place for place, kept in enumerate(found) if kept is None]
        below = get_many([keys[place] for place in places])
        for place, kept in zip(places, below, strict=True):
            found[place] = kept
