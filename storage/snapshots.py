"""Owns the snapshots of one shard: written whole, published atomically, read by checksum.

    snapshots/00000000000000000042/         manifest, and the files that it lists
    snapshots/00000000000000000042.<id>/    another one of the same index, such as a peer's
    snapshots/<id>.partial/                 on its way in from a peer: see `receiver.py`
    snapshots/….tmp/                        being written or removed; swept at open

The one rule: a published snapshot is immutable, and is removed only by `drop_below`, not while
somebody holds it. One that is not sound any more is kept where it is and listed in `damaged`: it is
never taken for a leftover.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from xxhash import xxh3_64

from shardnode.storage.errors import NoSpace, SnapshotCorrupt, StorageError
from shardnode.storage.files import Files, join
from shardnode.storage.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    SnapshotFile,
    SnapshotMeta,
    check_name,
)
from shardnode.storage.publish import TEMPORARY, make_dir, publish_dir, set_aside, write_file
from shardnode.storage.receiver import PARTIAL, Receiver
from shardnode.storage.verify import check_file, check_size, checked_chunks

__all__ = ["Damaged", "Receiver", "SnapshotFile", "SnapshotMeta", "SnapshotStore", "write_parts"]

SNAPSHOTS_DIRECTORY = "snapshots"
QUARANTINE_DIRECTORY = "quarantine"
_BUILDING = "building-"
PUBLISHED = re.compile(r"\d{20}(\.[0-9a-f]{16})?")


class Damaged(NamedTuple):
    """A published snapshot that cannot be used, and why."""

    path: str
    detail: str


class SnapshotStore:
    """The snapshots in `<directory>/snapshots/`."""

    def __init__(self, files: Files, directory: str) -> None:
        self.damaged: list[Damaged] = []
        self._files = files
        self._path = join(directory, SNAPSHOTS_DIRECTORY)
        self._quarantine = join(directory, QUARANTINE_DIRECTORY)
        self._building = ""
        self._published: dict[str, SnapshotMeta] = {}  # by path, lowest index first
        self._held: Counter[int] = Counter()  # how often, by id
        self._named: tuple[SnapshotMeta | None, dict[str, SnapshotFile]] = (None, {})
        make_dir(files, self._path)
        # What the last process renamed and did not live to sync is relied upon from here on.
        files.sync_dir(self._path)
        self._load()
        self._sweep()

    def list(self) -> list[SnapshotMeta]:
        """The snapshots whose manifest and file sizes are sound, lowest index first."""
        return list(self._published.values())

    def latest(self) -> SnapshotMeta | None:
        """The one with the highest index."""
        return next(reversed(self._published.values()), None)

    def find(self, snapshot: int) -> SnapshotMeta | None:
        """The one of this id."""
        return next((meta for meta in self._published.values() if meta.id == snapshot), None)

    def path_of(self, meta: SnapshotMeta) -> str:
        """The directory of a published one, below the root of the files."""
        return next(path for path, known in self._published.items() if known == meta)

    def write(
        self,
        index: int,
        term: int,
        chain: int,
        membership: bytes,
        contents: Mapping[str, Iterable[bytes]],
    ) -> SnapshotMeta:
        """Write and publish a snapshot, durable at return; until then nothing of it shows."""
        temporary = join(self._path, f"{index:020}{TEMPORARY}")
        try:
            described = write_parts(self._files, temporary, contents)
        except NoSpace:
            with suppress(StorageError):  # what stays is swept at the next open
                self._remove_tree(temporary)
            raise
        return self.adopt(temporary, SnapshotMeta(index, term, chain, membership, described))

    def adopt(self, temporary: str, meta: SnapshotMeta) -> SnapshotMeta:
        """Publish what `write_parts` has written into a temporary directory of this store."""
        try:
            write_file(self._files, join(temporary, MANIFEST_NAME), [meta.encode()])
        except NoSpace:
            with suppress(StorageError):
                self._remove_tree(temporary)
            raise
        return self._publish(temporary, meta)

    def discard(self, temporary: str) -> None:
        """Remove what will not be published."""
        self._remove_tree(temporary)

    @property
    def building(self) -> str:
        """The temporary directory for a snapshot that is written beside the loop. Its name is ours
        alone: the process of a worker that was killed may still write to another one."""
        if not self._building:
            self._building = join(self._path, f"{_BUILDING}{self._files.token():016x}{TEMPORARY}")
        return self._building

    def read(self, meta: SnapshotMeta, name: str, offset: int, size: int) -> bytes:
        """Up to `size` bytes of one file; fewer only at its end. Not checked: see `read_file`."""
        expected = self._described(meta, name)
        size = max(0, min(size, expected.size - offset))
        path = join(self.path_of(meta), name)
        file = self._files.open(path)
        try:
            data = file.pread(size, offset)
        finally:
            file.close()
        if len(data) != size:
            raise SnapshotCorrupt(f"expected {size} bytes", path=path, offset=offset)
        return data

    def file_of(self, meta: SnapshotMeta, name: str) -> SnapshotFile | None:
        """One file as the manifest has it; there may be a hundred thousand of them."""
        if self._named[0] is not meta:
            self._named = (meta, {file.name: file for file in meta.files})
        return self._named[1].get(name)

    def _described(self, meta: SnapshotMeta, name: str) -> SnapshotFile:
        found = self.file_of(meta, name)
        assert found is not None, f"{name} is no file of this snapshot"
        return found

    def read_stream(self, meta: SnapshotMeta, offset: int, size: int) -> bytes:
        """Up to `size` bytes of all files as one stream, in the manifest's order."""
        parts = []
        for file in meta.files:
            if size > 0 and offset < file.size:
                parts.append(self.read(meta, file.name, offset, size))
                size -= len(parts[-1])
                offset = file.size
            offset -= file.size
        return b"".join(parts)

    def read_file(self, meta: SnapshotMeta, name: str) -> Iterator[bytes]:
        """One whole file in pieces; `SnapshotCorrupt` after the last when it does not verify."""
        expected = self._described(meta, name)
        return checked_chunks(self._files, join(self.path_of(meta), name), expected)

    def verify(self, meta: SnapshotMeta) -> None:
        """Read all of it. An unsound one is listed in `damaged` from now on, and raises."""
        path = self.path_of(meta)
        try:
            for file in meta.files:
                check_file(self._files, join(path, file.name), file)
        except SnapshotCorrupt as error:
            del self._published[path]
            self.damaged.append(Damaged(path, str(error)))
            raise

    def drop_below(self, index: int) -> None:
        """Remove the sound snapshots of lower indexes that nobody holds; damaged ones stay."""
        for path, meta in list(self._published.items()):
            if meta.index < index and not self._held[meta.id]:
                # Renamed first, so that half a removal is a leftover and never a damaged one.
                temporary = path + TEMPORARY
                self._remove_tree(temporary)
                self._files.rename(path, temporary)
                self._files.sync_dir(self._path)
                del self._published[path]
                self._files.remove_tree(temporary)

    def hold(self, meta: SnapshotMeta) -> None:
        """Somebody reads it: it stays until `release` was called as often."""
        self._held[meta.id] += 1

    def release(self, meta: SnapshotMeta) -> None:
        """One who held it has gone; `drop_below` may remove it then."""
        self._held[meta.id] -= 1

    def receive(self, meta: SnapshotMeta) -> Receiver:
        """Begin to take in a peer's snapshot, or go on where a crash interrupted the same one.

        What was received of any other is dropped.
        """
        SnapshotMeta.decode(meta.encode())  # it may come from a peer: see `manifest.py`
        own = f"{meta.id:016x}{PARTIAL}"
        for name in self._files.listdir(self._path):
            if name.endswith(PARTIAL) and name != own:
                self._files.remove_tree(join(self._path, name))
        published = meta in self._published.values()
        return Receiver(
            self._files, join(self._path, own), meta, self._publish, published=published
        )

    def _publish(self, temporary: str, meta: SnapshotMeta) -> SnapshotMeta:
        """Give a complete directory its name, unless the very same snapshot is there already,
        and still sound."""
        if meta in self._published.values():
            self._remove_tree(temporary)
            self.verify(meta)
            return meta
        path = join(self._path, f"{meta.index:020}")
        if self._files.exists(path):
            path += f".{meta.id:016x}"
            if self._files.exists(path):
                set_aside(self._files, path, self._quarantine)
        publish_dir(self._files, temporary, path)
        self._published[path] = meta
        self._sort()
        return meta

    def _load(self) -> None:
        for name in self._files.listdir(self._path):
            if PUBLISHED.fullmatch(name):
                path = join(self._path, name)
                try:
                    self._published[path] = self._read_published(path, name)
                except SnapshotCorrupt as error:
                    self.damaged.append(Damaged(path, str(error)))
        self._sort()

    def _sort(self) -> None:
        self._published = dict(sorted(self._published.items(), key=lambda item: item[1].index))

    def _read_published(self, path: str, name: str) -> SnapshotMeta:
        meta = self._read_manifest(path)
        if int(name[:20]) != meta.index:
            raise SnapshotCorrupt(f"the manifest is for index {meta.index}", path=path)
        for each in meta.files:
            check_size(self._files, join(path, each.name), each)
        return meta

    def _read_manifest(self, path: str) -> SnapshotMeta:
        manifest = join(path, MANIFEST_NAME)
        if not self._files.exists(manifest):
            raise SnapshotCorrupt("the manifest is missing", path=path)
        file = self._files.open(manifest)
        try:
            return SnapshotMeta.decode(file.pread(MANIFEST_BYTES_MAX + 1, 0), manifest)
        finally:
            file.close()

    def _sweep(self) -> None:
        """Remove our own leftovers. A download is kept while it may still be wanted."""
        for name in self._files.listdir(self._path):
            path = join(self._path, name)
            leftover = name.endswith(TEMPORARY)
            if name.startswith(_BUILDING):
                # Who may still write there finds it no more, and cannot fill what is emptied.
                path, old = join(self._path, f"left-{name}"), path
                self._files.rename(old, path)
            if leftover or (name.endswith(PARTIAL) and not self._is_wanted(path)):
                self._files.remove_tree(path)

    def _is_wanted(self, partial: str) -> bool:
        newest = self.latest()
        try:
            return newest is None or self._read_manifest(partial).index >= newest.index
        except SnapshotCorrupt:
            return False

    def _remove_tree(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove_tree(path)


def write_parts(
    files: Files, temporary: str, contents: Mapping[str, Iterable[bytes]]
) -> tuple[SnapshotFile, ...]:
    """Write the files of a snapshot into a new directory, synced; what they are."""
    if files.exists(temporary):
        files.remove_tree(temporary)
    files.mkdir(temporary)
    described = []
    for name, chunks in contents.items():
        hashed = _Hashed(chunks)
        write_file(files, join(temporary, check_name(name)), hashed)
        described.append(SnapshotFile(name, hashed.size, hashed.checksum))
    return tuple(described)


class _Hashed:
    """Passes chunks on and remembers their size and checksum."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._state = xxh3_64()
        self.size = 0

    @property
    def checksum(self) -> int:
        return self._state.intdigest()

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._state.update(chunk)
            self.size += len(chunk)
            yield chunk
