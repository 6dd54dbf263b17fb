"""Moving a snapshot from a leader to a member: the bulk lane.

The one rule: the receiver pulls. It asks for one bounded piece at a time at the offset it has,
so an interrupted transfer goes on where it stopped, a slow receiver slows nobody, and a sender
that no longer has the snapshot says so instead of sending another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardnode.raft import SnapshotRef
from shardnode.storage.snapshots import Receiver, SnapshotMeta, SnapshotStore


@dataclass(frozen=True, slots=True)
class Pull:
    """Send me `size` bytes of snapshot `snapshot` from `offset`."""

    cluster: int
    source: int
    target: int
    snapshot: int
    offset: int
    size: int
    doubt: bool = False
    """What you sent did not match its checksums: look whether yours still does."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a snapshot; `gone` when the sender does not have that snapshot any more."""

    cluster: int
    source: int
    target: int
    snapshot: int
    offset: int
    data: bytes
    gone: bool = False


BURST_MS = 200
"""How much of what was not used may be made up for."""


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """Bounds of one transfer."""

    piece_bytes: int = 1 << 20
    """One piece per round trip: large enough to fill a local link, small enough to be polite."""

    bytes_per_s: int = 128 << 20
    """What a member takes at most: a snapshot must leave room for everything else."""

    retry_ms: int = 500
    """A pull without an answer for this long is asked again."""


def serve(store: SnapshotStore, pull: Pull, bytes_max: int) -> Piece:
    """Answer one pull from what is published here."""
    meta = next((meta for meta in store.list() if meta.id == pull.snapshot), None)
    if meta is None or pull.offset > meta.size:
        return Piece(pull.cluster, pull.target, pull.source, pull.snapshot, pull.offset, b"", True)
    data = store.read_stream(meta, pull.offset, min(pull.size, bytes_max))
    return Piece(pull.cluster, pull.target, pull.source, pull.snapshot, pull.offset, data)


class Download:
    """The receiving side of one snapshot."""

    def __init__(
        self,
        store: SnapshotStore,
        ref: SnapshotRef,
        source: int,
        *,
        cluster: int,
        member: int,
        options: TransferOptions,
        now_ms: int,
    ) -> None:
        self.ref = ref
        self.source = source
        self.meta = SnapshotMeta.decode(ref.handle)
        self._receiver: Receiver = store.receive(self.meta)
        self._cluster = cluster
        self._member = member
        self._options = options
        self._asked_ms = now_ms
        self._waits = False
        self._room = options.bytes_per_s * BURST_MS // 1_000
        self._room_ms = now_ms

    def first_pull(self) -> Pull:
        """What to send to begin, or to go on after an interruption."""
        return self._pull()

    def tick(self, now_ms: int) -> Pull | None:
        """Ask for the next piece when there is room again, and again after silence."""
        if not self._waits and now_ms - self._asked_ms < self._options.retry_ms:
            return None
        return self._ask(now_ms)

    def take(self, piece: Piece, now_ms: int) -> Pull | None:
        """Keep a piece and ask for the next; None when nothing is left to ask."""
        if piece.offset != self._receiver.offset:
            return None
        self._receiver.write(piece.offset, piece.data)
        return None if self.complete else self._ask(now_ms)

    def _ask(self, now_ms: int) -> Pull | None:
        """The next pull, unless we have had our share for the moment."""
        options = self._options
        burst = options.bytes_per_s * BURST_MS // 1_000
        gained = (now_ms - self._room_ms) * options.bytes_per_s // 1_000
        self._room, self._room_ms = min(burst, self._room + gained), now_ms
        self._asked_ms = now_ms
        self._waits = self._room < 0
        if self._waits:
            return None
        self._room -= options.piece_bytes
        return self._pull()

    @property
    def complete(self) -> bool:
        """Whether every byte has arrived; `finish` then verifies and publishes."""
        return self._receiver.offset >= self.meta.size

    def finish(self) -> SnapshotMeta:
        """Verify every checksum and publish atomically; `SnapshotCorrupt` starts over."""
        return self._receiver.finish()

    def complaint(self) -> Pull:
        """Tell the sender that what came is not what its manifest says."""
        return replace(self._pull(), doubt=True)

    def _pull(self) -> Pull:
        return Pull(
            self._cluster,
            self._member,
            self.source,
            self.meta.id,
            self._receiver.offset,
            self._options.piece_bytes,
        )
