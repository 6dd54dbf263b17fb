"""Two hundred worlds full of faults, in every run of the tests. `scripts/sim` runs more."""

from __future__ import annotations

import pytest

from shardnode.sim import Plan, run_seed

SEEDS = 200
GROUP = 10


@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
def test_no_promise_breaks_in_seeds_from(first: int) -> None:
    plan = Plan()
    for seed in range(first, first + GROUP):
        report = run_seed(seed, plan)
        assert report.steps >= 2000
        assert report.operations >= 200
        assert report.faults >= 3
