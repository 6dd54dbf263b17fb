"""What a worker says about itself: a line for its supervisor, a status for clients.

The one rule: these are numbers read in passing; nothing is computed for them on the hot path.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

from shardnode.raft import Role
from shardnode.shard.control import NOTHING, Wish
from shardnode.wire.cluster import StatusFound, cut, mark_columns
from shardnode.wire.placement import (
    CONTROL_PARTITION,
    GROUP_PARTITION,
    KEY_VALUE_PARTITION,
    split_member_id,
)

if TYPE_CHECKING:
    from shardnode.shard.channel import Channel
    from shardnode.shard.effects import Effects
    from shardnode.shard.worker import Worker

TELL_EVERY_MS = 250

ROLES = {
    Role.FOLLOWER: "follower",
    Role.PRE_CANDIDATE: "candidate",
    Role.CANDIDATE: "candidate",
    Role.LEADER: "leader",
}


_INTERNAL = (KEY_VALUE_PARTITION, CONTROL_PARTITION, GROUP_PARTITION)


class Teller:
    """Tells the supervisor how a worker is: at every change, and now and then; and what is new in
    the control plane, once."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._told: tuple[Any, ...] = ()
        self._told_ms = 0
        self._epoch = 0
        self._wish = 0
        self._topics = 0

    def tell(self, worker: Worker, now_ms: int) -> None:
        """If there is anything to tell."""
        raft = worker.replica.raft if worker.replica is not None else None
        standing: tuple[Any, ...] = (worker.state,)
        if raft is not None and worker.effects is not None:
            control = worker.effects.control
            versions = (control.wish.version, control.topics.version)
            standing = (worker.state, raft.role, raft.leader, raft.term, versions)
        if standing == self._told and now_ms - self._told_ms < TELL_EVERY_MS:
            return
        line = report(worker)
        if worker.effects is not None:
            wish = worker.service.known_wish if worker.service is not None else NOTHING
            line |= self._news(worker.effects, wish)
        self._told, self._told_ms = standing, now_ms
        self._channel.tell(line)

    def _news(self, effects: Effects, wish: Wish) -> dict[str, Any]:
        news: dict[str, Any] = {}
        table, topics = effects.table, effects.control.topics
        if table is not None and table.epoch != self._epoch:
            news["table"] = base64.b64encode(table.encode()).decode()
            self._epoch = table.epoch
        if wish.version != self._wish:
            news["members"] = {str(node): router for node, router in wish.members.items()}
            news["members_version"] = self._wish = wish.version
        if topics.version != self._topics:
            news["topics"] = base64.b64encode(topics.encode()).decode()
            news["topics_version"] = self._topics = topics.version
        return news


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
