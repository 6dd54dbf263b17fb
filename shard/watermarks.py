"""How far each partition of a shard is, and from where on its log is still needed.

    applied     the last of a partition's entries that has taken effect
    durable     the last whose effect no crash can undo
    required    the oldest index of the segmented log that holds an effect which a crash could undo,
                or that waits for its policy of acknowledgement; 0: none

The one rule: the log is never cut above the lowest of what is required. Effects become durable in
generations, one for each flush, so that nothing has to be remembered for each entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Watermark(NamedTuple):
    """Of one partition; `applied` and `durable` count its own entries."""

    partition: int
    applied: int
    durable: int
    required: int


class Watermarks:
    """Of all partitions of one shard."""

    def __init__(self, applied: Mapping[int, int]) -> None:
        """`applied`: what was found at a start, durable as it is."""
        self._applied = applied
        self._durable = dict(applied)
        self._first: dict[int, int] = {}
        """Partition → the first index of the log that it applied since the last flush began."""
        self._generations: deque[tuple[int, dict[int, int], dict[int, int]]] = deque()
        """(log index, first indexes, numbers applied) of each flush that is not durable yet."""

    def applying(self, partition: int, index: int) -> None:
        """A partition is about to apply what begins at this index of the log."""
        self._first.setdefault(partition, index)

    def flushing(self, index: int) -> None:
        """What is applied through this index is on its way to be durable."""
        self._generations.append((index, self._first, dict(self._applied)))
        self._first = {}

    def durable(self, index: int) -> None:
        """Effects through this index outlive any crash."""
        while self._generations and self._generations[0][0] <= index:
            self._durable = self._generations.popleft()[2]

    def of(self, partition: int, pending: int = 0) -> Watermark:
        """One partition's; `pending`: an index of the log that waits for acknowledgements."""
        firsts = [first for _, first, _ in self._generations] + [self._first]
        needs = [first[partition] for first in firsts if partition in first]
        required = min([*needs, pending] if pending else needs, default=0)
        applied, durable = self._applied.get(partition, 0), self._durable.get(partition, 0)
        return Watermark(partition, applied, durable, required)

    def all(self, pending: Mapping[int, int]) -> list[Watermark]:
        """Every partition's, in order."""
        known = sorted({*self._applied, *pending})
        return [self.of(partition, pending.get(partition, 0)) for partition in known]


def truncation_point(marks: Iterable[Watermark], otherwise: int) -> int:
    """How far the log may be cut: everything before what any partition requires."""
    return min((mark.required - 1 for mark in marks if mark.required), default=otherwise)
