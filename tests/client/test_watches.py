"""Watches: every change behind a position, resumable by cursor."""

from __future__ import annotations

import threading
import time

import pytest

from shardnode import Change, Client, Compacted, InvalidRequest
from shardnode.wire.cursors import WatchCursor
from shardnode.wire.kinds import Kind
from tests.client.fake import FakeNode


def facts(change: Change) -> tuple[str, bytes, bytes | None]:
    return change.kind, change.key, change.value


def test_changes_after_the_call_are_told_and_those_before_are_not(db: Client) -> None:
    db.put(b"user:0", b"before")
    changes = db.watch(prefix=b"user:")
    db.put(b"user:1", b"Ada")
    db.put(b"other", b"x")
    db.delete(b"user:1")
    assert facts(next(changes)) == ("put", b"user:1", b"Ada")
    assert facts(next(changes)) == ("delete", b"user:1", None)


def test_change_that_comes_later_wakes_the_watcher(db: Client) -> None:
    changes = db.watch()
    writer = threading.Timer(0.05, lambda: db.put(b"k", b"v"))
    writer.start()
    assert facts(next(changes)) == ("put", b"k", b"v")
    writer.join()


def test_cursor_resumes_behind_its_change_within_one_write(node: FakeNode, db: Client) -> None:
    changes = db.watch()
    keys = [b"{tag}%d" % number for number in range(5)]
    db.put_many(dict.fromkeys(keys, b"1"))
    first = [next(changes) for _ in range(2)]
    db.put(b"another", b"2")
    with Client(node.address) as again:
        rest = again.watch(start=first[-1].cursor)
        found = [next(rest) for _ in range(4)]
    assert {change.key for change in [*first, *found]} == {*keys, b"another"}
    assert {change.version for change in first} == {found[0].version}


def test_every_cursor_of_a_long_history_misses_and_repeats_nothing(db: Client) -> None:
    changes = db.watch()
    for number in range(12):
        db.put(b"key-%d" % number, b"%d" % number)
    told = [next(changes) for _ in range(12)]
    for place, change in enumerate(told[:-1]):
        rest = db.watch(start=change.cursor)
        left = {next(rest).key for _ in range(11 - place)}
        assert left == {later.key for later in told[place + 1 :]}


def test_cursor_knows_every_shard(db: Client) -> None:
    changes = db.watch()
    db.put(b"k", b"v")
    cursor = WatchCursor.from_text(next(changes).cursor)
    assert sorted(cursor.shards) == [0, 1]


def test_order_holds_per_key(db: Client) -> None:
    changes = db.watch()
    for number in range(30):
        db.put(b"a", b"%d" % number)
        db.put(b"b", b"%d" % number)
    told = [next(changes) for _ in range(60)]
    for key in (b"a", b"b"):
        assert [c.value for c in told if c.key == key] == [b"%d" % n for n in range(30)]


def test_watch_survives_a_worker_that_dies_and_comes_back(node: FakeNode, db: Client) -> None:
    changes = db.watch()
    db.put(b"k", b"1")
    assert facts(next(changes)) == ("put", b"k", b"1")
    shard = node.table.shard_of_key(b"k")
    node.stop_direct(shard)
    db.put(b"k", b"2")
    assert facts(next(changes)) == ("put", b"k", b"2")


def test_history_that_is_gone_is_said_so(node: FakeNode, db: Client) -> None:
    node.rule("refuse", Compacted("gone", first_available=9), kind=Kind.WATCH, shard=0)
    start = WatchCursor(1, [0, 1], [0, 0]).to_text()
    with pytest.raises(Compacted) as caught:
        next(db.watch(start=start))
    assert caught.value.first_available == 9


def test_cursor_of_something_else_is_refused(db: Client) -> None:
    with pytest.raises(InvalidRequest):
        db.watch(start="sAAAA")


def test_watcher_and_writer_share_a_client_in_two_threads(db: Client) -> None:
    changes = db.watch()
    seen: list[bytes] = []

    def read() -> None:
        seen.extend(next(changes).key for _ in range(50))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        db.put(b"%d" % number, b"")
    reader.join(20)
    assert sorted(seen) == sorted(b"%d" % number for number in range(50))


def test_watcher_that_takes_its_time_over_a_change_still_hears_the_next(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked ahead waits unread meanwhile, for longer than a call may take."""
    monkeypatch.setattr("shardnode.client.sync.WAIT_S", 0.1)
    with Client(node.address, timeout=0.2) as db:
        changes = db.watch()
        db.put(b"k", b"1")
        assert facts(next(changes)) == ("put", b"k", b"1")
        time.sleep(0.5)
        with Client(node.address) as other:
            other.put(b"k", b"2")
        assert facts(next(changes)) == ("put", b"k", b"2")
