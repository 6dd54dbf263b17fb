"""What producers and readers of a topic asked and saw, and the judge of it.

    lost        a batch was acknowledged and is not where it was said to be
    nowhere     a message is there that nobody appended, or whose append certainly failed
    twice       a message is there more than once
    torn        a part of a batch is there, or it is not in one piece
    order       a batch stands before another one that was answered before it began
    gap         offsets are not dense
    answer      a reader saw something else than what its partition holds

The one rule: a finding is a proof, as in `checkers`. Every message is written once, so that its
bytes say which batch it belongs to.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shardnode.testing.checkers import Finding


@dataclass(slots=True)
class Appending:
    """One batch of one producer to one partition. Times are nanoseconds of one monotonic clock."""

    producer: int
    sequence: int
    partition: int
    shard: int
    count: int
    invoked_ns: int
    returned_ns: int | None = None
    status: str = "unknown"
    """ok, failed (had no effect), unknown."""
    offset: int | None = None
    """Where its first message was said to be."""

    is_write = True

    @property
    def messages(self) -> list[bytes]:
        return [b"%d/%d/%d" % (self.producer, self.sequence, n) for n in range(self.count)]

    def ended(self, status: str, offset: int | None = None) -> None:
        self.status, self.offset = status, offset
        self.returned_ns = time.monotonic_ns()

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at {self.offset}"
        return (
            f"producer {self.producer} batch {self.sequence} of {self.count} to partition"
            f" {self.partition}: {self.status}{where}"
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reader got in one page."""

    partition: int
    offset: int
    values: list[bytes]


@dataclass(slots=True)
class StreamHistory:
    """Of one topic."""

    appended: list[Appending]
    seen: list[Seen]

    def save(self, path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            for each in self.appended:
                file.write(json.dumps(asdict(each)) + "\n")
            for page in self.seen:
                values = [value.decode("latin-1") for value in page.values]
                row = {"partition": page.partition, "offset": page.offset, "values": values}
                file.write(json.dumps(row) + "\n")


def check_stream(
    history: StreamHistory, contents: Mapping[int, Sequence[tuple[int, bytes]]]
) -> list[Finding]:
    """`contents`: partition → (offset, message) of all that is there in the end."""
    findings: list[Finding] = []
    for partition, rows in contents.items():
        appended = [each for each in history.appended if each.partition == partition]
        findings += _check_partition(partition, appended, rows)
        for page in history.seen:
            if page.partition == partition:
                findings += _check_seen(page, rows)
    return findings


def _check_partition(
    partition: int, appended: Sequence[Appending], rows: Sequence[tuple[int, bytes]]
) -> Iterator[Finding]:
    offsets = [offset for offset, _ in rows]
    if offsets != list(range(len(rows))):
        yield Finding("gap", f"partition {partition}: {len(rows)} messages, offsets not dense")
        return
    values = [value for _, value in rows]
    for value, count in Counter(values).items():
        if count > 1:
            yield Finding("twice", f"partition {partition}: {value!r} is there {count} times")
    place = {value: offset for offset, value in rows}
    left = set(place)
    found: list[tuple[int, Appending]] = []
    for batch in appended:
        messages = batch.messages
        places = [place[message] for message in messages if message in place]
        left.difference_update(messages)
        if not places:
            if batch.status == "ok":
                yield Finding("lost", str(batch))
            continue
        if batch.status == "failed":
            yield Finding("nowhere", f"{batch}, and it is at {places[0]}")
        if places != list(range(places[0], places[0] + batch.count)):
            yield Finding("torn", f"{batch}: found at {places}")
        if batch.status == "ok" and places[0] != batch.offset:
            yield Finding("lost", f"{batch}, and it is at {places[0]}")
        found.append((places[0], batch))
    for value in sorted(left)[:5]:
        yield Finding("nowhere", f"partition {partition}: nobody appended {value!r}")
    yield from _check_order(found)


def _check_order(found: list[tuple[int, Appending]]) -> Iterator[Finding]:
    """By offset: none may have begun after one that stands behind it was answered."""
    first_answer, whose = float("inf"), None
    for _, batch in sorted(found, key=lambda pair: pair[0], reverse=True):
        if batch.invoked_ns > first_answer:
            yield Finding("order", f"{batch} stands before {whose}, which was answered before")
        answered_ns = batch.returned_ns if batch.status == "ok" else None
        if answered_ns is not None and answered_ns < first_answer:
            first_answer, whose = answered_ns, batch


def _check_seen(page: Seen, rows: Sequence[tuple[int, bytes]]) -> Iterator[Finding]:
    there = [value for _, value in rows[page.offset : page.offset + len(page.values)]]
    if there != page.values:
        yield Finding(
            "answer",
            f"partition {page.partition} at {page.offset}: a reader saw {page.values[:3]}, in the"
            f" end there is {there[:3]}",
        )
