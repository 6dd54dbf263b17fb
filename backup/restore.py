"""Making a data directory from a backup, for one node that begins a cluster of its own.

    shard-N/snapshots/…     the base, as it was
    shard-N/log/…           the records behind it, up to the moment that was asked for, and behind
                            them those of `shard.rebirth`
    shard-N/superblock.*    a term of its own, and all of that log committed
    node.json               another cluster id: members of the old cluster are strangers

The one rule: nothing is believed before it was verified, and nothing counts before all of it is
there. The rest is what every start does: a node installs the snapshot and redoes the log.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shardnode.backup.blobs import read_file
from shardnode.backup.chunks import read_chunk, read_log, stamp_of_record
from shardnode.backup.format import (
    Base,
    Manifest,
    damaged,
    decode_manifest,
    decode_snapshot,
    manifest_key,
    snapshot_key,
)
from shardnode.backup.points import Point, point_at_index, point_at_time, point_of, shown
from shardnode.backup.store import Store
from shardnode.backup.take import Progress, all_backups
from shardnode.node.identity import Identity
from shardnode.node.restoring import RestoredDirectory
from shardnode.raft import RAFT_PARTITION, Membership
from shardnode.shard.rebirth import EFFECTS_PART, closing_entries, read_effects
from shardnode.storage.files import Files, RealFiles
from shardnode.storage.log import SegmentedLog
from shardnode.storage.manifest import SnapshotFile
from shardnode.storage.options import LogOptions
from shardnode.storage.records import RecordTuple
from shardnode.storage.snapshots import SnapshotStore
from shardnode.storage.superblock import Superblock, SuperblockState
from shardnode.wire.errors import InvalidRequest, NotFound
from shardnode.wire.fields import Name
from shardnode.wire.placement import member_id

BATCH_BYTES = 4 << 20
SYNC_BYTES = 32 << 20
_OPTIONS = LogOptions(max_record_bytes=1 << 29, max_batch_bytes=1 << 30)
"""Whatever the cluster was allowed to write is written again."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What to make of a backup."""

    cluster: str = ""
    """Its name; empty: as before."""
    node_id: int = 0
    """0: that of the node that was asked for the backup."""
    backup: str = ""
    """Which one; empty: the newest."""
    shards: int = 0
    """0: as before."""
    to_index: Mapping[int, int] = field(default_factory=dict)
    """Shard → the last index of its log that counts."""
    to_ms: int | None = None
    """Nothing that was stamped later counts; milliseconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A data directory."""

    identity: Identity
    backup: str
    points: tuple[Point, ...]


def restore_backup(
    store: Store,
    data: Path,
    options: RestoreOptions = RestoreOptions(),
    progress: Progress | None = None,
) -> Restored:
    """Make the directory; a node can be started on it when this returns."""
    progress = progress or Progress()
    manifest, points = plan(store, options)
    identity = Identity(
        Name().take("cluster", options.cluster or manifest.cluster, 0),
        options.node_id or manifest.node_id,
        manifest.shards,
        secrets.randbits(64) or 1,
    )
    with RestoredDirectory(data) as directory:
        files = RealFiles(directory.path)
        for point in points:
            progress.say(f"shard {point.shard}")
            _Shard(store, files, point, identity, progress).make()
        directory.finish(identity)
    return Restored(identity, manifest.id, tuple(points))


def plan(store: Store, options: RestoreOptions) -> tuple[Manifest, list[Point]]:
    """Which backup, and to which index of each shard; nothing is written yet."""
    chosen, known = _choose(store, options.backup)
    if options.shards not in (0, chosen.shards):
        raise InvalidRequest(
            f"expected {chosen.shards} shards, as in the backup, found {options.shards};"
            " resharding does not exist yet: restore it as it is"
        )
    strangers = sorted(set(options.to_index) - {*range(chosen.shards)})
    if strangers:
        raise InvalidRequest(
            f"expected shards from 0 to {chosen.shards - 1}, found {strangers[0]} in --to-index"
        )
    if options.to_index and options.to_ms is not None:
        raise InvalidRequest("expected either indexes or a time, found both")
    points = []
    for cut in chosen.cuts:
        shard = cut.shard
        cuts = [manifest.cuts[shard] for manifest in known]
        if shard in options.to_index:
            points.append(point_at_index(shard, cuts, options.to_index[shard]))
        elif options.to_ms is not None:
            read = partial(read_chunk, store, shard)
            points.append(point_at_time(shard, cuts, options.to_ms, read))
        else:
            points.append(point_of(cut))
    if options.to_ms is not None and not any(each.begins_by(options.to_ms) for each in points):
        raise NotFound(
            f"expected a time at which something had been written, found {shown(options.to_ms)};"
            " the log begins later"
        )
    return chosen, points


def _choose(store: Store, backup: str) -> tuple[Manifest, list[Manifest]]:
    """The backup that was asked for, and all of the same cluster that may help."""
    if backup:
        key = manifest_key(backup)
        chosen = decode_manifest(store.get(key), key)
        found, _ = all_backups(store)
    else:
        found, wrong = all_backups(store)
        if wrong:
            raise wrong[0]  # it may be the newest: nobody should get an older one unawares
        if not found:
            raise NotFound(
                f"expected a backup in {store.place}, found no manifest of a complete one"
            )
        chosen = found[-1]
    return chosen, [each for each in found if each.owner == chosen.owner]


class _Shard:
    """One shard of the directory."""

    def __init__(
        self, store: Store, files: Files, point: Point, identity: Identity, progress: Progress
    ) -> None:
        assert identity.cluster_id is not None, "it was drawn a moment ago"
        self._store = store
        self._files = files
        self._point = point
        self._cluster_id = identity.cluster_id
        self._member = member_id(point.shard, identity.node_id)
        self._name = f"shard-{point.shard}"
        self._progress = progress
        self._numbers: dict[int, int] = {}
        self._stamp_ms = 0
        self._index, self._term = point.start.index, point.start.term

    def make(self) -> None:
        """Snapshot, log, superblock."""
        base = self._point.base
        if base is not None:
            self._write_snapshot(base)
        self._write_log()
        state = SuperblockState(
            cluster=self._cluster_id,
            member=self._member,
            term=self._term,
            vote=self._member,
            commit=self._index,
            snapshot_index=base.index if base is not None else 0,
            recovering=False,
        )
        superblock = Superblock.load(self._files, self._name)
        superblock.store(state)
        superblock.store(state)  # the second one says that there is a log

    def _write_snapshot(self, base: Base) -> None:
        shard = self._point.shard
        key = snapshot_key(shard, base.index, base.snapshot)
        try:
            meta = decode_snapshot(self._store.get(key), key, base)
        except NotFound as error:
            raise damaged(key, "it is missing") from error
        contents = {file.name: self._content(file) for file in meta.files}
        alone = Membership.of([self._member]).encode()
        written = SnapshotStore(self._files, self._name).write(
            meta.index, meta.term, meta.chain, alone, contents
        )
        assert written.files == meta.files, "every file was verified on the way"
        part = next(file for file in meta.files if file.name == EFFECTS_PART)
        effects = b"".join(read_file(self._store, shard, part))
        numbers, self._stamp_ms = read_effects(effects)
        self._numbers = dict(numbers)

    def _content(self, file: SnapshotFile) -> Iterator[bytes]:
        for piece in read_file(self._store, self._point.shard, file):
            yield piece
            self._progress.advance(len(piece))

    def _write_log(self) -> None:
        point = self._point
        log = SegmentedLog.open(self._files, self._name, _OPTIONS)
        try:
            if point.base is not None:
                log.reset(point.start)
            unsynced = 0
            for batch in self._batches():
                log.append_batch(batch, commit=batch[-1][0])
                unsynced += sum(len(record[4]) for record in batch)
                if unsynced >= SYNC_BYTES:
                    log.sync()
                    unsynced = 0
            closing = closing_entries(
                point.shard,
                self._member,
                index=self._index,
                term=self._term,
                numbers=self._numbers,
                stamp_ms=self._stamp_ms,
            )
            log.append_batch(closing, commit=closing[-1].index)
            log.sync()
            self._index, self._term = log.last_index, log.last_term
        finally:
            log.close()

    def _batches(self) -> Iterator[list[RecordTuple]]:
        """The records up to the point, some megabytes at a time."""
        point = self._point
        batch: list[RecordTuple] = []
        size = 0
        if point.index > self._index:
            for proven in read_log(self._store, point.shard, point.path, point.start):
                record = proven.record
                if record.index > point.index:
                    break
                batch.append(record)
                size += len(record.payload)
                if record.partition != RAFT_PARTITION:
                    self._numbers[record.partition] = record.partition_index
                    self._stamp_ms = max(self._stamp_ms, stamp_of_record(proven))
                self._index, self._term = record.index, record.term
                if size >= BATCH_BYTES:
                    yield batch
                    self._progress.advance(size)
                    batch, size = [], 0
        if batch:
            yield batch
            self._progress.advance(size)
        if self._index != point.index:
            raise NotFound(f"the log of shard {point.shard} ends at {self._index}")
