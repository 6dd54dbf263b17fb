"""Consensus as a pure state machine: messages and ticks in, actions out.

No clock, socket, file or thread is touched here; time and randomness are given. One `Raft` is one
member of one group (one shard on one node). The caller owns the log, the state machine and the
network, and has these duties, in this order:

1. Feed it: `tick(now_ms)` with a monotonic clock, `step(message)` for what peers said, and
   `propose`, `read_index`, `change_config`, `transfer` for what clients want.
2. Take `ready()` until it is None, and for each one:
   a. send `messages` at once: they may overtake the fsync of step c, which is how a leader's own
      write overlaps its followers';
   b. make `hard_state` durable, both copies, before anything else of this Ready;
   c. append `entries` to the log (they overwrite from their first index on) and fsync once;
   d. call `persisted(persist_index, persist_term)`;
   e. only now send `after_persist`: acknowledgements and votes;
   f. apply `committed` in order, exactly once, and call `applied(index)`;
   g. answer `reads`, refuse `refused_reads`, fetch `install` on the bulk lane.
3. When the disk is full in step c, call `append_failed()` instead of d and e. When an fsync
   fails, stop the process: what is on disk is not known any more.
4. After taking a snapshot and truncating the log, call `compacted(snapshot)`. After fetching one
   that `needs_snapshot` still wants: restore the state machine, reset the log to it, durably,
   then call `installed(snapshot)`.

The loop, written out:

    raft.tick(clock.now_ms())
    for message in inbox:
        raft.step(message)
    while (ready := raft.ready()) is not None:
        send(ready.messages)
        if ready.hard_state is not None:
            superblock.store(ready.hard_state)
        if ready.entries:
            log.append_batch(ready.entries, ready.commit)
            log.sync()
        if ready.must_persist:
            raft.persisted(ready.persist_index, ready.persist_term)
        send(ready.after_persist)
        if ready.committed:
            machine.apply(ready.committed)
            raft.applied(ready.committed[-1].index)
"""

from shardnode.raft.core import Raft
from shardnode.raft.errors import (
    BadTarget,
    Busy,
    ChangePending,
    MalformedMessage,
    NotLeader,
    NotReady,
    ProtocolViolation,
    RaftError,
    Refused,
)
from shardnode.raft.membership import Membership
from shardnode.raft.messages import Message
from shardnode.raft.types import (
    RAFT_PARTITION,
    Entry,
    HardState,
    LogReader,
    Options,
    Proposal,
    ReadGrant,
    Ready,
    Role,
    SnapshotRef,
    Standing,
)

__all__ = [
    "RAFT_PARTITION",
    "BadTarget",
    "Busy",
    "ChangePending",
    "Entry",
    "HardState",
    "LogReader",
    "MalformedMessage",
    "Membership",
    "Message",
    "NotLeader",
    "NotReady",
    "Options",
    "Proposal",
    "ProtocolViolation",
    "Raft",
    "RaftError",
    "ReadGrant",
    "Ready",
    "Refused",
    "Role",
    "SnapshotRef",
    "Standing",
]
