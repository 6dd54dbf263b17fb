"""Bringing one replica back: what a restart may believe, and in which order it is opened.

The one rule: nothing here invents or drops what was acknowledged. Damage stops the boot with a
typed error; only when the caller says that peers hold the data (`repair`) is the intact part kept
and the member marked as recovering, durably, before anything else, so that it neither votes nor
campaigns until it has caught up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shardnode.raft import HardState, Membership, Options, SnapshotRef
from shardnode.shard.machine import StateMachine
from shardnode.shard.settings import WorkerSettings
from shardnode.shard.transfer import TransferOptions
from shardnode.storage.errors import Corrupt, LogDamaged
from shardnode.storage.files import Files
from shardnode.storage.log import SegmentedLog
from shardnode.storage.options import LogOptions
from shardnode.storage.records import ORIGIN
from shardnode.storage.recovery import Recovered, recover
from shardnode.storage.snapshots import SnapshotMeta, SnapshotStore
from shardnode.storage.superblock import Superblock

KEEP_ENTRIES = 8_192
KEEP_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Who a replica is and how often it tidies up."""

    directory: str
    cluster: int
    member: int
    bootstrap: Membership
    """The members at first boot; afterwards the log says who belongs to the group."""

    blank: bool = False
    """At first boot: the group is older than this member's disk, so it has to recover first."""

    repair: bool = False
    """Other members hold the data: keep the intact part of a damaged log and refetch the rest."""

    raft: Options = field(default_factory=Options)
    log: LogOptions = field(default_factory=LogOptions)
    transfer: TransferOptions = field(default_factory=TransferOptions)

    flush_every_entries: int = 4096
    """How far effects may run ahead of their durable form; bounds the redo after a crash."""

    snapshot_every_entries: int = 0
    """Take one that often; 0: only when a member needs it. The log is cut behind what is durable
    elsewhere, with or without snapshots."""

    keep_entries: int = KEEP_ENTRIES
    """Entries kept behind durable effects, so that a member slightly behind needs only the log. A
    leader keeps what its members lack, too."""

    keep_bytes_max: int = KEEP_BYTES_MAX
    """… while the log is smaller than this. Who lags more needs a snapshot."""


@dataclass(slots=True)
class Booted:
    """Everything opened, and from where consensus goes on."""

    superblock: Superblock
    snapshots: SnapshotStore
    log: SegmentedLog
    hard_state: HardState
    membership: Membership
    snapshot: SnapshotRef | None
    commit: int
    applied: int


def boot(settings: ReplicaSettings, files: Files, machine: StateMachine) -> Booted:
    """Open the files of one replica and bring its state machine to a point the log covers."""
    recovered = recover(
        files,
        settings.directory,
        cluster=settings.cluster,
        member=settings.member,
        options=settings.log,
        salvage=settings.repair,
        blank=settings.blank,
    )
    log = recovered.log
    meta = _restore_machine(machine, recovered, settings)
    if machine.applied_index > log.last_index:
        _admit_loss(settings, recovered, machine.applied_index)
    state = recovered.superblock.state
    assert state is not None
    # Effects prove what was committed only while the log is the one that they came from.
    commit = recovered.commit if state.recovering else max(recovered.commit, machine.applied_index)
    applied = min(machine.applied_index, commit)
    encoded = machine.membership or (meta.membership if meta else b"")
    return Booted(
        superblock=recovered.superblock,
        snapshots=recovered.snapshots,
        log=log,
        hard_state=HardState(state.term, state.vote, state.recovering),
        membership=Membership.decode(encoded) if encoded else settings.bootstrap,
        snapshot=snapshot_ref(meta) if meta else None,
        commit=commit,
        applied=applied,
    )


def _admit_loss(settings: ReplicaSettings, recovered: Recovered, applied: int) -> None:
    """Effects beyond the end of the log prove that it was longer: refuse, or recover."""
    state, last = recovered.superblock.state, recovered.log.last_index
    assert state is not None
    if state.recovering:
        return
    if not settings.repair:
        raise LogDamaged(
            f"effects are durable through index {applied} but the log ends at {last}",
            path=settings.directory,
            offset=0,
            first_bad_index=last + 1,
            durable_mark=applied,
            valid_through=last,
        )
    recovered.superblock.store(replace(state, recovering=True))


def _restore_machine(
    machine: StateMachine, recovered: Recovered, settings: ReplicaSettings
) -> SnapshotMeta | None:
    """A state machine behind the beginning of the log starts over from the snapshot; which one."""
    log, meta = recovered.log, recovered.snapshot
    if machine.applied_index >= log.anchor.index:
        return meta
    try:
        if meta is None or meta.index < log.anchor.index:
            raise Corrupt(
                f"effects are durable through index {machine.applied_index}, the log begins after "
                f"{log.anchor.index}, and no sound snapshot covers the gap",
                path=settings.directory,
                advice="repair this member from its peers",
            )
        restore(machine, recovered.snapshots, meta)
    except Corrupt:
        if not settings.repair:
            raise
        _start_over(recovered)
        return None
    return meta


def _start_over(recovered: Recovered) -> None:
    """Between the effects and the log there is a gap that only peers can fill: the log begins
    anew, and what the effects hold already is skipped on the way."""
    state = recovered.superblock.state
    assert state is not None
    recovered.superblock.store(replace(state, recovering=True))
    recovered.log.reset(ORIGIN)
    recovered.commit = 0


def restore(machine: StateMachine, snapshots: SnapshotStore, meta: SnapshotMeta) -> None:
    """Replace the state by a published snapshot."""
    machine.restore(
        meta.index,
        meta.membership,
        [part.name for part in meta.files],
        lambda name: snapshots.read_file(meta, name),
    )


def snapshot_ref(meta: SnapshotMeta) -> SnapshotRef:
    """How consensus names a snapshot that storage keeps."""
    return SnapshotRef(meta.index, meta.term, Membership.decode(meta.membership), meta.encode())


def replica_settings(settings: WorkerSettings, directory: str) -> ReplicaSettings:
    """How consensus and storage are set up for this worker."""
    raft, storage = dict(settings.raft), dict(settings.storage)
    return ReplicaSettings(
        directory=directory,
        cluster=settings.cluster_id,
        member=settings.member,
        bootstrap=Membership.of(settings.voters),
        repair=len(settings.nodes) > 1,
        raft=Options(**{name: value for name, value in raft.items() if name in Options.__slots__}),
        log=LogOptions(
            **{name: value for name, value in storage.items() if name in LogOptions.__slots__}
        ),
        flush_every_entries=1 << 62,  # the loop flushes in slices
        snapshot_every_entries=storage.get("snapshot_entries", 0),
        keep_entries=storage.get("keep_entries", KEEP_ENTRIES),
        keep_bytes_max=storage.get("keep_bytes_max", KEEP_BYTES_MAX),
    )
