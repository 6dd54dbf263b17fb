"""From what a user says of offsets to ranges of them, and who reads which: pure.

    starts_of    what was said, for each partition
    offsets_of   … as offsets
    split        ranges into as many pieces as are wanted
    spread       how far a micro-batch may go in each partition
    to_json      offsets as Spark keeps them

One rule: nothing is asked and nothing is read here, and the same input gives the same plan, because
a micro-batch that is run again has to be the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple

from shardnode.client.offsets import Start, to_start
from shardnode.client.values import Bounds
from shardnode.pipeline.options import EARLIEST, LATEST, Offsets
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import OffsetPoint

AT_FIRST = Start(OffsetPoint.EARLIEST, 0)

_POINTS = {EARLIEST: OffsetPoint.EARLIEST, LATEST: OffsetPoint.LATEST}


class Span(NamedTuple):
    """Offsets of one partition, from `start` to before `end`."""

    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


def starts_of(said: Offsets | None, default: str, partitions: int, what: str) -> list[Start]:
    """Where each partition begins, or ends, as far as that is known without asking its shard.
    A partition that JSON leaves out has the default."""
    if said is None or isinstance(said, str):
        return [to_start(said or default, what)] * partitions
    unknown = sorted(partition for partition in said if partition >= partitions)
    if unknown:
        raise InvalidRequest(
            f"option {what}: expected partitions from 0 to {partitions - 1}, which the topic has,"
            f" found {', '.join(map(str, unknown))}"
        )
    rest = to_start(default, what)
    return [
        rest if partition not in said else _start_of(said[partition])
        for partition in range(partitions)
    ]


def _start_of(offset: int) -> Start:
    return Start(_POINTS[offset], 0) if offset in _POINTS else Start(None, offset)


def offsets_of(
    starts: Sequence[Start], known: Sequence[Bounds], times: Callable[[Sequence[Start]], list[int]]
) -> list[int]:
    """The same as offsets; `times` finds those of times, where there are any."""
    timed = [start if start.point is OffsetPoint.TIMESTAMP else AT_FIRST for start in starts]
    found = times(timed) if any(start is not AT_FIRST for start in timed) else []
    offsets = []
    for number, (start, there) in enumerate(zip(starts, known, strict=True)):
        if start.point is None:
            offsets.append(start.value)
        elif start.point is OffsetPoint.TIMESTAMP:
            offsets.append(min(found[number], there.end))
        else:
            offsets.append(there.first if start.point is OffsetPoint.EARLIEST else there.end)
    return offsets


def split(spans: Sequence[Span], at_least: int = 0, records_max: int = 0) -> list[Span]:
    """The same offsets in `at_least` pieces, if there are so many messages, of at most
    `records_max` each. The largest are cut first, into pieces that differ by one at most."""
    counts = [-(-span.size // records_max) if records_max else 1 for span in spans]
    counts = [max(1, count) for count in counts]
    largest = [
        (-span.size / count, number)
        for number, (span, count) in enumerate(zip(spans, counts, strict=True))
    ]
    heapify(largest)
    for _ in range(at_least - sum(counts)):
        number = largest[0][1]
        if counts[number] >= spans[number].size:
            break
        counts[number] += 1
        heapreplace(largest, (-spans[number].size / counts[number], number))
    return [
        Span(
            span.partition,
            span.start + span.size * piece // count,
            span.start + span.size * (piece + 1) // count,
        )
        for span, count in zip(spans, counts, strict=True)
        for piece in range(count)
    ]


def spread(backlogs: Mapping[int, int], rows_max: int, turn: int = 0) -> dict[int, int]:
    """How many messages of each partition come next: `rows_max` in all, in proportion to what each
    has, and at least one of each. Where they are fewer than partitions, `turn` chooses."""
    waiting = [partition for partition, size in sorted(backlogs.items()) if size > 0]
    taken = dict.fromkeys(backlogs, 0)
    if sum(backlogs[partition] for partition in waiting) <= rows_max:
        return taken | {partition: backlogs[partition] for partition in waiting}
    if rows_max <= len(waiting):
        first = turn % len(waiting)
        chosen = [*waiting[first:], *waiting[:first]][:rows_max]
        return taken | dict.fromkeys(chosen, 1)
    total = sum(backlogs[partition] for partition in waiting)
    for partition in waiting:
        taken[partition] = max(1, rows_max * backlogs[partition] // total)
    for partition in sorted(waiting, key=lambda each: (-backlogs[each], each)):
        change = rows_max - sum(taken.values())  # of rounding, at most one for each partition
        room = backlogs[partition] - taken[partition]
        taken[partition] += max(1 - taken[partition], min(change, room))
    return taken


def to_json(offsets: Mapping[int, int]) -> dict[str, int]:
    """As Spark keeps them. It compares the text, so the order is always that of the names."""
    return {name: offsets[int(name)] for name in sorted(map(str, offsets))}


def from_json(offsets: Mapping[str, int] | None) -> dict[int, int]:
    """The inverse."""
    return {int(number): int(offset) for number, offset in (offsets or {}).items()}
