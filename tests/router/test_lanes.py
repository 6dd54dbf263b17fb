"""Large requests under way to a worker are bounded, and none is counted for ever."""

from __future__ import annotations

import pytest

from shardnode.router.lanes import LARGE_BYTES_MAX, Lane
from shardnode.wire.errors import Overloaded

HALF = LARGE_BYTES_MAX // 2


def test_large_requests_are_refused_beyond_the_limit_and_let_in_again_after_a_reply() -> None:
    lane = Lane()
    lane.enter((b"a", 1), HALF, 5_000, 0)
    lane.enter((b"a", 2), HALF, 5_000, 0)
    with pytest.raises(Overloaded) as caught:
        lane.enter((b"b", 1), 1, 5_000, 0)
    assert (caught.value.lag, caught.value.limit) == (LARGE_BYTES_MAX + 1, LARGE_BYTES_MAX)
    lane.leave((b"a", 1))
    lane.enter((b"b", 1), 1, 5_000, 0)


def test_one_request_is_always_let_in() -> None:
    lane = Lane()
    lane.enter((b"a", 1), LARGE_BYTES_MAX + 1, 5_000, 0)
    assert lane.large_bytes == LARGE_BYTES_MAX + 1


def test_repeat_of_a_request_counts_once() -> None:
    lane = Lane()
    for _ in range(5):
        lane.enter((b"a", 1), HALF, 5_000, 0)
    assert lane.large_bytes == HALF


def test_request_without_a_reply_is_forgotten_after_its_deadline() -> None:
    lane = Lane()
    lane.enter((b"a", 1), HALF, 2_000, 0)
    lane.enter((b"a", 2), HALF, 0, 0)  # the default: five seconds
    with pytest.raises(Overloaded):
        lane.enter((b"b", 1), 1, 2_000, 2_900)
    lane.enter((b"b", 1), 1, 2_000, 3_100)
    assert lane.large_bytes == HALF + 1


def test_worker_that_was_started_anew_has_nothing_under_way() -> None:
    lane = Lane()
    lane.enter((b"a", 1), HALF, 2_000, 0)
    lane.forwarded = 3
    lane.reset()
    assert (lane.large_bytes, lane.under_way, lane.has_large) == (0, 0, False)


def test_reply_nobody_waits_for_changes_nothing() -> None:
    lane = Lane()
    lane.leave((b"a", 1))
    assert lane.large_bytes == 0
