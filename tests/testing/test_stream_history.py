"""The judge of streams finds what it is there for, and nothing in a sound history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardnode.testing.stream_history import Appending, Seen, StreamHistory, check_stream

Rows = list[tuple[int, bytes]]


def sound() -> tuple[StreamHistory, Rows]:
    """Two producers and a reader of one partition; one outcome unknown, one batch refused."""
    appended = [
        Appending(1, 1, 0, 0, 2, 10, 20, "ok", 0),
        Appending(2, 1, 0, 0, 1, 12, 22, "ok", 2),
        Appending(1, 2, 0, 0, 2, 30, 90, "unknown"),
        Appending(2, 2, 0, 0, 1, 32, 42, "failed"),
        Appending(2, 3, 0, 0, 1, 50, 60, "ok", 3),
    ]
    order = [appended[0], appended[1], appended[4], appended[2]]
    values = [value for batch in order for value in batch.messages]
    rows = list(enumerate(values))
    seen = [Seen(0, 0, values[:2]), Seen(0, 2, values[2:5])]
    return StreamHistory(appended, seen), rows


def test_sound_history_has_no_findings(tmp_path: Path) -> None:
    history, rows = sound()
    assert check_stream(history, {0: rows}) == []
    history.save(tmp_path / "h.jsonl")
    assert len((tmp_path / "h.jsonl").read_text().splitlines()) == 7


def lose_the_last(history: StreamHistory, rows: Rows) -> None:
    del rows[3:]
    history.seen.pop()


def tell_another_offset(history: StreamHistory, _: Rows) -> None:
    history.appended[1].offset = 3


def keep_a_refused_one(history: StreamHistory, rows: Rows) -> None:
    rows.append((len(rows), history.appended[3].messages[0]))


def invent(_: StreamHistory, rows: Rows) -> None:
    rows.append((len(rows), b"9/9/9"))


def double(_: StreamHistory, rows: Rows) -> None:
    rows.append((len(rows), rows[0][1]))


def tear(_: StreamHistory, rows: Rows) -> None:
    rows.pop()


def leave_a_gap(_: StreamHistory, rows: Rows) -> None:
    rows[-1] = (9, rows[-1][1])


def reorder(history: StreamHistory, rows: Rows) -> None:
    values = [value for _, value in rows]
    rows[:] = list(enumerate([values[3], *values[:3], *values[4:]]))
    offsets = {0: 1, 1: 3, 4: 0}
    for number, offset in offsets.items():
        history.appended[number].offset = offset
    history.seen.clear()


def show_what_is_not_there(history: StreamHistory, _: Rows) -> None:
    history.seen.append(Seen(0, 3, [b"1/2/0"]))


@pytest.mark.parametrize(
    ("kind", "break_it"),
    [
        ("lost", lose_the_last),
        ("lost", tell_another_offset),
        ("nowhere", keep_a_refused_one),
        ("nowhere", invent),
        ("twice", double),
        ("torn", tear),
        ("gap", leave_a_gap),
        ("order", reorder),
        ("answer", show_what_is_not_there),
    ],
)
def test_each_kind_of_mistake_is_found(
    kind: str, break_it: Callable[[StreamHistory, Rows], None]
) -> None:
    history, rows = sound()
    break_it(history, rows)
    assert kind in {finding.rule for finding in check_stream(history, {0: rows})}
