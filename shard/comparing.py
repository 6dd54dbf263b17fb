"""Whether the replicas of a group agree on what the log means.

The one rule: a replica that differs from a majority fences itself, and nobody else can. Equal logs
give equal states unless something is broken here: memory, disk, or a program that is not the same;
then answers of this replica are worth nothing, and it must say so instead of giving them.

A leader logs a CHECK_STATE now and then. Every replica notes its digest when it applies it and
tells the others. Nothing is computed for it: the digest goes along with applying.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from shardnode.raft import Membership
from shardnode.shard.letters import Check

KEPT = 16
"""Indexes that are remembered: a slow member's answer still finds its question."""


class Comparing:
    """The digests of one group, as one replica hears them."""

    def __init__(self, cluster: int, member: int) -> None:
        self._cluster = cluster
        self._member = member
        self._said: dict[int, dict[int, int]] = {}
        self._order: deque[int] = deque()
        self.news = False
        """Something was said since the last verdict."""
        self.agreed_index = 0
        """The last index at which a majority was found to agree, this replica among it."""

    def own(self, index: int, digest: int, membership: Membership) -> list[Check]:
        """This replica applied a CHECK_STATE: what to tell the others."""
        self._note(index, self._member, digest)
        return [
            Check(self._cluster, self._member, other, index, digest)
            for other in membership.everyone
            if other != self._member
        ]

    def heard(self, check: Check, membership: Membership) -> None:
        """Another replica said what it has."""
        if check.target == self._member and check.source in membership.everyone:
            self._note(check.index, check.source, check.digest)

    def verdict(self, membership: Membership) -> str:
        """Why this replica must not go on; empty while nothing is wrong."""
        self.news = False
        voters = membership.voters
        for index in self._order:
            said = self._said[index]
            if self._member not in said:
                continue
            counts = Counter(said[voter] for voter in voters if voter in said)
            digest, count = counts.most_common(1)[0] if counts else (0, 0)
            if 2 * count <= len(voters):
                continue
            if digest != said[self._member]:
                return _text(index, said, voters, digest, said[self._member])
            self.agreed_index = max(self.agreed_index, index)
        return ""

    def _note(self, index: int, member: int, digest: int) -> None:
        if index not in self._said:
            if len(self._order) >= KEPT:
                oldest = min(self._order)
                if index < oldest:
                    return
                self._order.remove(oldest)
                del self._said[oldest]
            self._said[index] = {}
            self._order.append(index)
        self._said[index][member] = digest
        self.news = True


def _text(
    index: int, said: dict[int, int], voters: Sequence[int], expected: int, found: int
) -> str:
    agree = sum(said.get(voter) == expected for voter in voters)
    return (
        f"expected the state of index {index} to hash to {expected:016x} as on {agree} of"
        f" {len(voters)} replicas, found {found:016x} here; this replica's state is wrong: stop"
        " this node, move the shard's directory away and start it again, and it is fetched anew"
    )
