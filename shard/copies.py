"""Snapshots of a replica: taking them, giving them to others, and installing a leader's.

The one rule: a snapshot stands in for a part of the log, so everything here keeps the two in step:
one is taken where the log still reaches, and one that is installed resets the log to where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from shardnode.raft import Message, SnapshotRef
from shardnode.shard.boot import restore, snapshot_ref
from shardnode.shard.builder import Builder, BuildFailed
from shardnode.shard.transfer import Download, Piece, Pull, serve
from shardnode.storage.errors import NoSpace, SnapshotCorrupt
from shardnode.storage.records import Anchor
from shardnode.storage.snapshots import SnapshotMeta

if TYPE_CHECKING:
    from shardnode.shard.replica import Replica

Send = Callable[[Sequence[Message | Pull | Piece]], None]
Busy = Callable[[], AbstractContextManager[object]]
"""Surrounds work that may take long."""

SNAPSHOTS_KEPT = 2
"""The newest, and the one before it for members that are just fetching it."""

BUILD_AGAIN_MS = 5_000

log = logging.getLogger("shardnode.shard")


class Copies:
    """The snapshots of one replica, and what is on its way in."""

    def __init__(
        self, replica: Replica, send: Send, *, builder: Builder | None, busy: Busy
    ) -> None:
        self._replica = replica
        self._send = send
        self._builder = builder
        self._busy = busy
        self._not_before_ms = 0
        self.trouble = ""
        """Why the last attempt to build one failed; empty when it did not."""
        self._download: Download | None = None

    def tick(self) -> None:
        """Ask again for what does not come."""
        if self._download is not None:
            pull = self._download.tick(self._replica.raft.now_ms)
            if pull is not None:
                self._send([pull])

    def close(self) -> None:
        """Leave nothing running."""
        if self._builder is not None:
            self._builder.close()

    # -- taking and giving --------------------------------------------------------------------

    def serve(self, pull: Pull) -> None:
        """A member asks for a piece."""
        replica = self._replica
        if pull.doubt:
            self.look_at(pull.snapshot)
        piece = serve(replica.snapshots, pull, replica.settings.transfer.piece_bytes)
        replica.counters["snapshot_bytes_out"] += len(piece.data)
        self._send([piece])

    def take_snapshot(self, through: int = 0) -> None:
        """Publish the state, for members that the log does not reach back to, or for readers who
        want all of it up to an index: then what is not stored yet is flushed first."""
        replica = self._replica
        if replica.catching_up:
            return
        if self._builder is not None:
            if replica.flushed_index < through:
                replica.flush_wanted = True
            elif not self._builder.busy and replica.raft.now_ms >= self._not_before_ms:
                self._builder.begin(replica.snapshots.building)
            return
        index = replica.machine.applied_index
        term = replica.raft.log.term(index)
        assert term is not None
        replica.flush()
        try:
            meta = replica.snapshots.write(
                index,
                term,
                replica.log.chain(index),
                replica.membership_bytes(),
                replica.machine.snapshot(),
            )
        except NoSpace:
            replica.counters["snapshot_failed"] += 1
            return
        self._published(meta)

    def _published(self, meta: SnapshotMeta) -> None:
        replica = self._replica
        replica.snapshot_index = meta.index
        replica.store_watermark(meta.index)
        self.trouble = ""
        self.drop_old()
        replica.raft.compacted(snapshot_ref(meta))

    def look_at_builder(self) -> None:
        """Publish what was built, unless the log does not reach back to it any more."""
        builder, replica = self._builder, self._replica
        if builder is None or not builder.busy:
            return
        try:
            built = builder.poll()
        except BuildFailed as error:
            self._build_failed(str(error))
            return
        if built is None:
            return
        if built.index < replica.log.anchor.index:
            replica.snapshots.discard(replica.snapshots.building)
            self._build_failed(f"index {built.index} is not in the log any more")
            return
        term, chain = replica.log.term(built.index), replica.log.chain(built.index)
        meta = SnapshotMeta(built.index, term, chain, built.membership, built.files)
        try:
            self._published(replica.snapshots.adopt(replica.snapshots.building, meta))
        except NoSpace as error:
            self._build_failed(str(error))

    def _build_failed(self, why: str) -> None:
        replica = self._replica
        log.warning("no snapshot: %s; tried again in %d ms", why, BUILD_AGAIN_MS)
        self.trouble = why
        replica.counters["snapshot_failed"] += 1
        self._not_before_ms = replica.raft.now_ms + BUILD_AGAIN_MS

    def drop_old(self) -> None:
        """Keep the newest ones, and those that are being read."""
        replica = self._replica
        kept = sorted(meta.index for meta in replica.snapshots.list())[-SNAPSHOTS_KEPT:]
        if kept:
            replica.snapshots.drop_below(kept[0])

    # -- a leader's -----------------------------------------------------------------------------

    def begin_download(self, ref: SnapshotRef, source: int) -> None:
        """Fetch what the leader offers, unless we are at it already."""
        replica, current = self._replica, self._download
        if current is not None and current.source == source:
            return
        try:
            self._download = download = Download(
                replica.snapshots,
                ref,
                source,
                cluster=replica.settings.cluster,
                member=replica.settings.member,
                options=replica.settings.transfer,
                now_ms=replica.raft.now_ms,
            )
        except NoSpace:
            self._give_up_download()
            return
        if download.complete:
            self._finish_download(download)
        else:
            self._send([download.first_pull()])

    def look_at(self, snapshot: int) -> None:
        """Somebody could not use it. When it is bad on our disk, make another to offer."""
        replica = self._replica
        meta = replica.snapshots.find(snapshot)
        if meta is None:
            return
        try:
            replica.snapshots.verify(meta)
        except SnapshotCorrupt:
            replica.counters["snapshot_damaged"] += 1
            self.take_snapshot()

    def _give_up_download(self) -> None:
        """The disk is full. The leader offers again, and what has arrived is not fetched twice."""
        self._replica.counters["download_failed"] += 1
        self._download = None

    def take_piece(self, piece: Piece) -> None:
        """A piece came."""
        download, counters = self._download, self._replica.counters
        if download is None or (piece.source, piece.snapshot) != (
            download.source,
            download.meta.id,
        ):
            counters["stale_piece"] += 1
        elif piece.gone:
            self._download = None
        else:
            counters["snapshot_bytes_in"] += len(piece.data)
            self._keep_piece(download, piece)

    def _keep_piece(self, download: Download, piece: Piece) -> None:
        try:
            pull = download.take(piece, self._replica.raft.now_ms)
        except NoSpace:
            self._give_up_download()
            return
        if pull is not None:
            self._send([pull])
        elif download.complete:
            self._finish_download(download)

    def _finish_download(self, download: Download) -> None:
        self._download = None
        if not self._replica.raft.needs_snapshot(download.ref):
            return
        with self._busy():
            self._install(download)

    def _install(self, download: Download) -> None:
        replica = self._replica
        try:
            meta = download.finish()
        except SnapshotCorrupt:
            replica.counters["snapshot_corrupt"] += 1
            self._send([download.complaint()])
            return
        except NoSpace:
            self._give_up_download()
            return
        if meta.index > replica.machine.applied_index:
            restore(replica.machine, replica.snapshots, meta)
        replica.log.reset(Anchor(meta.index, meta.term, meta.chain))
        replica.raft.installed(download.ref)
        replica.snapshot_index = meta.index
        replica.flushed_index = replica.machine.applied_index
        replica.store_watermark(meta.index)
        replica.forget_waiting(meta.index)
