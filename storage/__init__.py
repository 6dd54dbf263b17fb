"""Files: the segmented log, the superblock, the snapshots, and what a restart may believe of them.

This room knows no Raft and no sockets; it keeps its promises on any `Files`, the operating
system's or a simulated disk. A worker opens its shard once:

    files = RealFiles("data")
    shard = recover(files, "shard-0", cluster=…, member=…)

and then, for everything it is about to promise to others:

1. term or vote: `shard.superblock.store(state)`, before the reply.
2. records: `shard.log.append_batch(records, commit)`, then `shard.log.sync()`, before the
   acknowledgement. `NoSpace` changed nothing; `SyncFailed` means exit, now.
3. a snapshot: `shard.snapshots.write(…)`, then `shard.log.truncate_front(index)`.
4. a snapshot from a peer: `receive` … `finish`, restore the state machine, `log.reset(anchor)`.

Where to look:

    files, publish            the file system behind a protocol; atomic publishing
    records, segment          the bytes of a batch; of a segment and its sidecar
    scan, reader, timeline    walking batches; reading records; the picture in memory
    log, options              the log itself and its settings
    stretch                   records outside of a log, as bytes that prove themselves
    replay, mend              what open believes; what open does about it
    manifest, verify, receiver, snapshots
    superblock, recovery, errors
    audit, audit_*            looking at all of it without opening it, LMDB's pages included
    partition_log             the log of one stream partition, and in partition_*:
                              records, segment (its bytes), plan, sync (writing), scan, lookup,
                              verify (reading), open (what a mark proves), handles, options
"""

from shardnode.storage.errors import (
    ChunkRefused,
    Compacted,
    Corrupt,
    DiskFailed,
    IdentityMismatch,
    LogDamaged,
    NoSpace,
    OffsetPastEnd,
    OffsetTrimmed,
    PartitionDamaged,
    SnapshotCorrupt,
    StorageError,
    SuperblockUnreadable,
    SyncFailed,
    TooLarge,
)
from shardnode.storage.files import File, Files, RealFiles
from shardnode.storage.log import SegmentedLog
from shardnode.storage.manifest import SnapshotFile, SnapshotMeta
from shardnode.storage.options import LogOptions, Opened, OpenReport
from shardnode.storage.partition_log import PartitionLog
from shardnode.storage.partition_options import PartitionOptions
from shardnode.storage.publish import publish_dir, publish_file
from shardnode.storage.receiver import Receiver
from shardnode.storage.records import Anchor, Record
from shardnode.storage.recovery import Recovered, recover
from shardnode.storage.snapshots import SnapshotStore
from shardnode.storage.superblock import Superblock, SuperblockState, SuperblockStatus

__all__ = [
    "Anchor",
    "ChunkRefused",
    "Compacted",
    "Corrupt",
    "DiskFailed",
    "File",
    "Files",
    "IdentityMismatch",
    "LogDamaged",
    "LogOptions",
    "NoSpace",
    "OffsetPastEnd",
    "OffsetTrimmed",
    "OpenReport",
    "Opened",
    "PartitionDamaged",
    "PartitionLog",
    "PartitionOptions",
    "RealFiles",
    "Receiver",
    "Record",
    "Recovered",
    "SegmentedLog",
    "SnapshotCorrupt",
    "SnapshotFile",
    "SnapshotMeta",
    "SnapshotStore",
    "StorageError",
    "Superblock",
    "SuperblockState",
    "SuperblockStatus",
    "SuperblockUnreadable",
    "SyncFailed",
    "TooLarge",
    "publish_dir",
    "publish_file",
    "recover",
]
