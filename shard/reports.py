"""What a worker says about itself: a line for its supervisor, a status for clients.

The one rule: these are numbers read in passing; nothing is computed for them on the hot path.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shardnode.raft import Role
from shardnode.wire.cluster import StatusFound, cut, mark_columns
from shardnode.wire.placement import (
    CONTROL_PARTITION,
    GROUP_PARTITION,
    KEY_VALUE_PARTITION,
    split_member_id,
)

if TYPE_CHECKING:
    from shardnode.shard.worker import Worker

ROLES = {
    Role.FOLLOWER: "follower",
    Role.PRE_CANDIDATE: "candidate",
    Role.CANDIDATE: "candidate",
    Role.LEADER: "leader",
}


_INTERNAL = (KEY_VALUE_PARTITION, CONTROL_PARTITION, GROUP_PARTITION)


def report(worker: Worker) -> dict[str, Any]:
    """One line for the supervisor."""
    line: dict[str, Any] = {"state": worker.state, "error": worker.error, **_standing(worker)}
    service, replica = worker.service, worker.replica
    counters: dict[str, int] = {}
    if service is not None and replica is not None:
        counters |= service.counters
        counters |= {f"raft_{name}": count for name, count in replica.raft.counters.items()}
        counters |= {f"replica_{name}": count for name, count in replica.counters.items()}
        counters["watches"] = len(service.watches)
    counters |= worker.traffic
    line["counters"] = counters
    return line


def _standing(worker: Worker) -> dict[str, Any]:
    replica = worker.replica
    if replica is None:
        names = (
            *("term", "commit_index", "applied_index", "durable_index", "truncation_index"),
            *("needed_index", "snapshot_index", "log_bytes"),
        )
        blank = {"role": "follower", "leader": None, "epoch": 0, "digest": "0" * 16}
        return {**blank, "watermarks": [], **dict.fromkeys(names, 0)}
    raft = replica.raft
    learns = raft.member in raft.membership.learners
    return {
        "role": "learner" if learns else ROLES[raft.role],
        "leader": split_member_id(raft.leader)[1] if raft.leader else None,
        "term": raft.term,
        "commit_index": raft.commit_index,
        "applied_index": replica.machine.applied_index,
        "durable_index": replica.log.durable_index,
        "truncation_index": replica.log.anchor.index,
        "epoch": worker.service.table.epoch if worker.service is not None else 0,
        "digest": f"{worker.effects.digest if worker.effects else 0:016x}",
        "needed_index": replica.needed_index,
        "snapshot_index": replica.snapshot_index,
        "log_bytes": replica.log.size_bytes,
        "watermarks": _watermarks(worker),
    }


def _watermarks(worker: Worker) -> list[list[int]]:
    """[partition, applied, durable, required] of the internal partitions; streams tell theirs."""
    if worker.effects is None or worker.replica is None:
        return []
    marks = worker.effects.watermarks(worker.replica.holding.acks.pending, _INTERNAL)
    return [list(mark) for mark in marks]


def status_found(worker: Worker) -> bytes:
    """The answer to a STATUS that was sent to this shard."""
    standing, settings = _standing(worker), worker.settings
    return StatusFound(
        node_id=settings.node,
        cluster=settings.cluster,
        epoch=standing["epoch"],
        ids=[settings.shard],
        pids=[os.getpid()],
        cores=[settings.core],
        roles=[standing["role"]],
        leaders=[standing["leader"]],
        terms=[standing["term"]],
        commit_indexes=[standing["commit_index"]],
        applied_indexes=[standing["applied_index"]],
        durable_indexes=[standing["durable_index"]],
        truncation_indexes=[standing["truncation_index"]],
        states=[worker.state],
        restarts=[0],
        digests=[int(standing["digest"], 16)],
        needed_indexes=[standing["needed_index"]],
        snapshot_indexes=[standing["snapshot_index"]],
        log_bytes=[standing["log_bytes"]],
        errors=[cut(worker.error)],
        **mark_columns({settings.shard: standing["watermarks"]}),
    ).encode()
