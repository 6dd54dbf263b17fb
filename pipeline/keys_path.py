"""The key-value table of files: the directory of a stopped node, or the newest of its backups.

    a stopped node     LMDB, or a snapshot that is newer, and the log behind it as far as it is
                       known to be agreed
    a backup           the base of each shard, and the log behind it up to the moment of the backup

One rule: journaled is not committed. Of a stopped node the rows end at the stored commit watermark;
after a crash that may trail what was acknowledged, and then a warning says by how much.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from shardnode.backup.blobs import PART_BYTES, read_file
from shardnode.backup.chunks import read_log
from shardnode.backup.format import MARK, decode_snapshot, file_key, snapshot_key
from shardnode.backup.points import point_of
from shardnode.backup.store import FolderStore
from shardnode.backup.take import all_backups
from shardnode.pipeline.keys_cut import NoKeys, ShardKeys
from shardnode.pipeline.keys_scan import plan
from shardnode.pipeline.keys_source import KEYS_FILE, LocalFile, PartFiles
from shardnode.pipeline.keys_tree import TreeKeys, plan_trees
from shardnode.pipeline.options import Options
from shardnode.pipeline.stopped import AgreedLog, agreed_log, held, identity_of
from shardnode.shard.overlay import PARTS, changes_behind
from shardnode.storage.audit_keys import newest_file
from shardnode.storage.engine_offline import OfflineKeys
from shardnode.storage.errors import StorageError
from shardnode.storage.files import Files, ReadOnlyFiles, join
from shardnode.storage.keyfile_reader import KeyFile
from shardnode.storage.manifest import MANIFEST_NAME, SnapshotFile, SnapshotMeta
from shardnode.storage.publish import read_chunks
from shardnode.storage.records import Anchor, Record
from shardnode.storage.snapshots import PUBLISHED, SNAPSHOTS_DIRECTORY
from shardnode.storage.stretch import Proven
from shardnode.wire.errors import Corrupt, NotFound

PIECE_BYTES = 8 << 20
BOUNDS = 256
"""Keys that are looked up to cut a tree by."""

log = logging.getLogger("shardnode.pipeline")


def plan_path(options: Options) -> Iterator[InputPartition]:
    """The partitions of what lies at the path."""
    assert options.path is not None
    try:
        if os.path.exists(os.path.join(options.path, MARK)):
            yield from plan(list(open_backup(options.path)), options)
            return
        files, trees = open_stopped(options.path)
    except StorageError as error:
        raise Corrupt(f"{options.path}: {error}; see `shardnode verify`") from error
    yield from plan(files, options)
    yield from plan_trees(trees, options)


# -- a stopped node -------------------------------------------------------------------------------


def open_stopped(root: str) -> tuple[list[ShardKeys], list[TreeKeys]]:
    """The shards of a directory: those that begin with a snapshot, and those with LMDB."""
    identity = identity_of(root)
    from_files: list[ShardKeys] = []
    from_trees: list[TreeKeys] = []
    with held(root):
        for shard in range(identity.shards):
            found = _Stopped(root, shard).open()
            if isinstance(found, TreeKeys):
                from_trees.append(found)
            else:
                from_files.append(found)
    return from_files, from_trees


class _Stopped:
    """One shard of a stopped node."""

    def __init__(self, root: str, shard: int) -> None:
        self._root = root
        self._shard = shard
        self._name = f"shard-{shard}"
        self._files: Files = ReadOnlyFiles(root)

    def open(self) -> ShardKeys | TreeKeys:
        """Its keys as of the last entry that is known to be agreed."""
        path = newest_file(self._files, self._name)
        keys = OfflineKeys(self._files, path) if path else None
        try:
            stored = keys.index if keys is not None else 0
            behind = agreed_log(self._files, self._shard, stored)
            meta = self._snapshot(stored, behind.timeline.anchor.index)
            if meta is not None:
                return self._from_snapshot(*meta, behind)
            return self._from_tree(keys, behind)
        finally:
            if keys is not None:
                keys.close()

    def _snapshot(self, stored: int, log_begin: int) -> tuple[str, SnapshotMeta] | None:
        """A published one that is newer than LMDB, when LMDB alone does not do."""
        if stored >= log_begin and stored:
            return None
        directory = join(self._name, SNAPSHOTS_DIRECTORY)
        names = self._files.listdir(directory) if self._files.exists(directory) else []
        for name in sorted(filter(PUBLISHED.fullmatch, names), reverse=True):
            file = self._files.open(join(join(directory, name), MANIFEST_NAME))
            try:
                meta = SnapshotMeta.decode(file.pread(file.size(), 0))
            finally:
                file.close()
            if meta.index >= max(stored, log_begin):
                return join(directory, name), meta
        if log_begin > stored:
            raise Corrupt(
                f"{self._root}: the log of shard {self._shard} begins behind {log_begin}, its keys"
                f" end at {stored}; see `shardnode verify`"
            )
        return None

    def _from_snapshot(self, path: str, meta: SnapshotMeta, behind: AgreedLog) -> ShardKeys:
        described = {file.name: file for file in meta.files}
        source = LocalFile(os.path.join(self._root, path, KEYS_FILE), described[KEYS_FILE].size)
        parts = {name: self._content(join(path, name)) for name in PARTS}
        end = max(behind.commit, meta.index)
        with source.opened() as pread:
            base = KeyFile(pread, source.size)
            changed = changes_behind(
                base, meta.index, parts.__getitem__, behind.records(meta.index, end)
            )
            return ShardKeys(self._shard, end, base.rows, source, changed)

    def _from_tree(self, keys: OfflineKeys | None, behind: AgreedLog) -> ShardKeys | TreeKeys:
        if keys is None or not keys.index:
            records = behind.records(0, behind.commit)
            changed = changes_behind(NoKeys(), 0, lambda _: b"", records)
            return ShardKeys(self._shard, behind.commit, 0, None, changed)
        records = behind.records(keys.index, behind.commit)
        changed = changes_behind(_Tree(keys), keys.index, keys.blob, records)
        directory = os.path.dirname(os.path.dirname(os.path.join(self._root, keys.path)))
        size = os.path.getsize(os.path.join(self._root, keys.path))
        bounds = keys.bounds(BOUNDS)
        index = max(keys.index, behind.commit)
        return TreeKeys(
            self._shard, index, self._root, directory, keys.count, size, bounds, changed
        )

    def _content(self, path: str) -> bytes:
        file = self._files.open(path)
        try:
            return b"".join(read_chunks(file))
        finally:
            file.close()


class _Tree(NoKeys):
    """LMDB's keys, one at a time."""

    def __init__(self, keys: OfflineKeys) -> None:
        self._keys = keys

    def get(self, key: bytes) -> bytes | None:
        return self._keys.get(key)


# -- a backup -------------------------------------------------------------------------------------


Later = Callable[[int, Anchor], tuple[int, Iterator[Record]]]
"""Shard and the position of its cut → the index that the records lead to which follow there."""


def nothing_later(_shard: int, position: Anchor) -> tuple[int, Iterator[Record]]:
    """The moment of the backup itself."""
    return position.index, iter(())


def open_backup(root: str, later: Later = nothing_later) -> Iterator[ShardKeys]:
    """The shards of the newest backup in a folder, and what `later` tells of them."""
    store = FolderStore(Path(root))
    found, wrong = all_backups(store)
    if wrong:
        raise wrong[0]
    if not found:
        raise NotFound(f"expected a complete backup in {root}, found no manifest of one")
    for cut in found[-1].cuts:
        point = point_of(cut)
        records: Iterator[Record] = iter(())
        if point.index > point.start.index:
            log_behind = read_log(store, cut.shard, point.path, point.start)
            records = _up_to(point.index, log_behind)
        end, behind = later(cut.shard, cut.position)
        records = chain(records, behind)
        if point.base is None:
            changed = changes_behind(NoKeys(), 0, lambda _: b"", records)
            yield ShardKeys(cut.shard, end, 0, None, changed)
            continue
        key = snapshot_key(cut.shard, point.base.index, point.base.snapshot)
        meta = decode_snapshot(store.get(key), key, point.base)
        described = {file.name: file for file in meta.files}
        source = _source(root, cut.shard, described[KEYS_FILE])
        parts = {name: b"".join(read_file(store, cut.shard, described[name])) for name in PARTS}
        with source.opened() as pread:
            base = KeyFile(pread, source.size)
            changed = changes_behind(base, point.base.index, parts.__getitem__, records)
            yield ShardKeys(cut.shard, end, base.rows, source, changed)


def _up_to(last: int, log_behind: Iterable[Proven]) -> Iterator[Record]:
    return (each.record for each in log_behind if each.record.index <= last)


def _source(root: str, shard: int, file: SnapshotFile) -> PartFiles:
    path = os.path.join(root, file_key(shard, file))
    if file.size <= PART_BYTES:
        return PartFiles((path,), PART_BYTES, file.size)
    parts = range(-(-file.size // PART_BYTES))
    return PartFiles(tuple(f"{path}/{part:06}" for part in parts), PART_BYTES, file.size)
