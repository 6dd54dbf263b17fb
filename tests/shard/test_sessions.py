"""A retry never applies twice, whatever happens between the first try and the last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardnode.shard.sessions import REPLIES_MAX, SessionTable, Verdict

CLIENT = 42


def opened() -> SessionTable:
    table = SessionTable()
    assert table.open(CLIENT, stamp=100)
    return table


def test_first_time_runs_and_a_repeat_gets_the_same_reply() -> None:
    table = opened()
    assert table.judge(CLIENT, 1) is Verdict.FRESH
    table.record(CLIENT, 1, b"reply", acked_below=0, stamp=101)
    assert table.judge(CLIENT, 1) is Verdict.REPEAT
    assert table.reply(CLIENT, 1) == b"reply"


def test_requests_may_come_in_any_order() -> None:
    table = opened()
    table.record(CLIENT, 5, b"five", acked_below=0, stamp=101)
    assert table.judge(CLIENT, 3) is Verdict.FRESH


def test_reply_that_the_client_has_seen_is_forgotten_and_its_repeat_refused() -> None:
    table = opened()
    table.record(CLIENT, 1, b"one", acked_below=0, stamp=101)
    table.record(CLIENT, 2, b"two", acked_below=2, stamp=102)
    assert table.judge(CLIENT, 1) is Verdict.STALE
    assert table.judge(CLIENT, 2) is Verdict.REPEAT


def test_acknowledgement_never_goes_back() -> None:
    table = opened()
    table.touch(CLIENT, acked_below=9, stamp=101)
    table.touch(CLIENT, acked_below=3, stamp=102)
    assert table.judge(CLIENT, 8) is Verdict.STALE


def test_stranger_is_refused() -> None:
    assert SessionTable().judge(CLIENT, 1) is Verdict.EXPIRED


def test_replies_of_one_client_are_bounded() -> None:
    table = opened()
    for sequence in range(REPLIES_MAX):
        table.record(CLIENT, sequence, b"", acked_below=0, stamp=101)
    assert table.judge(CLIENT, REPLIES_MAX) is Verdict.FULL
    assert table.judge(CLIENT, 0) is Verdict.REPEAT


def test_silent_session_ends_and_a_late_copy_of_its_opening_does_not_bring_it_back() -> None:
    table = opened()
    table.record(CLIENT, 1, b"one", acked_below=0, stamp=101)
    assert table.expire(silent_since=101, forget_before=0) == 0
    assert table.expire(silent_since=102, forget_before=0) == 1
    assert table.judge(CLIENT, 1) is Verdict.EXPIRED
    assert not table.open(CLIENT, stamp=103)


def test_ended_ids_are_forgotten_after_a_while() -> None:
    table = opened()
    table.expire(silent_since=200, forget_before=0)
    table.expire(silent_since=300, forget_before=200)
    assert not table.open(CLIENT, stamp=301)
    table.expire(silent_since=300, forget_before=201)
    assert table.open(CLIENT, stamp=301)


def test_opening_again_keeps_what_is_known() -> None:
    table = opened()
    table.record(CLIENT, 1, b"one", acked_below=0, stamp=101)
    table.open(CLIENT, stamp=500)
    assert table.judge(CLIENT, 1) is Verdict.REPEAT
    assert table.oldest_stamp() == 500


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "run", "expire"]),
        st.integers(1, 4),
        st.integers(0, 6),
        st.integers(0, 6),
    ),
    max_size=40,
)


@given(STEPS)
def test_snapshot_carries_everything_and_equal_tables_have_equal_bytes(
    steps: list[tuple[str, int, int, int]],
) -> None:
    table, copied = SessionTable(), SessionTable()
    for stamp, (what, client, sequence, acked_below) in enumerate(steps):
        for each in (table, copied):
            if what == "open":
                each.open(client, stamp)
            elif what == "expire":
                each.expire(stamp - sequence, stamp - 10)
            elif each.judge(client, sequence) is Verdict.FRESH:
                each.record(client, sequence, b"%d" % stamp, acked_below, stamp)
        copied = SessionTable.decode(copied.encode())
    assert copied.encode() == table.encode()
