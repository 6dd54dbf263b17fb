"""The committed state in LMDB files.

    kv/00000000000000000001/data.mdb      one environment; the highest number is in force
    kv/00000000000000000002.tmp/          being built from a snapshot; swept at open

The one rule: `sync=True, metasync=False`, never `writemap`. A power failure can undo the last
commit and nothing else; the commit before it is what `durable_index` names. At open the files are
synced, so what is found there counts as durable.

Reads use one transaction that is renewed at each commit. Pinned ones are counted, because the map
cannot grow under them. LMDB has no checksums, so what is read is compared with ours: a wrong value
is never given out, it is `KeysCorrupt`.

A transaction that writes belongs to one thread, a helper. The loop waits for it while it fills a
slice, so the two never compete for the interpreter; the commit, hundreds of megabytes to write and
sync and all of it outside the interpreter, is what the loop need not wait for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import islice
from struct import Struct
from typing import Any

import lmdb

from shardnode.storage.engine_blobs import INDEX, seal, unseal
from shardnode.storage.engine_errors import damaged, translated, unsound
from shardnode.storage.engine_store import (
    EngineOptions,
    Item,
    are_sound_times,
    time_rows,
)
from shardnode.storage.engine_values import are_sound, split_header
from shardnode.storage.files import RealFiles
from shardnode.storage.publish import TEMPORARY, publish_dir

_INDEX = Struct(">Q")
_GENERATION = re.compile(r"\d{20}")
_DATABASES = (b"keys", b"times", b"blobs")

commit_hook: Callable[[str], None] | None = None
"""Told "before" and "after" each commit; only `failpoints.py` sets it."""


class _Environment:
    """An open LMDB environment with its three databases."""

    def __init__(self, path: str, map_bytes: int) -> None:
        self.path = path
        with translated(path, opening=True):
            self.env = lmdb.open(
                path,
                map_size=map_bytes,
                max_dbs=len(_DATABASES),
                sync=True,
                metasync=False,
                writemap=False,
                readahead=False,  # keys are random; a scan reads pages in the order of splits
            )
            self.env.reader_check()
            self.keys, self.times, self.blobs = map(self.env.open_db, _DATABASES)
            self.env.sync(True)

    def write(self) -> Any:
        return self.env.begin(db=self.keys, write=True)

    def read(self) -> Any:
        return self.env.begin(db=self.keys)

    def finish(self, txn: Any, index: int, blobs: Mapping[str, bytes]) -> None:
        """The last writes of a transaction, and its commit."""
        for name, blob in blobs.items():
            txn.put(name.encode(), seal(name, blob), db=self.blobs)
        txn.put(INDEX.encode(), seal(INDEX, _INDEX.pack(index)), db=self.blobs)
        txn.commit()

    def index(self, txn: Any) -> int:
        found = self.blob(txn, INDEX)
        return int(_INDEX.unpack(found)[0]) if found else 0

    def blob(self, txn: Any, name: str) -> bytes:
        return unseal(name, txn.get(name.encode(), db=self.blobs), self.path)


class LmdbReader:
    """The last commit of an environment that another process may have open; nothing is changed."""

    def __init__(self, directory: str, *, lock: bool = True) -> None:
        """`lock=False`: nobody has it open, nor will, and the directory stays as it is."""
        names = [name for name in RealFiles(directory).listdir("") if _GENERATION.fullmatch(name)]
        self._path = path = f"{directory}/{max(names)}"
        with translated(path, opening=True):
            self._env = lmdb.open(
                path, max_dbs=len(_DATABASES), readonly=True, readahead=True, lock=lock
            )
            self._keys, _, self._blobs = (
                self._env.open_db(name, create=False) for name in _DATABASES
            )
            self._txn = self._env.begin(db=self._keys)

    def blob(self, name: str) -> bytes:
        return unseal(name, self._txn.get(name.encode(), db=self._blobs), self._path)

    def batches(
        self, count: int, low: bytes = b"", high: bytes | None = None
    ) -> Iterator[list[Item]]:
        """The items of low ≤ key < high, in order."""
        return _batches(self._txn, count, self._path, low, high)

    def close(self) -> None:
        self._txn.abort()
        self._env.close()


class LmdbStore:
    """The environment in a directory of the operating system, made when it is missing."""

    def __init__(self, directory: str, options: EngineOptions) -> None:
        self._files = RealFiles(directory)
        self._directory = directory
        self._options = options
        self._map_bytes = options.map_bytes
        self._pins = 0
        self.index = self.durable_index = 0
        self._txn: Any = None
        self._committing: Future[None] | None = None
        self._helper = ThreadPoolExecutor(1, "flush")
        generation = self._sweep()
        self._open(generation)

    # -- reading ------------------------------------------------------------------------------

    def blob(self, name: str) -> bytes:
        with translated(self._directory, opening=True):
            return self._environment.blob(self._read, name)

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._get(key)
        except lmdb.Error as error:
            raise damaged(self._directory, error) from error
        if found is not None:
            _check([key], [found], self._directory)
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            found: list[bytes | None] = list(map(self._get, keys))
        except lmdb.Error as error:
            raise damaged(self._directory, error) from error
        there = keys
        if None in found:
            there = [key for key, kept in zip(keys, found, strict=True) if kept is not None]
        _check(there, list(filter(None, found)), self._directory)
        return found

    def take(self, low: bytes, high: bytes | None, count: int, reverse: bool) -> list[Item]:
        with translated(self._directory), self._read.cursor() as cursor:
            return _checked(_walk(cursor, low, high, count, reverse), self._directory)

    def times(self, low: bytes, high: bytes, count: int) -> list[Item]:
        with translated(self._directory), self._read.cursor(self._environment.times) as cursor:
            rows = _walk(cursor, low, high, count, reverse=False)
        if not are_sound_times([row[0] for row in rows], [row[1] for row in rows]):
            raise unsound(self._directory, "the index of times to live")
        return rows

    def pin(self, count: int) -> Iterator[list[Item]]:
        # Not a generator itself: the state is pinned at the call, not at the first item.
        self._pins += 1
        return self._pinned(self._environment.read(), count)

    def _pinned(self, txn: Any, count: int) -> Iterator[list[Item]]:
        try:
            yield from _batches(txn, count, self._directory)
        finally:
            txn.abort()
            self._pins -= 1

    # -- writing ------------------------------------------------------------------------------

    def begin(self) -> None:
        assert self._txn is None, "one transaction at a time"
        assert self._committing is None, "one transaction at a time"
        with translated(self._directory):
            self._txn = self._in_helper(self._environment.write)

    def put(self, items: Iterable[Item]) -> None:
        with translated(self._directory):
            self._in_helper(_put, self._txn, self._environment.keys, items)

    def remove(self, keys: Iterable[bytes]) -> None:
        with translated(self._directory):
            self._in_helper(_remove, self._txn, self._environment.keys, keys)

    def put_times(self, rows: Iterable[Item]) -> None:
        with translated(self._directory):
            self._in_helper(_put, self._txn, self._environment.times, rows)

    def remove_times(self, rows: Iterable[bytes]) -> None:
        with translated(self._directory):
            self._in_helper(_remove, self._txn, self._environment.times, rows)

    def commit(self, index: int, blobs: Mapping[str, bytes], *, wait: bool = True) -> bool:
        if self._committing is None:
            txn, self._txn = self._txn, None
            self._committing = self._helper.submit(_commit, self._environment, txn, index, blobs)
        if not wait and not self._committing.done():
            return False
        committing, self._committing = self._committing, None
        with translated(self._directory, committing=True):
            committing.result()
        self.durable_index, self.index = self.index, index
        self._renew()
        return True

    def abort(self) -> None:
        if self._committing is not None:
            wait_for([self._committing])  # too late to stop it; what came of it does not matter
            self._committing = None
        if self._txn is not None:
            self._in_helper(self._txn.abort)
            self._txn = None

    def _in_helper(self, work: Callable[..., Any], *args: Any) -> Any:
        return self._helper.submit(work, *args).result()

    def grow(self) -> bool:
        if self._pins or self._map_bytes >= self._options.map_bytes_max:
            return False
        assert self._txn is None, "the map must not move under a transaction"
        self._map_bytes = min(2 * self._map_bytes, self._options.map_bytes_max)
        self._read.abort()
        with translated(self._directory):
            self._environment.env.set_mapsize(self._map_bytes)
        self._renew()
        return True

    # -- opening and replacing ----------------------------------------------------------------

    def replace(
        self, index: int, blobs: Mapping[str, bytes], batches: Iterable[Sequence[Item]]
    ) -> None:
        self.abort()
        name = f"{self._generation + 1:020}"
        temporary = name + TEMPORARY
        if self._files.exists(temporary):
            self._files.remove_tree(temporary)
        self._files.mkdir(temporary)
        try:
            self._build(f"{self._directory}/{temporary}", index, blobs, batches)
        except BaseException:
            self._files.remove_tree(temporary)
            raise
        publish_dir(self._files, temporary, name)
        self._close()
        self._open(self._sweep())

    def close(self) -> None:
        self.abort()
        self._helper.shutdown()
        self._close()

    def _build(
        self,
        path: str,
        index: int,
        blobs: Mapping[str, bytes],
        batches: Iterable[Sequence[Item]],
    ) -> None:
        environment = _Environment(path, self._map_bytes)
        try:
            with translated(path, committing=True):
                txn = environment.write()
                try:
                    for batch in batches:
                        _fill(environment, txn, batch)
                    environment.finish(txn, index, blobs)
                except BaseException:
                    txn.abort()
                    raise
                environment.env.sync(True)
        finally:
            environment.env.close()

    def _open(self, generation: int) -> None:
        self._generation = generation
        path = f"{self._directory}/{generation:020}"
        self._environment = _Environment(path, self._map_bytes)
        self._files.sync_dir(f"{generation:020}")  # LMDB syncs what is in its file, not its name
        self._map_bytes = max(self._map_bytes, self._environment.env.info()["map_size"])
        with translated(path, opening=True):
            self._read = self._environment.read()
            self.index = self.durable_index = self._environment.index(self._read)
        self._get = self._read.get

    def _renew(self) -> None:
        self._read.abort()
        self._read = self._environment.read()
        self._get = self._read.get

    def _close(self) -> None:
        self._read.abort()
        self._environment.env.close()

    def _sweep(self) -> int:
        """Remove what is unfinished or superseded; which one is in force."""
        names = self._files.listdir("")
        numbers = sorted(int(name) for name in names if _GENERATION.fullmatch(name))
        newest = numbers[-1] if numbers else 1
        for name in names:
            if name.endswith(TEMPORARY) or (_GENERATION.fullmatch(name) and int(name) != newest):
                self._files.remove_tree(name)
        if not numbers:
            self._files.mkdir(f"{newest:020}")
        self._files.sync_dir("")
        return newest


def _batches(
    txn: Any, count: int, path: str, low: bytes = b"", high: bytes | None = None
) -> Iterator[list[Item]]:
    cursor = txn.cursor()
    if not (cursor.set_range(low) if low else cursor.first()):
        return
    items = iter(cursor)
    while batch := list(islice(items, count)):
        if high is not None and batch[-1][0] >= high:
            yield _checked([item for item in batch if item[0] < high], path)
            return
        yield _checked(batch, path)


def _checked(items: list[Item], path: str) -> list[Item]:
    if items:
        keys, kept = zip(*items, strict=True)
        _check(keys, kept, path)
    return items


def _check(keys: Sequence[bytes], kept: Sequence[bytes], path: str) -> None:
    """Raise unless all of these were written for their keys."""
    if not are_sound(keys, kept):
        bad = next(
            key for key, each in zip(keys, kept, strict=True) if not are_sound([key], [each])
        )
        raise unsound(path, f"what is kept of the key {bad!r}")


def _walk(cursor: Any, low: bytes, high: bytes | None, count: int, reverse: bool) -> list[Item]:
    if reverse:
        return _walk_back(cursor, low, high, count)
    if not (cursor.set_range(low) if low else cursor.first()):
        return []
    found: list[Item] = list(islice(cursor.iternext(), count))
    return [item for item in found if item[0] < high] if high is not None else found


def _walk_back(cursor: Any, low: bytes, high: bytes | None, count: int) -> list[Item]:
    if high is not None and not high:
        return []
    if high is not None and cursor.set_range(high):
        at_end = cursor.prev()
    else:
        at_end = cursor.last()
    if not at_end:
        return []
    found: list[Item] = list(islice(cursor.iterprev(), count))
    return [item for item in found if item[0] >= low]


def _put(txn: Any, database: Any, items: Iterable[Item]) -> None:
    with txn.cursor(database) as cursor:
        cursor.putmulti(items)


def _remove(txn: Any, database: Any, keys: Iterable[bytes]) -> None:
    for key in keys:
        txn.delete(key, db=database)


def _commit(environment: _Environment, txn: Any, index: int, blobs: Mapping[str, bytes]) -> None:
    try:
        if commit_hook is not None:
            commit_hook("before")
        environment.finish(txn, index, blobs)
    except BaseException:
        txn.abort()
        raise
    if commit_hook is not None:
        commit_hook("after")


def _fill(environment: _Environment, txn: Any, batch: Sequence[Item]) -> None:
    """Add sorted items to an environment that is being built, with their rows of times."""
    with txn.cursor() as cursor:
        cursor.putmulti(batch, append=True)
    for key, kept in batch:
        version, expires_ms = split_header(kept)
        if expires_ms:
            _put(txn, environment.times, time_rows(expires_ms, version, [key]))
