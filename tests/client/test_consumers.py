"""What a consumer holds, fetches and gives out, without a socket: its calls are ended by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.client.consumers import PREFETCH_BYTES, WAIT_S, Consumption, OnLost
from shardnode.client.messages import Message, to_batch
from shardnode.client.partition_calls import FetchCall, Taken
from shardnode.wire.errors import (
    Compacted,
    Conflict,
    Corrupt,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    ShardnodeError,
)
from shardnode.wire.placement import pack_namespace
from shardnode.wire.streams import MessagesFound
from tests.client.kit import end

TAKEN = Taken("g", 3)
NOW = 100.0


def space(number: int) -> int:
    return pack_namespace(1, 2, number)


def page(base: int, *sizes: int, end: int | None = None, first: int = 0) -> MessagesFound:
    """Batches of these sizes from an offset on; each value is its offset."""
    bases, batches, at = [], [], base
    for size in sizes:
        bases.append(at)
        batches.append(to_batch([b"%d" % n for n in range(at, at + size)], None).encoded)
        at += size
    stamps = [1_000] * len(sizes)
    return MessagesFound(bases, sizes, stamps, batches, at, first, at if end is None else end)


def holding(*numbers: int, on_lost: OnLost = "raise", taken: Taken | None = TAKEN) -> Consumption:
    state = Consumption(on_lost=on_lost)
    for number in numbers:
        state.hold(space(number), 0, taken)
    return state


def fetched(state: Consumption) -> dict[int, FetchCall]:
    """The calls that are to be started, by partition."""
    return {call.namespace & 0xFFFFF: call for call in state.new_calls()}


def places(messages: Sequence[Message]) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in messages]


def at_end(state: Consumption) -> bool:
    return state.is_at_end


def test_messages_are_given_out_in_the_order_of_offsets() -> None:
    state = holding(0)
    end(fetched(state)[0], page(0, 3, 2))
    state.absorb()
    assert places(state.take(4, NOW)) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    end(fetched(state)[0], page(5, 1))
    state.absorb()
    assert [m.value for m in state.take(10, NOW)] == [b"4", b"5"]
    assert state.take(10, NOW) == []


def test_what_was_fetched_below_the_offset_is_left_out() -> None:
    state = Consumption()
    state.hold(space(0), 2, None)
    end(fetched(state)[0], page(0, 5))
    state.absorb()
    assert places(state.take(10, NOW)) == [(0, 2), (0, 3), (0, 4)]


def test_partitions_take_turns_batch_by_batch() -> None:
    state = holding(0, 1, 2)
    for number, call in fetched(state).items():
        end(call, page(0, *([2] * (5 if number == 0 else 1))))
    state.absorb()
    assert [p for p, _ in places(state.take(6, NOW))] == [0, 0, 1, 1, 2, 2]
    assert [p for p, _ in places(state.take(100, NOW))] == [0] * 8


def test_cut_batch_goes_on_before_the_next() -> None:
    state = holding(0, 1)
    for call in fetched(state).values():
        end(call, page(0, 3))
    state.absorb()
    assert places(state.take(2, NOW)) == [(0, 0), (0, 1)]
    popped = state.pop(NOW)
    assert popped is not None
    assert places([popped, *state.take(2, NOW)]) == [(0, 2), (1, 0), (1, 1)]
    assert state.of(1).position == 2


def test_first_page_comes_at_once_and_the_next_waits_for_news() -> None:
    state = holding(0)
    first = fetched(state)[0]
    assert first._body.wait_ms == 0
    assert fetched(state) == {}, "one at a time"
    assert at_end(state) is False
    end(first, page(0, end=0))
    state.absorb()
    state.is_settled = True
    assert at_end(state) is True
    assert fetched(state)[0]._body.wait_ms == WAIT_S * 1000


def test_not_more_is_fetched_than_about_two_pages_ahead() -> None:
    state = holding(*range(64))
    calls = fetched(state)
    assert calls[0]._body.page_bytes == PREFETCH_BYTES // 2 // 64
    size = calls[0]._body.page_bytes
    batch = to_batch([bytes(size)], None).encoded
    end(calls[0], MessagesFound([0], [1], [1], [batch], 1, 0, 9))
    state.absorb()
    assert fetched(state) == {}, "a page is there that nobody has asked for"
    state.take(1, NOW)
    assert set(fetched(state)) == {0}


def test_what_is_taken_away_is_not_given_out_any_more() -> None:
    state = holding(0, 1)
    calls = fetched(state)
    for call in calls.values():
        end(call, page(0, 3))
    state.absorb()
    state.take(1, NOW)
    again = fetched(state)
    state.drop([space(0)])
    assert places(state.take(100, NOW)) == [(1, 0), (1, 1), (1, 2)]
    assert list(state.dropped_calls()) == [again[0]]
    assert state.assignment == [1]
    with pytest.raises(InvalidRequest, match=r"found 0; it holds \[1\]"):
        state.of(0)
    end(again[0], page(3, 1))
    state.absorb()
    assert state.take(100, NOW) == [], "what comes later is not wanted"


def test_nothing_is_given_out_by_who_has_to_think_that_it_was_given_up() -> None:
    state = holding(0)
    end(fetched(state)[0], page(0, 3))
    state.absorb()
    state.valid_until = NOW
    assert state.take(1, NOW) == []
    assert state.pop(NOW) is None
    assert len(state.take(9, NOW - 0.1)) == 3


def test_seek_forgets_what_was_fetched_and_goes_on_there() -> None:
    state = holding(0, 1)
    for call in fetched(state).values():
        end(call, page(0, 5))
    state.absorb()
    state.take(2, NOW)
    under_way = fetched(state)
    state.seek(0, 4)
    assert list(state.dropped_calls()) == [under_way[0]]
    assert places(state.take(100, NOW)) == [(1, n) for n in range(5)]
    again = fetched(state)[0]
    assert (again._body.offset, again._body.wait_ms) == (4, 0)
    end(again, page(0, 5))
    state.absorb()
    assert places(state.take(100, NOW)) == [(0, 4)]


def commit_of(
    state: Consumption, what: Message | Sequence[Message] | None
) -> list[tuple[int, ...]]:
    return [(c.namespace & 0xFFFFF, c.offset, c.back) for c in state.commits(what)]


def test_commit_names_the_offset_behind_the_last_message() -> None:
    state = holding(0, 1)
    for call in fetched(state).values():
        end(call, page(0, 5))
    state.absorb()
    messages = state.take(7, NOW)
    assert commit_of(state, messages[2]) == [(0, 3, False)]
    assert commit_of(state, [messages[4], messages[2], messages[5]]) == [
        (0, 5, False),
        (1, 1, False),
    ]
    assert commit_of(state, None) == [(0, 5, False), (1, 2, False)]
    for commit in state.commits(None):
        end(commit, None)
        state.committed(commit)
    assert commit_of(state, None) == [], "nothing is new"


def test_commit_after_seeking_back_may_lower_the_offset_once() -> None:
    state = holding(0)
    end(fetched(state)[0], page(0, 5))
    state.absorb()
    state.take(5, NOW)
    [call] = state.commits(None)
    end(call, None)
    state.committed(call)
    state.seek(0, 2)
    assert commit_of(state, None) == [(0, 2, True)]
    [call] = state.commits(None)
    end(call, None)
    state.committed(call)
    state.seek(0, 4)
    assert commit_of(state, None) == [(0, 4, False)]


def test_commit_of_what_is_not_held_any_more_is_a_conflict() -> None:
    state = holding(0)
    end(fetched(state)[0], page(0, 1))
    state.absorb()
    [message] = state.take(1, NOW)
    state.drop([space(0)])
    with pytest.raises(Conflict, match="partition 0 does not belong"):
        state.commits(message)
    assert state.commits(None) == []


def test_fenced_commit_lets_go_of_its_partition_alone() -> None:
    state = holding(0, 1)
    for call in fetched(state).values():
        end(call, page(0, 5))
    state.absorb()
    state.take(10, NOW)
    first, second = state.commits(None)
    end(first, Conflict("another generation"))
    end(second, None)
    with pytest.raises(Conflict):
        state.committed(first)
    state.committed(second)
    assert (state.assignment, state.fenced) == ([1], {space(0)})


def test_late_conflict_of_an_earlier_claim_leaves_the_new_one_alone() -> None:
    state = holding(0)
    end(fetched(state)[0], page(0, 1))
    state.absorb()
    [message] = state.take(1, NOW)
    [call] = state.commits(message)
    state.drop([space(0)])
    state.hold(space(0), 0, Taken("g", 5))
    end(call, Conflict("another generation"))
    with pytest.raises(Conflict):
        state.committed(call)
    assert (state.assignment, state.fenced) == ([0], set())


def test_lost_messages_are_told_with_the_first_that_is_there() -> None:
    state = holding(0)
    end(fetched(state)[0], Compacted("gone", first_available=7))
    state.absorb()
    error = state.take_error()
    assert isinstance(error, Compacted)
    assert (error.first_available, "partition 0 at 0" in error.message) == (7, True)
    assert state.take_error() is None
    assert fetched(state)[0]._body.offset == 0, "asked again until somebody decides"


def test_lost_messages_are_skipped_if_that_is_wanted_and_what_was_fetched_is_kept() -> None:
    state = holding(0, on_lost="skip")
    end(fetched(state)[0], page(0, 2, end=9))
    state.absorb()
    end(fetched(state)[0], Compacted("gone", first_available=7))
    state.absorb()
    assert places(state.take(10, NOW)) == [(0, 0), (0, 1)]
    end(fetched(state)[0], page(7, 2))
    state.absorb()
    assert state.take_error() is None
    assert places(state.take(10, NOW)) == [(0, 7), (0, 8)]


def test_skip_to_the_end_leaves_nothing_to_wait_for() -> None:
    state = holding(0, on_lost="skip")
    end(fetched(state)[0], Compacted("gone", first_available=9))
    state.absorb()
    assert state.of(0).position == 9
    end(fetched(state)[0], page(9, end=9, first=9))
    state.absorb()
    state.is_settled = True
    assert state.is_at_end


@pytest.mark.parametrize(
    "error", [Corrupt("fenced"), NotFound("deleted"), InvalidRequest("beyond")]
)
def test_error_of_one_partition_is_told_when_the_others_have_nothing(error: ShardnodeError) -> None:
    state = holding(0, 1)
    calls = fetched(state)
    end(calls[0], error)
    end(calls[1], page(0, 2))
    state.absorb()
    assert set(fetched(state)) == {1}
    assert len(state.take(10, NOW)) == 2
    assert state.take_error() is error
    assert set(fetched(state)) == {0}, "tried again after it was told"


def test_outage_is_told_only_when_it_lasts() -> None:
    state = holding(0)
    end(fetched(state)[0], page(0))
    state.absorb()
    end(fetched(state)[0], DeadlineExceeded("parked, and nobody looked"))
    state.absorb()
    assert state.take_error() is None
    end(fetched(state)[0], DeadlineExceeded("still nothing"))
    state.absorb()
    assert isinstance(state.take_error(), DeadlineExceeded)


def test_outage_at_the_beginning_is_told_at_once() -> None:
    state = holding(0)
    end(fetched(state)[0], DeadlineExceeded("nothing"))
    state.absorb()
    assert isinstance(state.take_error(), DeadlineExceeded)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["page", "take", "pop", "seek", "drop", "hold"]),
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_each_partition_is_given_out_without_gap_or_repeat(
    steps: list[tuple[str, int, int]],
) -> None:
    state = holding(0, 1, 2)
    expected = dict.fromkeys(range(3), 0)
    calls: dict[int, FetchCall] = {}
    for what, number, size in steps:
        calls |= fetched(state)
        is_held = number in state.assignment
        if what == "page" and number in calls and is_held:
            call = calls.pop(number)
            end(call, page(max(0, call._body.offset - size // 2), size, size))
            state.absorb()
        elif what == "seek" and is_held:
            state.seek(number, size)
            expected[number] = size
        elif what == "drop":
            state.drop([space(number)])
        elif what == "hold" and not is_held:
            state.hold(space(number), size, TAKEN)
            expected[number] = size
        elif what in ("take", "pop"):
            found = state.take(size, NOW) if what == "take" else [state.pop(NOW)]
            for message in filter(None, found):
                assert message.partition in state.assignment
                assert message.offset == expected[message.partition]
                assert message.value == b"%d" % message.offset
                expected[message.partition] += 1
        for each in state.assignment:
            assert state.of(each).position == expected[each]


def with_one_that_nobody_can_read() -> MessagesFound:
    """Offsets 0 to 1 are sound, 2 to 4 are not, 5 is."""
    found = page(0, 2, 3, 1)
    return MessagesFound(
        found.base_offsets,
        found.counts,
        found.timestamps_ms,
        [found.batches[0], found.batches[1][:-1], found.batches[2]],
        found.next,
        found.first,
        found.end,
    )


def test_batch_that_nobody_can_read_is_met_again_until_somebody_seeks() -> None:
    state = holding(0)
    for _ in range(2):
        end(fetched(state)[0], with_one_that_nobody_can_read())
        state.absorb()
        if state.of(0).position == 0:
            assert places(state.take(2, NOW)) == [(0, 0), (0, 1)]
        with pytest.raises(Corrupt, match=r"the 3 messages from offset 2 .* go on at offset 5"):
            state.take(10, NOW)
        assert state.of(0).position == 2, "nothing is passed over without a word"
    state.seek(0, 5)
    end(fetched(state)[0], page(5, 1))
    state.absorb()
    assert places(state.take(10, NOW)) == [(0, 5)]


def test_who_skips_what_is_lost_skips_what_nobody_can_read() -> None:
    state = holding(0, on_lost="skip")
    end(fetched(state)[0], with_one_that_nobody_can_read())
    state.absorb()
    assert places(state.take(10, NOW)) == [(0, 0), (0, 1), (0, 5)]
