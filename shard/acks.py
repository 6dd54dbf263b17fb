"""Which entries of a partition enough members hold, by the partition's own policy.

    Majority()          what the group has committed: always satisfied when it is applied
    Threshold(n)        n voters hold it; never more than there are
    Custom(decides)     a function of the set of voters that hold it, for racks and zones

Members acknowledge with their append replies: one index of the segmented log, through which all is
durable there. All partitions share that log, so one number acknowledges for every partition; it is
kept for each member, and only grows within a term.

The one rule: an acknowledgement of another term, of a stranger, or behind an earlier one changes
nothing. A new leader begins with none: what a log held in an older term may have been replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple


class Majority(NamedTuple):
    """What consensus itself asks for."""


class Threshold(NamedTuple):
    """At least so many voters."""

    members: int


class Custom(NamedTuple):
    """As the function decides."""

    decides: Callable[[frozenset[int]], bool]


Policy = Majority | Threshold | Custom

MAJORITY = Majority()


class _Pending(NamedTuple):
    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    """The partition's own number of an entry, …"""
    log_index: int
    """… and where it stands in the log."""


class _Partition:
    __slots__ = ("pending", "policy", "satisfied")

    def __init__(self, policy: Policy, satisfied: int) -> None:
        self.policy = policy
        self.satisfied = satisfied
        self.pending: deque[_Pending] = deque()


class AckTracker:
    """Of one leader, over all partitions whose policy is more than a majority."""

    def __init__(self) -> None:
        self.term = 0
        self._voters: frozenset[int] = frozenset()
        self._acked: dict[int, int] = {}
        self._partitions: dict[int, _Partition] = {}

    def __len__(self) -> int:
        """How many partitions are tracked; with none there is nothing to do."""
        return len(self._partitions)

    def register(self, partition: int, policy: Policy, satisfied: int = 0) -> None:
        """Follow a partition, of which all through `satisfied` counts as acknowledged. A partition
        that is followed already keeps what is pending, under the new policy."""
        if isinstance(policy, Majority):
            self._partitions.pop(partition, None)
        elif known := self._partitions.get(partition):
            known.policy = policy
        else:
            self._partitions[partition] = _Partition(policy, satisfied)

    def begin(self, term: int, voters: Collection[int]) -> None:
        """A leadership begins, or its voters change: in a new term nobody has acknowledged."""
        if term != self.term:
            assert term > self.term, "terms only grow"
            self.term = term
            self._acked = {}
            for each in self._partitions.values():
                each.pending.clear()
        self._voters = frozenset(voters)
        self._acked = {m: index for m, index in self._acked.items() if m in self._voters}

    def appended(self, partition: int, index: int, log_index: int) -> None:
        """An entry of a partition is in the leader's log."""
        tracked = self._partitions.get(partition)
        if tracked is not None:
            assert not tracked.pending or tracked.pending[-1].log_index < log_index
            tracked.pending.append(_Pending(index, log_index))

    def ack(self, member: int, term: int, log_index: int) -> bool:
        """A member holds the log through `log_index`; whether that is news."""
        if term != self.term or member not in self._voters:
            return False
        if log_index <= self._acked.get(member, 0):
            return False
        self._acked[member] = log_index
        return True

    def advance(self, committed: int) -> dict[int, int]:
        """Partition → through which of its entries it is satisfied now, where that is news. Nothing
        is before the group has committed it."""
        news = {}
        for number, tracked in self._partitions.items():
            before = tracked.satisfied
            pending = tracked.pending
            while pending and pending[0].log_index <= committed:
                if not self._is_enough(tracked.policy, pending[0].log_index):
                    break
                tracked.satisfied = pending.popleft().index
            if tracked.satisfied > before:
                news[number] = tracked.satisfied
        return news

    def satisfied(self, partition: int, applied: int) -> int:
        """What readers of a partition may see, of what is applied."""
        tracked = self._partitions.get(partition)
        return applied if tracked is None else min(applied, tracked.satisfied)

    @property
    def pending(self) -> Mapping[int, int]:
        """Partition → the index of the log of its oldest entry that is not satisfied."""
        waiting: Iterable[tuple[int, _Partition]] = self._partitions.items()
        return {number: each.pending[0].log_index for number, each in waiting if each.pending}

    def _is_enough(self, policy: Policy, log_index: int) -> bool:
        holders = frozenset(m for m, index in self._acked.items() if index >= log_index)
        if isinstance(policy, Threshold):
            return len(holders) >= min(policy.members, len(self._voters))
        assert isinstance(policy, Custom)
        return policy.decides(holders)
