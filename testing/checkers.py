"""The first judge: replays what clients saw in the order of the log.

A version is the index of the log entry that wrote it, so acknowledged writes come with their place
in the only order there is. The judge sorts by it, replays a model and holds every answer against
it; what clients saw of writes with an unknown outcome gives those their place.

    version    two acknowledged writes have one version
    nowhere    a value, or a version, that nobody wrote
    refused    a write that was refused took effect
    twice      one write took effect at two places
    future     a value was seen before its write began
    answer     an operation saw something else than what its place in the log says
    order      an operation stands before another one that had ended when it began:
               stale reads, lost writes, writes that come back

The one rule: a finding is a proof. Where the history leaves room, the judge gives the benefit of
the doubt; `checkers_search` decides without versions, and sees what plain deletes hide here.

Histories begin with the life of their keys: before the first write a key does not exist. Final
reads are operations like any other, recorded at the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardnode.testing.history import Operation

INFINITY = float("inf")


class Finding(NamedTuple):
    """One thing that cannot be."""

    rule: str
    about: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.about}"


@dataclass(slots=True)
class Place:
    """What one log entry did to a key."""

    version: int
    value: bytes | None
    """None: it deleted the key, or the value is not `known`."""
    is_there: bool
    """Whether the key exists after it."""
    writer: Operation | None
    """None: somebody whose outcome is unknown, and we cannot tell who."""


def check_by_index(
    operations: Sequence[Operation], *, shared_entries: bool = False
) -> list[Finding]:
    """Everything wrong with a history. `shared_entries`: one entry may write several keys, as
    `put_many` and a busy `AsyncClient` do; then only the versions of one key must differ."""
    shards: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.status != "failed" or operation.is_write:
            shards[operation.shard].append(operation)
    findings: list[Finding] = []
    for _, group in sorted(shards.items()):
        findings += _Shard(group, shared_entries=shared_entries).check()
    return findings


class _Shard:
    """The operations of one log."""

    def __init__(self, operations: list[Operation], *, shared_entries: bool) -> None:
        self._operations = operations
        self._shared_entries = shared_entries
        self._findings: list[Finding] = []
        self._places: dict[bytes, dict[int, Place]] = defaultdict(dict)
        self._writers: dict[bytes, Operation] = {}
        """Value → who wrote it."""
        self._placed: dict[int, Place] = {}
        """By the identity of the operation."""
        self._loose_deletes: dict[bytes, list[Operation]] = defaultdict(list)
        """Deletes without a place: plain ones, and those with an unknown outcome."""
        self._versions: dict[bytes, list[int]] = {}

    def check(self) -> list[Finding]:
        self._learn_writers()
        self._place_acknowledged()
        self._place_what_was_seen()
        self._versions = {key: sorted(places) for key, places in self._places.items()}
        self._check_what_writes_saw()
        self._check_order()
        return self._findings

    def _find(self, rule: str, about: str) -> None:
        self._findings.append(Finding(rule, about))

    # Where everything stands.

    def _learn_writers(self) -> None:
        for operation in self._operations:
            if operation.value is not None:
                if operation.value in self._writers:
                    raise ValueError(f"two operations write {operation.value!r}: not a history")
                self._writers[operation.value] = operation
            if operation.kind == "delete" and _has_no_place(operation):
                self._loose_deletes[operation.key].append(operation)

    def _place_acknowledged(self) -> None:
        users: dict[object, Operation] = {}
        for operation in self._operations:
            version = operation.version
            if operation.status != "ok" or version is None:
                continue
            entry: object = (operation.key, version) if self._shared_entries else version
            if entry in users:
                self._find("version", f"{version} belongs to {users[entry]} and to {operation}")
                continue
            users[entry] = operation
            self._put_place(operation.key, version, operation.value, operation)

    def _put_place(
        self, key: bytes, version: int, value: bytes | None, writer: Operation | None
    ) -> None:
        is_there = writer is None or writer.kind != "delete"
        place = Place(version, value, is_there, writer)
        self._places[key][version] = place
        if writer is not None:
            self._placed[id(writer)] = place

    def _place_what_was_seen(self) -> None:
        nameless: list[tuple[Operation, int]] = []
        for operation in self._operations:
            for version, value in sights(operation):
                if not version:
                    continue
                if value is None:
                    nameless.append((operation, version))
                else:
                    self._saw(operation, version, value)
        # Whoever saw one first has the fewest to choose its writer from.
        for operation, version in sorted(nameless, key=lambda sight: sight[0].ended_ns):
            self._saw_version(operation, version)

    def _saw(self, operation: Operation, version: int, value: bytes) -> None:
        writer = self._writers.get(value)
        if writer is None or writer.key != operation.key:
            of = "nobody wrote" if writer is None else f"was written to {writer.key!r}:"
            self._find("nowhere", f"{operation} saw what {of} {value!r}")
            return
        if writer.status in ("failed", "conflict"):
            self._find("refused", f"{operation} saw the effect of {writer}")
            return
        if writer.invoked_ns > operation.ended_ns:
            self._find("future", f"{operation} saw the effect of {writer}")
        place = self._placed.get(id(writer))
        if place is not None and place.version != version:
            self._find("twice", f"{operation} saw {writer} at {version}, it is at {place.version}")
            return
        there = self._places[operation.key].get(version)
        if there is not None and there.writer is not writer:
            self._find("answer", f"{operation} saw {value!r} at {version}, but there is {there}")
        elif there is None:
            self._put_place(operation.key, version, value, writer)

    def _saw_version(self, operation: Operation, version: int) -> None:
        """A version without its value: some write with an unknown outcome must be its writer."""
        key = operation.key
        place = self._places[key].get(version)
        if place is not None:
            if not place.is_there:
                self._find("answer", f"{operation} found a version at which the key was deleted")
            return
        spare = [
            other
            for other in self._operations
            if other.key == key
            and other.status == "unknown"
            and other.value is not None
            and id(other) not in self._placed
            and other.invoked_ns < operation.ended_ns
        ]
        used = sum(place.writer is None for place in self._places[key].values())
        if len(spare) <= used:
            self._find("nowhere", f"{operation} found version {version}, which nobody wrote")
        else:
            self._put_place(key, version, None, None)

    # What the model says.

    def _before(self, key: bytes, version: int) -> Place | None:
        versions = self._versions.get(key, [])
        at = bisect_left(versions, version)
        return self._places[key][versions[at - 1]] if at else None

    def _check_what_writes_saw(self) -> None:
        """A cas, a swap or a delete saw what the entry before its own on this key had left."""
        for operation in self._operations:
            if operation.status == "conflict" and operation.seen_version is not None:
                if operation.seen_version == operation.expected_version:
                    self._find("answer", f"{operation} found what it expected, and refused")
                continue
            if operation.status != "ok" or operation.version is None:
                continue
            for version, _ in sights(operation):
                before = self._before(operation.key, operation.version)
                left = before.version if before is not None and before.is_there else 0
                if version == left:
                    continue
                if version == 0 and before is not None and self._may_be_deleted(operation, before):
                    continue
                self._find("answer", f"{operation} saw version {version}, the log says {left}")

    def _may_be_deleted(self, operation: Operation, since: Place) -> bool:
        """Whether a delete without a place can explain that `operation` saw nothing."""
        begun = -1 if since.writer is None else since.writer.invoked_ns
        return any(
            delete.ended_ns > begun and delete.invoked_ns < operation.ended_ns
            for delete in self._loose_deletes[operation.key]
        )

    def _lowest(self, operation: Operation, version: int, floor: int) -> int | None:
        """The first log index from `floor` on after which this version was there to be seen."""
        versions, places = self._versions.get(operation.key, []), self._places[operation.key]
        if version:
            following = bisect_right(versions, version)
            if following < len(versions) and versions[following] <= floor:
                return None
            return max(version, floor)
        for number in range(bisect_right(versions, floor), len(versions) + 1):
            place = places[versions[number - 1]] if number else None
            if place is None:
                return floor
            if place.writer is not None and place.writer.invoked_ns > operation.ended_ns:
                continue
            if not place.is_there or self._may_be_deleted(operation, place):
                return max(place.version, floor)
        return None

    # Real time.

    def _check_order(self) -> None:
        """Sweep over time: nothing that begins now may stand before what has ended already."""
        floors: dict[int, int] = {}
        highest = 0
        for _, is_end, operation in _events(self._operations):
            if not is_end:
                floors[id(operation)] = highest
                self._check_place(operation, highest)
                continue
            highest = max(highest, self._stands_at(operation, floors.pop(id(operation))))

    def _check_place(self, operation: Operation, floor: int) -> None:
        place = self._placed.get(id(operation))
        if place is not None and place.version <= floor:
            self._find(
                "order",
                f"{operation} stands at {place.version}, but something at {floor} had ended before"
                " it began",
            )

    def _stands_at(self, operation: Operation, floor: int) -> int:
        """The lowest log index at which an operation that has ended can stand."""
        place = self._placed.get(id(operation))
        if place is not None:
            return place.version
        for version, _ in sights(operation):
            lowest = self._lowest(operation, version, floor)
            if lowest is not None:
                return lowest
            what = f"version {version}" if version else "nothing"
            self._find(
                "order",
                f"{operation} saw {what}, which was over when it began: something at {floor} had"
                " ended",
            )
        return floor


def sights(operation: Operation) -> Iterable[tuple[int, bytes | None]]:
    """(version, value) that an answer tells to have been there; version 0: nothing was. The value
    is None when only the version is known."""
    if operation.status == "conflict":
        return [] if operation.seen_version is None else [(operation.seen_version, None)]
    if operation.status != "ok":
        return []
    if operation.kind == "cas":
        assert operation.expected_version is not None
        return [(operation.expected_version, operation.expected)]
    if operation.existed is False:
        return [(0, None)]
    if operation.seen_version is None:
        return []
    return [(operation.seen_version, operation.seen)]


def _has_no_place(operation: Operation) -> bool:
    """Whether it may have had an effect, nobody knows where."""
    acted = operation.status in ("ok", "unknown") and operation.existed is not False
    return acted and operation.version is None


def _events(operations: Iterable[Operation]) -> list[tuple[float, int, Operation]]:
    """Begins and ends in order of time; of one moment, begins first: then they overlap."""
    events = []
    for operation in operations:
        events.append((float(operation.invoked_ns), 0, operation))
        if operation.ended_ns < INFINITY and operation.status != "failed":
            events.append((operation.ended_ns, 1, operation))
    return sorted(events, key=lambda event: event[:2])
