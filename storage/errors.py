"""Owns the errors of the storage room, split by what the caller must do about them.

    StorageError
    ├── NoSpace               the disk or quota is full; nothing changed, a later try may work
    ├── SyncFailed            an fsync failed: exit the process at once, never try again
    ├── DiskFailed            the system refused to read or write (permission, I/O error, …)
    ├── TooLarge              a record or batch above a limit; nothing was written
    ├── Compacted             asked for an index below the first one kept; use a snapshot
    ├── OffsetTrimmed         asked for an offset below where a partition's log starts
    ├── OffsetPastEnd         asked for an offset above where it ends
    ├── ChunkRefused          a piece of a snapshot that does not continue what was received
    ├── BadFailpoint          the environment asks for a failpoint that cannot be
    ├── IdentityMismatch      the directory belongs to another cluster or member
    └── Corrupt               bytes that were once whole are not any more
        ├── LogDamaged            durable records are lost: repair from peers
        ├── PartitionDamaged      the same of one stream partition; the others are not touched
        ├── KeysCorrupt           the key-value files: fence the shard
        ├── SuperblockUnreadable  term and vote are unknown: this shard must not boot
        └── SnapshotCorrupt       a snapshot or its manifest fails its checksum

The one rule: a message says what was expected, what was found and what to do. Mistakes in our
own code are assertions, and are not in this tree.
"""

from __future__ import annotations


class StorageError(Exception):
    """Anything that storage reports on purpose."""


class NoSpace(StorageError):
    """The disk or quota is full. What was being written has been dropped."""


class SyncFailed(StorageError):
    """An fsync failed. The kernel may have thrown the data away and forgotten that it did."""


class DiskFailed(StorageError):
    """The operating system refused an operation for a reason other than space."""


class TooLarge(StorageError):
    """A record or a batch exceeds a limit of `LogOptions`. Nothing was written."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what} has {size} bytes, the limit is {limit}: split it")


class Compacted(StorageError):
    """The index asked for was truncated at the front; `first_available` is the oldest kept."""

    def __init__(self, index: int, first_available: int) -> None:
        self.index, self.first_available = index, first_available
        super().__init__(
            f"index {index} is no longer in the log, the first one kept is {first_available}: "
            "read the snapshot that covers it"
        )


class OffsetTrimmed(StorageError):
    """The offset asked for fell to retention; `first_available` is the lowest that is left."""

    def __init__(self, path: str, offset: int, first_available: int) -> None:
        self.path, self.offset, self.first_available = path, offset, first_available
        super().__init__(
            f"{path}: offset {offset} was trimmed, the first one kept is {first_available}: "
            "read on from there"
        )


class OffsetPastEnd(StorageError):
    """The offset asked for is not written yet; the next message will have `end_offset`."""

    def __init__(self, path: str, offset: int, end_offset: int) -> None:
        self.path, self.offset, self.end_offset = path, offset, end_offset
        super().__init__(
            f"{path}: offset {offset} is not written yet, the log ends at {end_offset}: "
            "read from there or below"
        )


class ChunkRefused(StorageError):
    """A chunk that would leave a gap or pass the end; send on from `expected`."""

    def __init__(self, path: str, expected: int, found: str) -> None:
        self.path, self.expected, self.found = path, expected, found
        super().__init__(f"{path}: {found}, but the snapshot continues at byte {expected}")


class BadFailpoint(StorageError):
    """A setting of `failpoints.py` that is spelt wrong, or names a point that is not there."""


class IdentityMismatch(StorageError):
    """The directory remembers another owner than the one that opens it."""

    def __init__(self, path: str, what: str, stored: int, given: int) -> None:
        self.path, self.what, self.stored, self.given = path, what, stored, given
        super().__init__(
            f"{path} belongs to {what} {stored:#x}, but was opened as {what} {given:#x}: "
            "check the configuration and the data directory"
        )


class Corrupt(StorageError):
    """Stored bytes that do not pass their checksum or contradict each other."""

    def __init__(
        self,
        detail: str,
        *,
        path: str = "",
        offset: int | None = None,
        advice: str = "",
    ) -> None:
        self.detail, self.path, self.offset, self.advice = detail, path, offset, advice
        place = path if offset is None else f"{path} at byte {offset}"
        message = f"{place}: {detail}" if place else detail
        super().__init__(f"{message}: {advice}" if advice else message)


class LogDamaged(Corrupt):
    """Records that were durable are lost or unreadable.

    `valid_through` is the last index that can still be read, `first_bad_index` the first that
    cannot, `durable_mark` the highest index that is known to have been durable (0 when the
    proof is a position in the file and no index).
    """

    def __init__(
        self,
        detail: str,
        *,
        path: str,
        offset: int,
        first_bad_index: int,
        durable_mark: int,
        valid_through: int,
    ) -> None:
        self.first_bad_index = first_bad_index
        self.durable_mark = durable_mark
        self.valid_through = valid_through
        super().__init__(
            f"{detail} (first bad index {first_bad_index}, valid through {valid_through}, "
            f"durable through {durable_mark})",
            path=path,
            offset=offset,
            advice="repair this member from its peers, or open with salvage to keep the rest",
        )


class PartitionDamaged(Corrupt):
    """Batches of one stream partition that were durable are lost or unreadable."""

    def __init__(self, detail: str, *, path: str, offset: int) -> None:
        super().__init__(
            detail,
            path=path,
            offset=offset,
            advice="fetch this partition's segment from a peer; its other files and the other "
            "partitions are not affected",
        )


class KeysCorrupt(Corrupt):
    """The key-value files contradict themselves. Only peers have what was in them."""


class SuperblockUnreadable(Corrupt):
    """Neither copy of term and vote can be believed. Never the same as "absent"."""


class SnapshotCorrupt(Corrupt):
    """A snapshot, a manifest or a download does not match its checksums."""
