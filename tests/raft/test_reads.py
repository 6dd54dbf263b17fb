"""The queue of reads: which round covers which read, and when it may be served."""

from __future__ import annotations

from shardnode.raft import ReadGrant
from shardnode.raft.reads import ReadQueue


def test_round_covers_every_read_that_came_before_it() -> None:
    reads = ReadQueue()
    reads.ask(1)
    reads.ask(2)
    wanted = [reads.wants_round]
    reads.begin_round(stamp=10, commit=4)
    wanted.append(reads.wants_round)
    reads.ask(3)
    wanted.append(reads.wants_round)
    assert wanted == [True, False, True]
    reads.confirm(10)
    assert reads.take(applied=9) == [ReadGrant(1, 4), ReadGrant(2, 4)]
    assert len(reads) == 1


def test_echo_of_an_earlier_stamp_confirms_nothing() -> None:
    reads = ReadQueue()
    reads.ask(1)
    reads.begin_round(stamp=10, commit=4)
    reads.confirm(9)
    assert reads.take(applied=9) == []
    reads.confirm(11)
    assert reads.take(applied=9) == [ReadGrant(1, 4)]


def test_later_round_confirms_the_earlier_ones() -> None:
    reads = ReadQueue()
    for context, stamp in ((1, 10), (2, 20), (3, 30)):
        reads.ask(context)
        reads.begin_round(stamp, commit=stamp)
    reads.confirm(20)
    assert reads.take(applied=99) == [ReadGrant(1, 10), ReadGrant(2, 20)]


def test_confirmed_read_waits_to_be_applied() -> None:
    reads = ReadQueue()
    reads.grant(1, commit=4)
    assert reads.take(applied=3) == []
    assert reads.take(applied=4) == [ReadGrant(1, 4)]
    assert len(reads) == 0


def test_read_is_served_once() -> None:
    reads = ReadQueue()
    reads.grant(1, commit=0)
    assert reads.take(applied=0) == [ReadGrant(1, 0)]
    assert reads.take(applied=0) == []
    assert reads.give_up() == []


def test_every_read_that_was_not_handed_out_is_given_up() -> None:
    reads = ReadQueue()
    reads.grant(1, commit=4)
    reads.ask(2)
    reads.begin_round(stamp=10, commit=4)
    reads.ask(3)
    assert sorted(reads.give_up()) == [1, 2, 3]
    reads.confirm(99)
    assert (reads.take(applied=99), len(reads), reads.wants_round) == ([], 0, False)
