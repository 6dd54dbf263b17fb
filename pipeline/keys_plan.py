"""Which rows go into which Spark partition.

One rule: every row is in exactly one partition, and every key that was changed behind the snapshot
goes to the partition in whose range it is, whether the snapshot has it or not.

    rows        0 … n of a shard's snapshot, in the order of keys
    changes     what the log behind the snapshot did: key → what is kept; empty: deleted
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from shardnode.pipeline.options import Options

PARTITION_BYTES = 128 << 20
"""Of a snapshot: as long as a task takes a second or two, starting it costs nothing beside."""


class KeyRange(NamedTuple):
    """low ≤ key < high."""

    low: bytes = b""
    high: bytes | None = None
    """None: to the end."""

    @property
    def is_empty(self) -> bool:
        return self.high is not None and self.low >= self.high

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and key >= self.low and (self.high is None or key < self.high)


class Changes(NamedTuple):
    """Changed keys in order, and what is kept of each."""

    keys: Sequence[bytes] = ()
    kept: Sequence[bytes] = ()

    def within(self, wanted: KeyRange) -> Changes:
        """Those of a range."""
        begin = bisect_left(self.keys, wanted.low)
        end = len(self.keys) if wanted.high is None else bisect_left(self.keys, wanted.high)
        return Changes(self.keys[begin:end], self.kept[begin:end])


def range_of(options: Options) -> KeyRange:
    """The keys that `prefix`, `start` and `end` leave."""
    low, high = options.prefix, end_of_prefix(options.prefix)
    if options.start is not None:
        low = max(low, options.start)
    if options.end is not None:
        high = options.end if high is None else min(high, options.end)
    return KeyRange(low, high)


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The first key behind all that begin so; None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def changes_of(changed: Mapping[bytes, bytes], wanted: KeyRange) -> Changes:
    """The changes of a range, in order."""
    keys = sorted(key for key in changed if key in wanted)
    return Changes(keys, [changed[key] for key in keys])


def part_counts(rows: Sequence[int], sizes: Sequence[int], options: Options) -> list[int]:
    """How many partitions each shard gets, by its rows and bytes: one at least."""
    total = sum(rows)
    counts = []
    for own, size in zip(rows, sizes, strict=True):
        count = max(1, _up(size, PARTITION_BYTES))
        if options.maxrecordsperpartition:
            count = max(count, _up(own, options.maxrecordsperpartition))
        share = _up(options.minpartitions * own, total) if total else 1
        counts.append(max(1, min(max(count, share), own)))
    return counts


def cut_rows(begin: int, end: int, parts: int, starts: Sequence[int], exact: bool) -> list[int]:
    """begin, …, end: where partitions of about equal size end. They end where blocks do, because a
    block is read whole, unless that is too coarse or they must not have more rows than `exact`ly
    their share."""
    cuts = [begin + (end - begin) * number // parts for number in range(parts + 1)]
    if exact:
        return cuts
    near = [_nearest(cut, starts) for cut in cuts[1:-1]]
    snapped = [begin, *near, end]
    return snapped if all(a < b for a, b in pairwise(snapped)) else cuts


def _nearest(row: int, starts: Sequence[int]) -> int:
    place = bisect_left(starts, row)
    around = starts[max(0, place - 1) : place + 1]
    return min(around, key=lambda start: abs(start - row))


def _up(number: int, divisor: int) -> int:
    return -(-number // divisor)
