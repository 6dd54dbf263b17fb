"""Owns the order in which a shard's files are opened, and what a restart may conclude from them.

1. The superblock. Unreadable refuses; absent is the first boot, but only when there is nothing
   else: a log or a snapshot without term and vote refuses too.
2. The snapshots: the newest sound one.
3. The log, held against the commit watermark of the superblock as far as no snapshot covers it.
4. An installation that a crash cut off between publishing the snapshot and resetting the log is
   finished, so log and snapshot agree about index, term and chain.

The one rule: journaled is not committed (C1). The commit index comes from watermarks that were
stored, never from how far the log reaches.

What the caller has to do: bring its state machine from its own applied index, or the snapshot,
to `commit`. An applied index below `log.anchor.index` needs the snapshot first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardnode.storage.errors import Corrupt, IdentityMismatch, LogDamaged, SnapshotCorrupt
from shardnode.storage.files import Files, join
from shardnode.storage.log import LOG_DIRECTORY, SegmentedLog, log_exists
from shardnode.storage.manifest import SnapshotMeta
from shardnode.storage.options import LogOptions
from shardnode.storage.publish import make_dir
from shardnode.storage.records import Anchor
from shardnode.storage.snapshots import SnapshotStore
from shardnode.storage.superblock import Superblock, SuperblockState, unreadable

_DEFAULTS = LogOptions()


@dataclass(slots=True)
class Recovered:
    """A shard's files, opened and in agreement with each other."""

    superblock: Superblock
    snapshots: SnapshotStore
    log: SegmentedLog
    snapshot: SnapshotMeta | None  # the newest sound one; `snapshots.damaged` names the others
    commit: int
    first_boot: bool
    log_was_reset: bool  # an interrupted installation was finished


def recover(
    files: Files,
    directory: str,
    *,
    cluster: int,
    member: int,
    options: LogOptions = _DEFAULTS,
    salvage: bool = False,
    blank: bool = False,
) -> Recovered:
    """Open everything in a shard's directory.

    With `salvage` a damaged log is opened as far as it is intact, and the superblock says
    `recovering` from before that on: peers must hold what was lost. With `blank` a first boot is
    that of a member whose disk was lost: it recovers too.
    """
    make_dir(files, directory)
    superblock = Superblock.load(files, directory)
    snapshots = SnapshotStore(files, directory)
    first_boot = superblock.state is None
    if first_boot:
        _refuse_orphans(files, directory, snapshots)
        superblock.store(SuperblockState(cluster, member, 0, 0, 0, 0, blank))
    _check_identity(superblock, directory, cluster, member)
    snapshot = snapshots.latest()
    log = _open_log(files, directory, options, superblock, snapshot, salvage)
    if superblock.sequence == 1:
        # The first store came before the log existed. From the second on it must exist.
        superblock.store(_state(superblock))
    was_reset = False
    while snapshot is not None:
        try:
            was_reset = _finish_install(directory, snapshots, snapshot, log)
            break
        except SnapshotCorrupt:
            if not salvage:
                raise
            # It may have covered what the log lacks. The store lists it as damaged by now.
            superblock.store(replace(_state(superblock), recovering=True))
            snapshot = snapshots.latest()
    known = [log.commit_watermark, snapshot.index if snapshot else 0]
    if not _state(superblock).recovering:
        # Else it speaks of a log that is lost: what stands there now may be what was overridden.
        known.append(_state(superblock).commit)
    commit = min(max(known), log.last_index)
    return Recovered(superblock, snapshots, log, snapshot, commit, first_boot, was_reset)


def _refuse_orphans(files: Files, directory: str, snapshots: SnapshotStore) -> None:
    if log_exists(files, directory) or snapshots.list() or snapshots.damaged:
        raise unreadable(directory, "there is a log or a snapshot, but no superblock")


def _check_identity(superblock: Superblock, directory: str, cluster: int, member: int) -> None:
    state = _state(superblock)
    if state.cluster != cluster:
        raise IdentityMismatch(directory, "cluster", state.cluster, cluster)
    if state.member != member:
        raise IdentityMismatch(directory, "member", state.member, member)


def _open_log(
    files: Files,
    directory: str,
    options: LogOptions,
    superblock: Superblock,
    snapshot: SnapshotMeta | None,
    salvage: bool,
) -> SegmentedLog:
    state = _state(superblock)
    # What a snapshot covers is not lost when the log lacks it: the log may even be behind it,
    # after an installation that was cut off. A member that is recovering has lost records before
    # and said so; until it has caught up only the log's own proofs count.
    covered = snapshot.index if snapshot else 0
    mark = state.commit if state.commit > covered and not state.recovering else 0
    try:
        if superblock.sequence > 1 and not state.recovering and not log_exists(files, directory):
            raise _log_is_gone(directory, mark)
        return SegmentedLog.open(files, directory, options, durable_mark=mark)
    except LogDamaged:
        if not salvage:
            raise
    # Durably and first: a crash during the salvage must not leave a log that looks whole.
    superblock.store(replace(state, recovering=True))
    return SegmentedLog.open(files, directory, options, durable_mark=mark, salvage=True)


def _log_is_gone(directory: str, mark: int) -> LogDamaged:
    return LogDamaged(
        "the log was emptied",
        path=join(directory, LOG_DIRECTORY),
        offset=0,
        first_bad_index=1,
        durable_mark=mark,
        valid_through=0,
    )


def _finish_install(
    directory: str, snapshots: SnapshotStore, snapshot: SnapshotMeta, log: SegmentedLog
) -> bool:
    """Make the log continue the snapshot. Returns whether it had to be reset for that."""
    position = Anchor(snapshot.index, snapshot.term, snapshot.chain)
    if position.index < log.anchor.index:
        return False
    if position.index <= log.last_index and log.term(position.index) == position.term:
        chain = log.chain(position.index)
        if chain == position.chain:
            return False
        found = f"chain {chain:016x} at index {position.index} of term {position.term}"
        raise _contradiction(directory, found, position)
    if position.index <= log.commit_watermark:
        found = f"committed term {log.term(position.index)} at index {position.index}"
        raise _contradiction(directory, found, position)
    snapshots.verify(snapshot)
    log.reset(position)
    return True


def _contradiction(directory: str, found: str, position: Anchor) -> Corrupt:
    return Corrupt(
        f"the log has {found}, the snapshot has term {position.term}, chain {position.chain:016x}",
        path=join(directory, LOG_DIRECTORY),
        advice="two histories in one directory; repair this member from its peers",
    )


def _state(superblock: Superblock) -> SuperblockState:
    assert superblock.state is not None
    return superblock.state
