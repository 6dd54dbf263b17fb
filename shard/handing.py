"""Handing over the lead of a shard because somebody asked for it.

The one rule: the answer says how it ended. `Changed` means that the other node leads; when it could
not take over in time nothing has changed, and the sender hears that too.
"""

from __future__ import annotations

from shardnode.raft import Raft, Refused
from shardnode.shard.replica import Replica
from shardnode.shard.waiting import Desk, Waiting, in_wire_terms
from shardnode.wire.control import Changed
from shardnode.wire.errors import InvalidRequest, Unavailable
from shardnode.wire.placement import member_id, split_member_id


class HandOvers:
    """Those that were asked for and are not over."""

    def __init__(self, replica: Replica, desk: Desk) -> None:
        self._replica = replica
        self._desk = desk
        self._waiting: list[tuple[Waiting, int]] = []

    def take(self, waiting: Waiting, node: int) -> None:
        """Somebody wants `node` to lead."""
        raft = self._replica.raft
        raft.require_leader()
        target = member_id(self._desk.shard, node)
        if target not in raft.membership.voters:
            voters = ", ".join(str(split_member_id(each)[1]) for each in raft.membership.voters)
            raise InvalidRequest(
                f"expected a node that votes in shard {self._desk.shard} ({voters}), found {node}"
            )
        if target == raft.member:
            self._answer(waiting, raft)
            return
        try:
            self._replica.transfer(target)
        except Refused as refused:
            raise in_wire_terms(refused) from refused
        self._waiting.append((waiting, target))

    def look(self) -> None:
        """Answer those that are over."""
        if not self._waiting:
            return
        raft = self._replica.raft
        still = []
        for waiting, target in self._waiting:
            if raft.leader == target:
                self._answer(waiting, raft)
            elif raft.leader == raft.member and raft.transfer_target != target:
                node = split_member_id(target)[1]
                error = Unavailable(
                    f"node {node} did not take over shard {self._desk.shard} in time; nothing has"
                    " changed, see whether it is up and has caught up, and try again"
                )
                self._desk.refuse(waiting.message, waiting.to, error)
            else:
                still.append((waiting, target))
        self._waiting = still

    def _answer(self, waiting: Waiting, raft: Raft) -> None:
        self._desk.answer(waiting, Changed(raft.term).encode())
