"""Doing what `repair` has planned, so that a crash in between leaves what can be planned again.

The one rule: first what makes the next start notice is durable, then something is moved. Everything
goes through the mechanisms of a start: `recover` for a log among peers, `start_over` for a shard.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shardnode.offline.repair import Plan, Remedy
from shardnode.shard.rebuild import start_over, wish
from shardnode.shard.worker import FENCED_FILE
from shardnode.storage.files import Files, RealFiles, join
from shardnode.storage.log import SegmentedLog
from shardnode.storage.publish import set_aside
from shardnode.storage.records import Anchor
from shardnode.storage.recovery import recover
from shardnode.storage.snapshots import QUARANTINE_DIRECTORY
from shardnode.storage.superblock import COPIES, Superblock, SuperblockState

_WISH = "asked for by `shardnode repair`"


def carry_out(root: Path, plan: Plan) -> list[str]:
    """Do it; where things are now."""
    files = RealFiles(root)
    if plan.remedy is Remedy.LEAVE:
        return []
    if plan.remedy in (Remedy.SPARE, Remedy.REMAKE):
        quarantine = join(plan.shard, QUARANTINE_DIRECTORY)
        moved = [set_aside(files, each, quarantine) for each in plan.aside if files.exists(each)]
        if plan.aside[0] in [join(plan.shard, name) for name in COPIES]:
            Superblock.load(files, plan.shard)  # which writes both again
        return moved
    if plan.remedy is Remedy.REFETCH:
        return _refetch(files, plan.shard)
    state = _superblock(files, plan.shard)
    if plan.remedy is Remedy.SALVAGE:
        recovered = recover(
            files, plan.shard, cluster=state.cluster, member=state.member, salvage=True
        )
        recovered.log.close()
        if recovered.log.last_index < plan.log_end:  # the keys prove that it was longer
            state = _superblock(files, plan.shard)
            recovered.superblock.store(replace(state, recovering=True))
        return list(recovered.log.recovery.quarantined)
    return _go_on_alone(files, plan)


def _refetch(files: Files, shard: str) -> list[str]:
    superblock = Superblock.load(files, shard)
    assert superblock.state is not None, "planned with a superblock that can be read"
    superblock.store(replace(superblock.state, recovering=True))
    wish(files, shard, _WISH)  # a crash in between: the next start goes on with it
    moved = start_over(files, shard)
    fenced = join(shard, FENCED_FILE)
    if files.exists(fenced):
        moved.append(set_aside(files, fenced, join(shard, QUARANTINE_DIRECTORY)))
    return moved


def _superblock(files: Files, shard: str) -> SuperblockState:
    state = Superblock.load(files, shard).state
    assert state is not None, "planned with a superblock that can be read"
    return state


def _go_on_alone(files: Files, plan: Plan) -> list[str]:
    """The log ends where it can be read, or begins after the keys; then the watermark says so.

    Until the watermark is lower than the log's end, a start refuses as before.
    """
    superblock = Superblock.load(files, plan.shard)
    state = superblock.state
    assert state is not None, "planned with a superblock that can be read"
    log = SegmentedLog.open(files, plan.shard, durable_mark=state.commit, salvage=True)
    try:
        if plan.remedy is Remedy.AFTER_KEYS:
            # Where no snapshot tells, it is a term that none there can be above, and a chain that
            # no other log has.
            log.reset(plan.anchor or Anchor(plan.log_end, state.term, files.token()))
        superblock.store(replace(state, commit=min(state.commit, log.last_index)))
        return list(log.recovery.quarantined)
    finally:
        log.close()
