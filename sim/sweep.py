"""Many seeds at once, each in a process of its own kind.

The one rule: a worker process starts fresh and shares nothing, so a seed gives the same result
alone and in company.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterator

from shardnode.sim.runner import Report, run_seed


def attempt(seed: int) -> tuple[int, Report | None, str]:
    """One seed: its report, or the story of its failure."""
    try:
        return seed, run_seed(seed), ""
    except Exception:
        return seed, None, traceback.format_exc()


def results(seeds: range, jobs: int) -> Iterator[tuple[int, Report | None, str]]:
    """The outcome of each seed, as they come in."""
    if jobs <= 1:
        yield from map(attempt, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(attempt, seeds, chunksize=1)
