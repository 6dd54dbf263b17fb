"""Consistent cuts of one shard, for readers in bulk: backups, jobs.

    open    pins a snapshot and the log behind it, as far as it is applied; it gives a lease
    read    pieces of the snapshot's files and of the log, as they stand on the disk
    keep    another lease; the part of the log that was read is let go
    close   … or the end of the lease: everything is let go

The one rule: what a cut names does not change while it lives, and it never holds up the shard. A
piece is bounded, snapshots are built beside the loop, and a log that outgrows its bound is cut
whoever reads it: then the reader hears `Compacted`, and opens another cut.

Cuts live in memory. The files of a snapshot and the log are the same on every replica, so a reader
that lost its cut to a restart, or to another leader, goes on with what it has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardnode.raft import RAFT_PARTITION, Entry, Role
from shardnode.shard.entries import stamp_of
from shardnode.shard.replica import ALL, FETCH_FACTOR, Replica
from shardnode.shard.settings import WorkerSettings
from shardnode.storage import errors as storage_errors
from shardnode.storage.records import ORIGIN, Anchor
from shardnode.storage.snapshots import SnapshotMeta
from shardnode.storage.stretch import Stretch
from shardnode.wire import limits
from shardnode.wire.codec import Answer, Body
from shardnode.wire.cuts import (
    MANIFEST_FILE,
    CutClose,
    CutClosed,
    CutKeep,
    CutKept,
    CutLog,
    CutOpen,
    CutOpened,
    CutPiece,
    CutRead,
)
from shardnode.wire.errors import (
    Compacted,
    Conflict,
    Corrupt,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from shardnode.wire.kinds import Consistency, Kind

if TYPE_CHECKING:
    from collections import Counter

    from shardnode.shard.effects import Effects

CUTS = frozenset((Kind.CUT_READ, Kind.CUT_LOG, Kind.CUT_KEEP, Kind.CUT_CLOSE))
"""Kinds for the replica that opened the cut, whoever leads."""

CUTS_MAX = 32
"""Each may keep an old snapshot on the disk."""

WAIT_MS = 10_000
"""How long the log is kept for a reader that waits for a snapshot and does not ask again."""

KEPT_BYTES_MIN = 64 << 20
"""A log that is smaller is never cut under a reader."""

GONE = ALL + 1
"""A place in the log that no cut needs."""

OFFSET_MAX = 128 << 20
"""How far into the log from its `first` a reader may ask: it has to walk there."""

LOOK_EVERY_MS = 60_000
"""Reading a whole snapshot holds the loop: not for everybody who has doubts."""

_LOOK_AHEAD_ENTRIES = 64


@dataclass(slots=True)
class _Cut:
    """What one reader has."""

    until_ms: int
    snapshot: SnapshotMeta | None
    manifest: bytes
    stretch: Stretch
    log_from: int
    """The log from here on is kept for it."""
    shared: int = 0
    """The id of its snapshot, if anybody may ask for it by that; 0: it is one reader's."""


class Cuts:
    """All cuts of one replica."""

    def __init__(
        self, settings: WorkerSettings, replica: Replica, effects: Effects, counters: Counter[str]
    ) -> None:
        self._node = settings.node
        self._root = os.path.dirname(os.path.abspath(settings.directory))
        self._replica = replica
        self._effects = effects
        self._counters = counters
        self._cuts: dict[int, _Cut] = {}
        self._look_at_ms = 0
        self._awaited = (ALL, 0)
        """(the log behind this index is kept, until then) for who waits for a snapshot."""

    def __len__(self) -> int:
        return len(self._cuts)

    # -- opening ------------------------------------------------------------------------------

    def open(self, ask: CutOpen, now_ms: int, stamp_ms: int) -> CutOpened:
        """A cut of what is applied; `stamp_ms` is what an entry would be stamped with now."""
        replica = self._replica
        if replica.catching_up or replica.raft.recovering:
            raise Unavailable("this replica is recovering what it lost; ask another one, or later")
        if len(self._cuts) >= CUTS_MAX and not ask.snapshot_id:
            raise Overloaded(
                f"{CUTS_MAX} cuts are open here already; close one, or wait until its lease ends",
                lag=CUTS_MAX,
                limit=CUTS_MAX,
            )
        try:
            if ask.snapshot_id:
                return self._again(ask, now_ms, stamp_ms)
            after = self._history_at(ask)
            if not ask.snapshot:
                return self._begin(ask, now_ms, stamp_ms, None, after or self._origin())
            base = self._base(ask)
            if base is None:
                return self._not_yet(ask, now_ms, after)
        except storage_errors.Corrupt as error:
            raise Corrupt(str(error)) from error
        meta, position = base
        if after is not None and after.index < position.index:
            position = after
        return self._begin(ask, now_ms, stamp_ms, meta, position)

    def _again(self, ask: CutOpen, now_ms: int, stamp_ms: int) -> CutOpened:
        """A snapshot that is there, for whoever knows it: all of them share one cut, because none
        of them holds any log."""
        meta = self._replica.snapshots.find(ask.snapshot_id)
        if meta is None:
            raise NotFound(
                f"snapshot {ask.snapshot_id:016x} is not on node {self._node} any more: nobody held"
                " it; open a cut of now"
            )
        shared = next((n for n, cut in self._cuts.items() if cut.shared == meta.id), 0)
        opened = self._begin(ask, now_ms, stamp_ms, meta, self._here(), shared)
        cut = self._cuts[opened.cut]
        cut.shared, cut.log_from = meta.id, GONE
        self._keep_log()
        return opened

    def _here(self) -> Anchor:
        index, log = self._replica.machine.applied_index, self._replica.log
        return Anchor(index, log.term(index), log.chain(index))

    def _history_at(self, ask: CutOpen) -> Anchor | None:
        """Where the reader's log ends, if ours reaches back to there."""
        log, after = self._replica.log, ask.after
        if after is None:
            return None
        if after > self._replica.machine.applied_index:
            raise Conflict(
                f"expected an index up to {self._replica.machine.applied_index}, found {after}:"
                " the history that was read is another one"
            )
        if after < log.anchor.index:
            if not ask.snapshot:
                raise _compacted(after + 1, log.first_index)
            return None
        chain = log.chain(after)
        if chain != ask.after_chain:
            raise Conflict(
                f"expected chain {chain:016x} at index {after}, found {ask.after_chain:016x}: the"
                " history that was read is another one"
            )
        return Anchor(after, log.term(after), chain)

    def _origin(self) -> Anchor:
        if self._replica.log.anchor.index:
            raise _compacted(1, self._replica.log.first_index)
        return ORIGIN

    def _base(self, ask: CutOpen) -> tuple[SnapshotMeta | None, Anchor] | None:
        """The snapshot to begin with; None when a newer one is to be built first."""
        replica = self._replica
        for _ in range(2):  # one without a builder is there at once
            meta = replica.snapshots.latest()
            if meta is not None and meta.index < replica.log.anchor.index:
                meta = None
            if meta is not None and self._is_new_enough(ask, meta.index):
                return meta, Anchor(meta.index, meta.term, meta.chain)
            if meta is None and not replica.log.anchor.index and self._is_new_enough(ask, 0):
                return None, ORIGIN
            replica.copies.take_snapshot(ask.snapshot_min or replica.machine.applied_index)
        return None

    def _is_new_enough(self, ask: CutOpen, index: int) -> bool:
        """It has what the reader asked for when it came first, or little log follows it."""
        if 0 < ask.snapshot_min <= index:
            return True
        return self._replica.log.bytes_after(index) <= ask.log_bytes_max

    def _not_yet(self, ask: CutOpen, now_ms: int, after: Anchor | None) -> CutOpened:
        """The log is kept from where the snapshot will be, or else it would be of no use."""
        wanted = ask.snapshot_min or self._replica.machine.applied_index
        kept = wanted if after is None else min(wanted, after.index)
        self._awaited = (max(kept, self._replica.log.anchor.index), now_ms + WAIT_MS)
        self._keep_log()
        return CutOpened(
            cut=0,
            node=self._node,
            index=self._replica.machine.applied_index,
            chain=0,
            through_ms=0,
            snapshot=0,
            snapshot_index=0,
            snapshot_bytes=0,
            manifest_bytes=0,
            log_after=0,
            log_after_term=0,
            log_after_chain=0,
            log_bytes=0,
            snapshot_min=wanted,
            note=self._replica.copies.trouble[: limits.error_message_bytes_max // 4],
        )

    def _begin(
        self,
        ask: CutOpen,
        now_ms: int,
        stamp_ms: int,
        meta: SnapshotMeta | None,
        position: Anchor,
        number: int = 0,
    ) -> CutOpened:
        """`number`: one that is open already, of the same snapshot."""
        replica, log = self._replica, self._replica.log
        index = replica.machine.applied_index
        manifest = meta.encode() if meta is not None else b""
        until_ms = now_ms + ask.lease_ms
        if number:
            self._cuts[number].until_ms = max(self._cuts[number].until_ms, until_ms)
        else:
            number = replica.token() >> 1 or 1
            stretch = log.stretch(index)
            self._cuts[number] = _Cut(until_ms, meta, manifest, stretch, position.index + 1)
            if meta is not None:
                replica.snapshots.hold(meta)
        self._awaited = (ALL, 0)
        self._keep_log()
        self._counters["cuts_opened"] += 1
        return CutOpened(
            cut=number,
            node=self._node,
            index=index,
            chain=log.chain(index),
            through_ms=self._through_ms(ask, index, stamp_ms),
            snapshot=meta.id if meta is not None else 0,
            snapshot_index=meta.index if meta is not None else 0,
            snapshot_bytes=meta.size if meta is not None else 0,
            manifest_bytes=len(manifest),
            log_after=position.index,
            log_after_term=position.term,
            log_after_chain=position.chain,
            log_bytes=log.bytes_after(position.index),
            snapshot_min=meta.index if meta is not None else 0,
            note="",
            directory=self._directory_of(meta),
        )

    def _directory_of(self, meta: SnapshotMeta | None) -> str:
        if meta is None or not self._root:
            return ""
        path = os.path.join(self._root, self._replica.snapshots.path_of(meta))
        return path if len(os.fsencode(path)) <= limits.path_bytes_max else ""

    def _through_ms(self, ask: CutOpen, index: int, stamp_ms: int) -> int:
        """Stamps never go back: whatever is not in the cut is stamped with that of the next entry
        or, when there is none, with that of now. Only who leads for certain knows that."""
        raft = self._replica.raft
        if ask.consistency is Consistency.STALE or raft.role is not Role.LEADER:
            return max(0, self._effects.stamp - 1)
        last = raft.log.last_index
        behind: Iterator[Entry] = iter(())
        if last > index:
            behind = iter(raft.log.read(index + 1, last, 1 << 16, _LOOK_AHEAD_ENTRIES))
        stamps = (stamp_of(each.payload) for each in behind if each.partition != RAFT_PARTITION)
        return max(0, min(next(stamps, stamp_ms), stamp_ms) - 1)

    # -- what is opened -----------------------------------------------------------------------

    def answer(self, body: Body, now_ms: int) -> Answer:
        """One request about a cut."""
        if isinstance(body, CutClose):
            snapshot = self._close(body.cut)
            if body.doubt and snapshot is not None and now_ms >= self._look_at_ms:
                self._look_at_ms = now_ms + LOOK_EVERY_MS
                self._replica.copies.look_at(snapshot.id)
            return CutClosed()
        assert isinstance(body, CutRead | CutLog | CutKeep)
        cut = self._cuts.get(body.cut)
        if cut is None or now_ms > cut.until_ms:
            raise NotFound(
                f"cut {body.cut:#x} is not known on node {self._node}: its lease ended, or the"
                " process was started anew; open another one"
            )
        try:
            if isinstance(body, CutKeep):
                return self._keep(cut, body, now_ms)
            data = self._read(cut, body) if isinstance(body, CutRead) else self._log(cut, body)
        except storage_errors.Corrupt as error:
            raise Corrupt(
                f"{error}: open another cut, on another replica if there is one"
            ) from error
        except storage_errors.Compacted as error:
            raise _compacted(error.index, error.first_available) from error
        self._counters["cut_bytes_out"] += len(data)
        return CutPiece(data)

    def _read(self, cut: _Cut, ask: CutRead) -> bytes:
        meta = cut.snapshot
        if meta is None:
            raise InvalidRequest("expected a cut with a snapshot, found one of the log alone")
        if ask.file == MANIFEST_FILE:
            return cut.manifest[ask.offset : ask.offset + ask.size]
        expected = self._replica.snapshots.file_of(meta, ask.file)
        if expected is None:
            raise InvalidRequest(f"expected a file of the manifest, found {ask.file!r}")
        if meta not in self._replica.snapshots.list():
            raise Corrupt(
                f"the snapshot at index {meta.index} proved to be damaged; open another cut"
            )
        if ask.offset >= expected.size:
            return b""
        return self._replica.snapshots.read(meta, ask.file, ask.offset, ask.size)

    def _log(self, cut: _Cut, ask: CutLog) -> bytes:
        if ask.offset > OFFSET_MAX:
            raise InvalidRequest(
                f"expected an offset up to {OFFSET_MAX}, found {ask.offset}; ask from a later"
                " record on"
            )
        if ask.first < cut.log_from:
            raise _compacted(ask.first, cut.log_from)
        if ask.first > cut.stretch.last:
            return b""
        return cut.stretch.read(ask.first, ask.offset, ask.size)

    def _keep(self, cut: _Cut, ask: CutKeep, now_ms: int) -> CutKept:
        cut.until_ms = max(cut.until_ms if cut.shared else 0, now_ms + ask.lease_ms)
        if ask.log_from > cut.log_from:
            cut.log_from = min(ask.log_from, GONE)
            self._keep_log()
        return CutKept(ask.lease_ms)

    def _close(self, number: int) -> SnapshotMeta | None:
        cut = self._cuts.pop(number, None)
        if cut is None:
            return None
        cut.stretch.close()
        self._keep_log()
        if cut.snapshot is not None:
            self._replica.snapshots.release(cut.snapshot)
            self._replica.copies.drop_old()
        return cut.snapshot

    # -- bounds -------------------------------------------------------------------------------

    def tend(self, now_ms: int) -> None:
        """After a drain: end what nobody renews, and let a log go that has grown too large."""
        if not self._cuts and self._awaited[0] == ALL:
            return
        for number in [n for n, cut in self._cuts.items() if now_ms > cut.until_ms]:
            self._counters["cuts_expired"] += 1
            self._close(number)
        if now_ms > self._awaited[1]:
            self._awaited = (ALL, 0)
        bound = max(KEPT_BYTES_MIN, FETCH_FACTOR * self._replica.settings.keep_bytes_max)
        if self._replica.kept_index != ALL and self._replica.log.size_bytes >= bound:
            self._revoke()
        self._keep_log()

    def _revoke(self) -> None:
        """Whoever needs the oldest part of the log has to begin anew."""
        self._counters["cuts_revoked"] += 1
        oldest = min(self._cuts.values(), key=lambda cut: cut.log_from, default=None)
        if oldest is None or self._awaited[0] + 1 <= oldest.log_from:
            self._awaited = (ALL, 0)
        else:
            oldest.log_from = GONE

    def _keep_log(self) -> None:
        kept = min((cut.log_from - 1 for cut in self._cuts.values()), default=ALL)  # ALL: GONE - 1
        self._replica.kept_index = min(kept, self._awaited[0])


def _compacted(index: int, first: int) -> Compacted:
    return Compacted(
        f"the log from index {index} on is not kept any more: it was not read in time, or has"
        " outgrown its bound; open another cut",
        first_available=first if first < GONE else None,
    )
