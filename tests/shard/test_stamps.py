"""Stamps of the log, whatever the clocks do."""

from __future__ import annotations

from random import Random

import pytest

from shardnode.shard.stamps import Stamps


@pytest.mark.parametrize("seed", range(20))
def test_stamps_never_go_back_whatever_the_clock_does(seed: int) -> None:
    random = Random(seed)
    wall_ms = 1_700_000_000_000
    leaders = [Stamps(lambda: wall_ms) for _ in range(3)]
    applied = term = now_ms = 0
    for _ in range(300):
        wall_ms += random.choice((1, 5, -86_400_000, 86_400_000, -3_600_000))
        if term == 0 or random.random() < 0.2:
            term += 1
            leader = random.choice(leaders)
        now_ms += random.randint(0, 50)
        stamp = leader.stamp(term, now_ms, applied)
        assert stamp >= applied
        applied = stamp


def test_clock_that_jumps_during_a_term_is_not_read() -> None:
    wall_ms = 1_000_000
    stamps = Stamps(lambda: wall_ms)
    first = stamps.stamp(1, 100, 0)
    wall_ms += 86_400_000
    assert stamps.stamp(1, 150, first) == first + 50
