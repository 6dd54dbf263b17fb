"""A seed is the whole story: the same number gives the same run, alone and in company."""

from __future__ import annotations

from shardnode.sim import Plan, Report, run_seed
from shardnode.sim.sweep import results


def test_same_seed_gives_the_same_trace_to_the_last_line() -> None:
    first: list[str] = []
    second: list[str] = []
    reports = [run_seed(5, Plan(), first.append), run_seed(5, Plan(), second.append)]
    assert first == second
    assert len(first) > 20
    assert reports[0] == reports[1]


def test_other_seed_gives_another_run() -> None:
    assert run_seed(5).steps != run_seed(6).steps


def test_seed_in_a_process_of_its_own_gives_the_same_report() -> None:
    seeds = range(40, 44)
    alone: dict[int, Report | None] = {seed: report for seed, report, _ in results(seeds, 1)}
    in_company = {seed: report for seed, report, _ in results(seeds, 2)}
    assert alone == in_company
    assert all(alone.values())
