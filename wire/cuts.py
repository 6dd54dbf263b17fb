"""Bulk reads: a consistent cut of one shard, handed out in pieces.

A cut is the state of a shard at one index of its log: a snapshot, and the log from there to that
index. Whoever holds both can build that state, or the one at any index in between.

One rule: what a cut names does not change while it lives. It lives on the replica that opened it,
in memory, as long as its lease is renewed: a cut that replica does not know any more is
`NotFound`, and one that held up more of the log than it may is `Compacted`. Then open another: the
same snapshot has the same id everywhere, and the log has one history.
"""

from dataclasses import dataclass
from typing import Annotated

from shardnode.wire import limits
from shardnode.wire.codec import Answer, Body
from shardnode.wire.fields import Bytes, Flag, Int, Level, Number, OptionalNumber, Text
from shardnode.wire.kinds import Consistency

LEASE_MS = 30_000
"""What a reader asks for that has no reason to ask for something else."""

MANIFEST_FILE = "manifest"
"""As the file of a `CutRead`: the description of the snapshot, which lists its files."""

_CutId = Annotated[int, Int(low=1)]
_Lease = Annotated[int, Int("cut_lease_ms_max", low=limits.cut_lease_ms_min)]
_Size = Annotated[int, Int("cut_piece_bytes_max", low=1)]
_Index = Annotated[int, Int(low=1)]


@dataclass(frozen=True, slots=True)
class CutOpen(Body):
    """Open a cut of now. Answered by `CutOpened`; `Compacted` if the log does not reach back to
    `after`, and no snapshot is wanted; `Conflict` if the history at `after` is another one."""

    lease_ms: _Lease
    after: OptionalNumber = None
    """The reader has the log through this index: only the rest is wanted. None: it has nothing."""
    after_chain: Number = 0
    """The chained checksum of the record at `after`."""
    snapshot: Flag = True
    """Whether a snapshot is wanted; else the log alone, behind `after`."""
    snapshot_min: Number = 0
    """A snapshot of this index or a later one will do, however much log follows it; 0: see below.
    It comes from an earlier answer."""
    log_bytes_max: Number = 0
    """A snapshot that more log follows is too old: then another one is built first."""
    consistency: Level = Consistency.LINEARIZABLE
    """STALE: any member opens one, of what it has applied."""
    snapshot_id: Number = 0
    """The snapshot that it has to be, whatever else is asked for, and no log behind it. All who ask
    for it share one cut, which lives as long as the longest of their leases: do not close it.
    `NotFound` when this member has not got it. 0: any."""


@dataclass(frozen=True, slots=True)
class CutOpened(Answer):
    """A cut. With `cut` 0 there is none yet: a snapshot is being built, so ask again soon, with the
    `snapshot_min` that stands here."""

    cut: Number
    node: Annotated[int, Int("node_id_max", low=1)]
    """The node that opened it: all that concerns the cut is sent to this one."""
    index: Number
    """Everything up to here, and nothing behind it. With `cut` 0: what an index of now would be."""
    chain: Number
    """The chained checksum of the record at `index`."""
    through_ms: Number
    """Milliseconds since 1970 UTC: every entry stamped by then is at or below `index`."""
    snapshot: Number
    """Its id, which tells its content; 0: none, and the log begins at 1 or behind `after`."""
    snapshot_index: Number
    snapshot_bytes: Number
    """Of all its files, without the manifest."""
    manifest_bytes: Number
    log_after: Number
    """The log of the cut begins behind this index …"""
    log_after_term: Number
    log_after_chain: Number
    """… which has this term and chained checksum."""
    log_bytes: Number
    """About how much log there is."""
    snapshot_min: Number
    note: Annotated[str, Text("error_message_bytes_max")]
    """Why it takes, if something went wrong; empty otherwise."""
    directory: Annotated[str, Text("path_bytes_max")] = ""
    """Where the files of the snapshot lie, for a reader on the machine of that node, if it may read
    them; the manifest tells whether it is the same one. Empty: they lie in no directory."""


@dataclass(frozen=True, slots=True)
class CutRead(Body):
    """A piece of a file of the cut's snapshot. Answered by `CutPiece`, which is shorter only at the
    end of the file. Not checked on the way: the manifest has a checksum of every file."""

    cut: _CutId
    file: Annotated[str, Text("name_bytes_max")]
    offset: Number
    size: _Size


@dataclass(frozen=True, slots=True)
class CutLog(Body):
    """A piece of the cut's log, as the bytes of its records one after another, from the record
    `first` on. Answered by `CutPiece`, which is shorter only at the end of the cut. Not checked on
    the way: every record has its chained checksum."""

    cut: _CutId
    first: _Index
    offset: Number
    """From the first byte of that record."""
    size: _Size


@dataclass(frozen=True, slots=True)
class CutPiece(Answer):
    """Bytes."""

    data: Annotated[bytes, Bytes("cut_piece_bytes_max")]


@dataclass(frozen=True, slots=True)
class CutKeep(Body):
    """Start the lease anew. Answered by `CutKept`."""

    cut: _CutId
    lease_ms: _Lease
    log_from: Number = 0
    """The reader has the log below this index: it need not be held for this cut any more."""


@dataclass(frozen=True, slots=True)
class CutKept(Answer):
    """The cut lives at least this long from now, without a further sign of life."""

    lease_ms: Number


@dataclass(frozen=True, slots=True)
class CutClose(Body):
    """The cut is not needed any more; again is harmless. Answered by `CutClosed`."""

    cut: _CutId
    doubt: Flag = False
    """A file was not what its checksum says: look whether yours still is."""


@dataclass(frozen=True, slots=True)
class CutClosed(Answer):
    """The cut is gone."""
