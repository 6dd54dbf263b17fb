"""One shard on its way into a backup: what is copied of it, and from which cut.

    base        a snapshot (if the shard has one) and the log behind it, from one cut
    catching up the log from there, or from the last backup, to a later cut

The one rule: what is copied stays true whatever becomes of the cut. The log has one history, and a
snapshot of one id has the same bytes everywhere, so when a cut is lost (its process died, another
member leads, its lease ended) the next one is opened behind what is stored, and the copy goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardnode.backup.blobs import WrongContent, has_file, keep_file, read_file
from shardnode.backup.chunks import ChunkWriter
from shardnode.backup.format import Base, Chunk, ShardCut, snapshot_key
from shardnode.backup.pace import Pace
from shardnode.backup.store import Store
from shardnode.client.cuts import BulkReader, Cut
from shardnode.shard.rebirth import EFFECTS_PART, read_effects
from shardnode.storage.errors import Corrupt as BadRecords
from shardnode.storage.manifest import SnapshotFile, SnapshotMeta
from shardnode.storage.records import Anchor
from shardnode.wire.cuts import LEASE_MS, MANIFEST_FILE, CutOpen, CutOpened
from shardnode.wire.errors import (
    Compacted,
    Corrupt,
    DeadlineExceeded,
    NotFound,
    Overloaded,
    ShardnodeError,
    Unavailable,
)

FRESH_BYTES = 64 << 20
"""A snapshot with more log behind it is too old to begin with: a restore would redo all of that."""

CHUNKS_MAX = 500
"""Of one shard in a manifest: many small backups are followed by one that puts them together."""

ASK_AGAIN_S = 0.2
RENEW_EVERY_S = LEASE_MS / 3_000
PATIENCE_S = 60.0
"""How long a shard may bring nothing new: an election or a restart takes less."""

LOST = (NotFound, Compacted, Unavailable, DeadlineExceeded, Overloaded)
"""Another cut may do better."""

BAD_MAX = 3
"""Wrong bytes from one shard: another snapshot is made of a damaged one, but not for ever."""

Advance = Callable[[int], None]


@dataclass(slots=True)
class Moved:
    """What it cost."""

    fetched: int = 0
    """Bytes that came from the cluster."""
    reused: int = 0
    """Bytes of snapshots that were there already."""
    lost: int = 0
    """Cuts that had to be opened again."""


class ShardCopy:
    """The state of one shard's copy; `take` drives it."""

    def __init__(
        self,
        shard: int,
        store: Store,
        reader: BulkReader,
        pace: Pace,
        moved: Moved,
        *,
        clock: Callable[[], float],
        advance: Advance,
        previous: ShardCut | None,
    ) -> None:
        self.shard = shard
        self.cut: Cut | None = None
        """The one that is held now."""
        self.is_current = False
        """Whether a cut that was opened for this backup has been copied."""
        self.base = previous.base if previous is not None else None
        self.log: list[Chunk] = list(previous.log) if previous is not None else []
        self.position = previous.position if previous is not None else None
        """Behind what is stored of the log; None: nothing is."""
        self.through_ms = previous.through_ms if previous is not None else 0
        self._held_after = previous.start.index if previous is not None else 0
        """The log is stored from behind this index."""
        if len(self.log) > CHUNKS_MAX:
            self._held_after = 1 << 64  # all of it again, in one piece
        self._previous_index = previous.index if previous is not None else 0
        self._store = store
        self._reader = reader
        self._pace = pace
        self._moved = moved
        self._clock = clock
        self._advance = advance
        self._renewed_at = 0.0
        self._news_at = clock()
        self._bad = 0
        self._afresh = False

    # -- the two steps ------------------------------------------------------------------------

    def copy_base(self) -> None:
        """A snapshot and the log behind it; afterwards the log is held from there on, if it can."""
        self._news_at = self._clock()
        self._persist(lambda: self._open(snapshot=True), self._take_base)
        self.open_last()

    def open_last(self) -> bool:
        """A cut of now, to end with; the former is let go. False when the log between has gone."""
        held, self.cut = self.cut, None
        self._news_at = self._clock()
        try:
            self._persist(lambda: self._open(snapshot=False), lambda _: None)
        except Compacted:
            return False
        finally:
            if held is not None:
                self._close(held)
        return True

    def copy_rest(self) -> bool:
        """The log up to that cut. False as above. When much was written while the base was copied,
        it ends where it is: who is asked to go slowly could not catch up."""
        self._news_at = self._clock()
        if self.is_current and self.cut is not None and self.cut.opened.log_bytes > FRESH_BYTES:
            return True

        def again() -> Cut:
            return self.cut if self.cut is not None else self._open(snapshot=False)

        try:
            self._persist(again, self._take_log)
        except Compacted:
            return False
        return True

    def finished(self) -> ShardCut:
        """What the manifest says of it."""
        assert self.position is not None, "nothing was copied"
        log = tuple(sorted(self.log, key=lambda chunk: (chunk.first, chunk.last)))
        return ShardCut(self.shard, *self.position, self.through_ms, self.base, log)

    def let_go(self) -> None:
        """Nothing is needed of the shard any more."""
        cut, self.cut = self.cut, None
        if cut is not None:
            self._close(cut)

    # -- cuts ---------------------------------------------------------------------------------

    def beat(self) -> None:
        """Renew the lease when it is time. A cut that is lost is noticed when it is read."""
        now = self._clock()
        if self.cut is None or now - self._renewed_at < RENEW_EVERY_S:
            return
        self._renewed_at = now
        try:
            self._reader.keep(self.cut)
        except LOST:
            self._renewed_at = now

    def _persist(self, open_: Callable[[], Cut], work: Callable[[Cut], None]) -> None:
        """Do it, with as many cuts as it takes while something new comes."""
        while True:
            try:
                cut = open_()
                self._hold(cut)
                work(cut)
            except LOST as error:
                if self._asks_in_vain(error):
                    raise
                if isinstance(error, Unavailable | DeadlineExceeded):
                    self.cut = None  # whoever has it does not answer: its lease ends by itself
                self._give_up_cut(doubt=False)
            except (BadRecords, WrongContent, Corrupt) as error:
                self._bad += 1
                self._give_up_cut(doubt=True)
                if self._bad >= BAD_MAX:
                    raise self._bad_for_good(error) from error
            else:
                return
            self._moved.lost += 1
            self._pace.wait(ASK_AGAIN_S)

    def _asks_in_vain(self, error: ShardnodeError) -> bool:
        is_late = self._clock() - self._news_at > PATIENCE_S
        return is_late or (isinstance(error, Compacted) and self.cut is None)

    def _bad_for_good(self, error: Exception) -> Corrupt:
        return Corrupt(
            f"shard {self.shard}: what came is damaged ({error}); see `shardnode status` and the"
            " node's log, and run the backup again when the shard is well"
        )

    def _open(self, *, snapshot: bool) -> Cut:
        """A cut behind what is stored; waits until there is a snapshot, if one is wanted."""
        ask_again = 0
        while True:
            found = self._reader.open(self.shard, self._ask(snapshot, ask_again))
            if isinstance(found, Cut):
                return found
            ask_again = found.snapshot_min
            self._wait_for_snapshot(found)

    def _ask(self, snapshot: bool, snapshot_min: int) -> CutOpen:
        return CutOpen(
            LEASE_MS,
            after=self.position.index if self.position is not None else None,
            after_chain=self.position.chain if self.position is not None else 0,
            snapshot=snapshot,
            snapshot_min=snapshot_min,
            log_bytes_max=FRESH_BYTES,
        )

    def _wait_for_snapshot(self, found: CutOpened) -> None:
        if not found.note:
            self._news_at = self._clock()  # it is being built, however long that takes
        elif self._clock() - self._news_at > PATIENCE_S:
            raise Unavailable(f"shard {self.shard} could not build a snapshot: {found.note}")
        self._pace.wait(ASK_AGAIN_S)

    def _hold(self, cut: Cut) -> None:
        if cut is not self.cut:
            self.cut, self._renewed_at = cut, self._clock()

    def _give_up_cut(self, *, doubt: bool) -> None:
        cut, self.cut = self.cut, None
        if cut is not None:
            self._close(cut, doubt=doubt)

    def _close(self, cut: Cut, *, doubt: bool = False) -> None:
        try:
            self._reader.close(cut, doubt=doubt)
        except LOST:
            return  # its lease ends by itself

    # -- bytes --------------------------------------------------------------------------------

    def _take_base(self, cut: Cut) -> None:
        self._take_log(cut)
        self.base = self._take_snapshot(cut) if cut.opened.snapshot else None
        start = self.base.index if self.base is not None else 0
        # What is new stays in any case: it leads here from the last backup.
        self.log = [c for c in self.log if c.last > start or 0 < self._previous_index < c.last]

    def _begin_log(self, opened: CutOpened) -> Anchor:
        """Where to read on: behind what is stored, unless the shard begins elsewhere."""
        start = Anchor(opened.log_after, opened.log_after_term, opened.log_after_chain)
        if self.position is None or start.index > self.position.index:
            self.log = []
        elif start.index >= self._held_after:
            return self.position
        else:
            self.log = []  # what comes now has all of it
        self._held_after = start.index
        return start

    def _take_log(self, cut: Cut) -> None:
        opened = cut.opened
        self.position = self._begin_log(opened)
        while self.position.index < opened.index:
            writer = ChunkWriter(self.position)
            for piece in self._counted(self._reader.log(cut, self.position.index + 1)):
                writer.take(piece)
                if writer.is_full:
                    break
            if writer.position == self.position:
                raise BadRecords(f"the log ends before record {self.position.index + 1}")
            self.log.append(writer.store(self._store, self.shard))
            self.position = writer.position
            self._news_at = self._clock()
            self._reader.keep(cut, self.position.index + 1)
        if (self.position.index, self.position.chain) != (opened.index, opened.chain):
            raise BadRecords(f"the log that came ends with another chain at {self.position.index}")
        self.through_ms = opened.through_ms
        self.is_current = True

    def _take_snapshot(self, cut: Cut) -> Base:
        opened = cut.opened
        encoded = b"".join(
            self._counted(self._reader.file(cut, MANIFEST_FILE, opened.manifest_bytes))
        )
        meta = SnapshotMeta.decode(encoded)
        if (meta.id, meta.index) != (opened.snapshot, opened.snapshot_index):
            raise WrongContent(f"the manifest of another snapshot came, at index {meta.index}")
        for file in meta.files:
            self._take_file(cut, file)
        key = snapshot_key(self.shard, meta.index, meta.id)
        if self._store.exists(key) != len(encoded):
            self._store.put(key, encoded)
        return Base(meta.index, meta.term, meta.chain, meta.id, meta.size, self._stamp_of(meta))

    def _stamp_of(self, meta: SnapshotMeta) -> int:
        part = next((file for file in meta.files if file.name == EFFECTS_PART), None)
        if part is None:
            raise WrongContent(f"the snapshot at index {meta.index} has no part {EFFECTS_PART}")
        return read_effects(b"".join(read_file(self._store, self.shard, part)))[1]

    def _take_file(self, cut: Cut, file: SnapshotFile) -> None:
        if has_file(self._store, self.shard, file):
            self._moved.reused += file.size
            self._advance(file.size)
            return

        def pieces(offset: int) -> Iterator[bytes]:
            self._advance(offset)
            return self._counted(self._reader.file(cut, file.name, file.size, offset))

        try:
            keep_file(self._store, self.shard, file, pieces, afresh=self._afresh)
        except WrongContent:
            self._afresh = True
            raise
        self._afresh = False

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._moved.fetched += len(piece)
            self._advance(len(piece))
            self._news_at = self._clock()
            yield piece
            self._pace.moved(len(piece))
