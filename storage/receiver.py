"""Owns a snapshot on its way in: one stream of bytes over all its files, in order.

    snapshots/<id>.partial/     manifest, all files, and `progress`: how much of them is durable

The one rule: `progress` is written after the bytes it speaks of are synced, so a download that
a crash interrupted goes on from there, and never from bytes that may have been lost. Nothing is
published before every checksum has been verified.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from xxhash import xxh3_64_intdigest

from shardnode.storage.errors import ChunkRefused, SnapshotCorrupt
from shardnode.storage.files import File, Files, join, parent_of
from shardnode.storage.manifest import MANIFEST_NAME, PROGRESS_NAME, SnapshotFile, SnapshotMeta
from shardnode.storage.publish import make_dir, publish_file, write_file
from shardnode.storage.verify import check_file

PARTIAL = ".partial"
SYNC_EVERY_BYTES = 16 << 20
"""What a crash costs at most to fetch again, against three fsyncs for each such step."""

_PROGRESS = Struct("<QQ")


class Receiver:
    """The receiving end of one snapshot. `offset` is where the next bytes belong."""

    def __init__(
        self,
        files: Files,
        path: str,
        meta: SnapshotMeta,
        publish: Callable[[str, SnapshotMeta], SnapshotMeta],
        *,
        published: bool,
    ) -> None:
        """Use `SnapshotStore.receive`."""
        self.meta = meta
        self.offset = 0
        self._files = files
        self._path = path
        self._publish = publish
        self._file: File | None = None
        self._position = -1  # of the open file among the snapshot's
        self._durable = 0
        self._closed = False
        self._published = published  # there is nothing to receive
        if published:
            self.offset = meta.size
        elif not self._resume():
            self._begin()

    def write(self, offset: int, data: bytes) -> None:
        """Take bytes of the stream. What was taken before is ignored; a gap is `ChunkRefused`."""
        assert not self._closed, "the receiver is closed"
        if offset > self.offset:
            raise ChunkRefused(self._path, self.offset, f"bytes from {offset} on")
        if offset + len(data) > self.meta.size:
            found = f"bytes up to {offset + len(data)} of {self.meta.size}"
            raise ChunkRefused(self._path, self.offset, found)
        rest = memoryview(data)[self.offset - offset :]
        while rest:
            position, at, room = self._place(self.offset)
            file = self._open(position)
            file.pwritev([rest[:room]], at)
            self.offset += min(room, len(rest))
            rest = rest[room:]
        if self.offset - self._durable >= SYNC_EVERY_BYTES:
            self.sync()

    def sync(self) -> None:
        """Make `offset` durable: a crash from now on costs nothing of what is here."""
        if self._file is not None:
            self._file.datasync()
        record = _progress_record(self.offset, self.meta.id)
        publish_file(self._files, join(self._path, PROGRESS_NAME), record)
        self._durable = self.offset

    def finish(self) -> SnapshotMeta:
        """Verify everything and publish. `SnapshotCorrupt` discards what was received."""
        assert not self._closed, "the receiver is closed"
        if self.offset != self.meta.size:
            found = f"asked to finish with {self.offset} of {self.meta.size} bytes"
            raise ChunkRefused(self._path, self.offset, found)
        if self._published:
            return self._publish(self._path, self.meta)
        self.sync()
        self._close_file()
        self._closed = True
        try:
            for file in (self._manifest_file(), *self.meta.files):
                check_file(self._files, join(self._path, file.name), file)
        except SnapshotCorrupt:
            self._files.remove_tree(self._path)
            raise
        self._files.remove(join(self._path, PROGRESS_NAME))
        return self._publish(self._path, self.meta)

    def close(self) -> None:
        """Stop for now; `SnapshotStore.receive` goes on with it later."""
        if not self._closed and not self._published:
            self.sync()
            self._close_file()
        self._closed = True

    def _begin(self) -> None:
        """All files get their names at once, so that from here on only content is at stake."""
        if self._files.exists(self._path):
            self._files.remove_tree(self._path)
        make_dir(self._files, self._path)
        for file in self.meta.files:
            write_file(self._files, join(self._path, file.name), [])
        publish_file(self._files, join(self._path, MANIFEST_NAME), self.meta.encode())
        self._files.sync_dir(parent_of(self._path))

    def _manifest_file(self) -> SnapshotFile:
        """The manifest as a file among the others: it is published with them."""
        content = self.meta.encode()
        return SnapshotFile(MANIFEST_NAME, len(content), xxh3_64_intdigest(content))

    def _resume(self) -> bool:
        """Go on with what is there, when all of it is."""
        names = [PROGRESS_NAME, *(file.name for file in self.meta.files)]
        if not all(self._files.exists(join(self._path, name)) for name in names):
            return False
        try:
            check_file(self._files, join(self._path, MANIFEST_NAME), self._manifest_file())
        except SnapshotCorrupt:
            return False
        file = self._files.open(join(self._path, PROGRESS_NAME))
        try:
            record = file.pread(_PROGRESS.size, 0)
        finally:
            file.close()
        offset = _PROGRESS.unpack(record)[0] if len(record) == _PROGRESS.size else 0
        if record != _progress_record(offset, self.meta.id) or offset > self.meta.size:
            return False
        self.offset = self._durable = offset
        return True

    def _place(self, offset: int) -> tuple[int, int, int]:
        """Where in the stream: which file, where in it, and how many bytes it still takes."""
        for position, file in enumerate(self.meta.files):
            if offset < file.size:
                return position, offset, file.size - offset
            offset -= file.size
        raise AssertionError("past the end of the snapshot")

    def _open(self, position: int) -> File:
        if self._file is None or self._position != position:
            if self._file is not None:
                self._file.datasync()  # `sync` covers only the one that is open
            self._close_file()
            self._file = self._files.open(join(self._path, self.meta.files[position].name))
            self._position = position
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._position = None, -1


def _progress_record(offset: int, snapshot_id: int) -> bytes:
    return _PROGRESS.pack(offset, xxh3_64_intdigest(offset.to_bytes(8, "little"), snapshot_id))
