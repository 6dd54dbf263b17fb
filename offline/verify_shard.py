"""One shard's directory: each of its files, and whether they agree with each other.

    superblock    term, vote, and how far everything is known to be agreed
    snapshots     for members that the log does not reach back to
    keys          LMDB: the state, and of which index it is
    log           must reach what the two above prove, and begin where the keys still need it
    partitions    must be as far as the marks that the keys hold

The one rule: the order is that of a start, and so are the conclusions; what a start would do by
itself is a note, what it would refuse is damage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from shardnode.offline.verify_streams import StreamEntries, marked_partitions
from shardnode.shard.control import Control
from shardnode.shard.coordination import Coordination
from shardnode.shard.keyvalue_leases import Leases
from shardnode.shard.rebuild import WISH
from shardnode.shard.sessions import SessionTable
from shardnode.shard.streams_copy import STREAMS
from shardnode.shard.topics import Topics
from shardnode.shard.worker import FENCED_FILE
from shardnode.storage.audit import Book
from shardnode.storage.audit_keys import KEYS_DIRECTORY, Keys, audit_keys
from shardnode.storage.audit_log import LogFound, audit_log, log_names
from shardnode.storage.audit_partition import audit_partition
from shardnode.storage.audit_snapshots import audit_snapshots
from shardnode.storage.audit_superblock import Superblocks, audit_superblock
from shardnode.storage.errors import Corrupt, LogDamaged
from shardnode.storage.files import Files, join
from shardnode.storage.log import LOG_DIRECTORY
from shardnode.storage.manifest import SnapshotMeta
from shardnode.storage.partition_records import BatchHeader
from shardnode.storage.reader import Reader
from shardnode.storage.snapshots import QUARANTINE_DIRECTORY
from shardnode.storage.superblock import COPIES

_REFETCH = (
    "a member of several fetches what it lacks from the others; a single one is fenced: restore it"
    " from a backup"
)


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """What a shard holds, for people."""

    name: str
    term: int = 0
    vote: int = 0
    commit: int = 0
    recovering: bool = False
    log_first: int = 0
    log_last: int = 0
    applied: int = 0
    keys: int = 0
    partitions: int = 0
    snapshots: int = 0


@dataclass(frozen=True, slots=True)
class ShardFound:
    """What was found of one shard, for whoever wants to do something about it."""

    name: str
    superblocks: Superblocks
    snapshots: list[SnapshotMeta]
    """The sound ones, lowest index first."""
    keys: Keys
    log: LogFound | None
    """None when there is none."""
    partitions: int

    def summary(self) -> ShardSummary:
        state, log = self.superblocks.state, self.log
        return ShardSummary(
            self.name,
            term=state.term if state else 0,
            vote=state.vote if state else 0,
            commit=state.commit if state else 0,
            recovering=state.recovering if state else False,
            log_first=log.first if log else 0,
            log_last=log.last.index if log else 0,
            applied=self.keys.index,
            keys=self.keys.count,
            partitions=self.partitions,
            snapshots=len(self.snapshots),
        )


def look_at_shard(
    files: Files, name: str, book: Book, *, state_is_in_files: bool = True
) -> ShardFound:
    """Look at all of one shard; what is wrong goes into the book. In the simulator the state is
    somewhere else."""
    return _Shard(files, name, book, state_is_in_files).look()


def look_at_words(files: Files, shard: str, book: Book) -> None:
    """What an earlier run of a shard left for the next one, or for people."""
    fenced, wish = join(shard, FENCED_FILE), join(shard, WISH)
    if files.exists(fenced):
        means = "it stays out: move the shard's directory away, and it is fetched anew"
        what = f"this replica was found to be wrong: {_text(files, fenced)}"
        book.damaged(fenced, what, means)
    if files.exists(wish):
        what = f"the next start sets all but term and vote aside: {_text(files, wish)}"
        book.note(wish, what, "and fetches everything from its peers")
    quarantine = join(shard, QUARANTINE_DIRECTORY)
    kept = files.listdir(quarantine) if files.exists(quarantine) else []
    if kept:
        what = f"{len(kept)} damaged files or directories are kept here"
        book.note(quarantine, what, "remove them when you will")


def _text(files: Files, path: str) -> str:
    file = files.open(path)
    try:
        return file.pread(1_000, 0).decode(errors="replace").strip()
    finally:
        file.close()


class _Shard:
    def __init__(self, files: Files, name: str, book: Book, state_is_in_files: bool) -> None:
        self._state_is_in_files = state_is_in_files
        self._files = files
        self._name = name
        self._book = book
        self._entries = StreamEntries()

    def look(self) -> ShardFound:
        files, name, book = self._files, self._name, self._book
        look_at_words(files, name, book)
        superblocks = audit_superblock(files, name, book)
        snapshots = audit_snapshots(files, name, book)
        keys = audit_keys(files, name, book)
        log = self._look_at_log(superblocks, snapshots, keys)
        partitions = self._look_at_partitions(keys)
        self._look_at_blobs(keys)
        return ShardFound(name, superblocks, snapshots, keys, log, partitions)

    def _path(self, name: str) -> str:
        return join(self._name, name)

    # -- the log, against the rest ------------------------------------------------------------

    def _look_at_log(
        self, superblocks: Superblocks, snapshots: list[SnapshotMeta], keys: Keys
    ) -> LogFound | None:
        names = log_names(self._files, self._name)
        state, book = superblocks.state, self._book
        if state is None:
            if not superblocks.is_there and (names or snapshots or keys.index):
                what = "there is a log, a snapshot or a state, but no superblock"
                means = "term and vote are lost, so the shard does not boot: " + _REFETCH
                book.damaged(self._path(COPIES[0]), what, means)
            if not names:
                return None
        covered = snapshots[-1].index if snapshots else 0
        known = [state.commit if state else 0, keys.index]
        is_recovering = state is not None and state.recovering
        mark = max(known) if max(known) > covered and not is_recovering else 0
        if is_recovering:
            what = "this member lost data, and is fetching it"
            book.note(self._path(COPIES[0]), what, "it does not vote before it has it all")
        if not names:
            if superblocks.sequence > 1 and not is_recovering:
                book.damaged(self._path(LOG_DIRECTORY), "the log was emptied", _REFETCH)
            return None
        log = audit_log(self._files, self._name, mark, book, self._entries.visit)
        if not log.damaged and not keys.damaged:
            self._compare(log, snapshots, keys)
        return log

    def _compare(self, log: LogFound, snapshots: list[SnapshotMeta], keys: Keys) -> None:
        """Log, snapshots and state must be one history without a gap."""
        anchor = log.timeline.anchor
        if keys.index < anchor.index and self._state_is_in_files:
            path = keys.path or self._path(KEYS_DIRECTORY)
            if not any(meta.index >= anchor.index for meta in snapshots):
                what = f"the state is that of index {keys.index}, the log begins after"
                gap = "no sound snapshot covers what is between: " + _REFETCH
                self._book.damaged(path, f"{what} {anchor.index}", gap)
            else:
                self._book.note(path, "the next start takes the state from a snapshot")
        for meta in snapshots:
            self._compare_snapshot(log, meta, meta is snapshots[-1])

    def _compare_snapshot(self, log: LogFound, meta: SnapshotMeta, is_newest: bool) -> None:
        timeline, path = log.timeline, self._path(LOG_DIRECTORY)
        if meta.index < timeline.anchor.index:
            return
        if meta.index > log.last.index or timeline.term(meta.index) != meta.term:
            if meta.index <= timeline.commit:
                what = f"the snapshot of index {meta.index} has term {meta.term}"
                other = f"the log has term {timeline.term(meta.index)} there, and it is committed"
                self._book.damaged(path, f"{what}, {other}", "two histories in one: " + _REFETCH)
            elif is_newest:
                what = f"the log ends before the snapshot of index {meta.index}"
                means = "an installation was cut off; the next start finishes it"
                self._book.note(path, what, means)
            return
        reader = Reader(self._files, timeline)
        try:
            anchor = timeline.anchor
            chain = anchor.chain if meta.index == anchor.index else reader.chain(meta.index)
        except LogDamaged as error:
            self._book.damaged(error.path, error.detail, _REFETCH, error.offset)
            return
        finally:
            reader.close()
        if chain != meta.chain:
            what = f"the snapshot of index {meta.index} continues chain {meta.chain:016x}"
            other = f"the log has chain {chain:016x} there"
            self._book.damaged(path, f"{what}, {other}", "two histories in one: " + _REFETCH)

    # -- partitions ---------------------------------------------------------------------------

    def _look_at_partitions(self, keys: Keys) -> int:
        try:
            marked = marked_partitions(keys.blobs.get(STREAMS, b""), self._name)
        except (ValueError, Corrupt) as error:
            self._book.damaged(keys.path, f"the marks of partitions are none: {error}", _REFETCH)
            return 0
        for namespace, directory, mark in marked:
            look = self._comparing(namespace, directory)
            audit_partition(self._files, directory, mark, self._book, look)
        return len(marked)

    def _comparing(self, namespace: int, directory: str) -> Callable[[BatchHeader], None]:
        def look(batch: BatchHeader) -> None:
            if wrong := self._entries.compare(namespace, batch):
                means = "both are sound in themselves, so one was written wrong: report this"
                self._book.damaged(directory, wrong, means)

        return look

    # -- what is kept beside the keys -----------------------------------------------------------

    def _look_at_blobs(self, keys: Keys) -> None:
        """Each blob has passed its checksum; those that are known must make sense too."""
        for name, blob in keys.blobs.items():
            try:
                _DECODERS.get(name, _anything)(blob)
            except (ValueError, TypeError, KeyError, IndexError) as error:
                what = f"the stored {name} do not make sense ({type(error).__name__}: {error})"
                means = "their checksum is right, so they were written wrong: report this"
                self._book.damaged(keys.path, what, means)
                continue
            index = msgpack.unpackb(blob)[0] if name == "effects" else keys.index
            if index != keys.index:
                what = f"the effects are those of index {index}, the commit says {keys.index}"
                self._book.damaged(keys.path, what, "it was written wrong: report this")


def _anything(_: bytes) -> None:
    """A blob that this version knows nothing of."""


def _control(blob: bytes) -> None:
    Control().load(blob)


def _effects(blob: bytes) -> None:
    index, membership, partitions, digest, *stamp = msgpack.unpackb(blob)
    numbers = [index, digest, *stamp, *(number for pair in partitions for number in pair)]
    if not isinstance(membership, bytes) or {*map(type, numbers)} != {int}:
        raise TypeError("expected numbers and a membership")


def _pair(blob: bytes) -> None:
    first, second = msgpack.unpackb(blob)
    if type(first) is not int or type(second) is not int:
        raise TypeError("expected two numbers")


def _nowhere(_: int) -> int:
    return 0


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "control": _control,
    "effects": _effects,
    "groups": Coordination(_nowhere).load,
    "keyvalue": _pair,
    "leases": Leases.decode,
    "sessions": SessionTable.decode,
    "topics": Topics.decode,
}
