"""Replies that wait for more members than a majority.

The one rule: an outcome is told once its partition's policy is satisfied; when this member leads no
more, nobody here will know, and that is what is told. Partitions that ask for a majority pass
through untouched.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from shardnode.raft import Raft, Role
from shardnode.shard.acks import AckTracker, Policy

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


class _Held(NamedTuple, Generic[T]):
    number: int
    outcome: T


class Holding(Generic[T]):
    """What one replica holds back."""

    def __init__(self) -> None:
        self.acks = AckTracker()
        self._held: dict[int, deque[_Held[T]]] = {}

    def follow(self, partition: int, policy: Policy, satisfied: int) -> None:
        """From now on a partition asks for this policy; `satisfied`: what it has applied."""
        self.acks.register(partition, policy, satisfied)

    def appended(self, raft: Raft, entries: Iterable[tuple[int, int, int]]) -> None:
        """(partition, its number, index of the log) of what was just proposed."""
        if len(self.acks):
            self.acks.begin(raft.term, raft.membership.voters)
            for partition, number, log_index in entries:
                self.acks.appended(partition, number, log_index)

    def passes(self, partition: int, number: int, outcome: T) -> bool:
        """Whether an outcome may be told at once; else it is held."""
        if self.acks.satisfied(partition, number) >= number:
            return True
        self._held.setdefault(partition, deque()).append(_Held(number, outcome))
        return False

    def look(self, raft: Raft) -> tuple[list[T], list[T]]:
        """(satisfied, unknown for ever) among what is held, by what members have said so far."""
        if raft.role is not Role.LEADER:
            unknown = [held.outcome for queue in self._held.values() for held in queue]
            self._held.clear()
            return [], unknown
        acks, told = self.acks, []
        acks.begin(raft.term, raft.membership.voters)
        acks.ack(raft.member, raft.term, raft.log.stable)
        for member, progress in raft.progress.items():
            acks.ack(member, raft.term, progress.match)
        for partition, number in acks.advance(raft.commit_index).items():
            queue = self._held.get(partition)
            while queue and queue[0].number <= number:
                told.append(queue.popleft().outcome)
        return told, []

    def __len__(self) -> int:
        """Partitions to look after; with none there is nothing to do."""
        return len(self.acks) or len(self._held)
