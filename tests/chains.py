"""Which tests run one after the other in one worker, and which of them begin first.

Tests of one file stay together, so that a node or a wheel that they share is made once, and four
thousand short ones are not handed out one by one. Files of one chain share what is dear to start (a
session of Spark), or would be in each other's way (clusters whose answers are timed). Long tests
begin first, or a worker would sit at the last of them while the others have nothing left to do.

The one rule: the place of a file decides. The marks of pytest-xdist do the same by changing the
names of tests, which pytest 9.2 ignores without a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

CHAINS = {
    "spark": ("tests/spark/",),
    "clusters": (
        "tests/cluster/",
        "tests/system/test_damage.py",
        "tests/system/test_disks.py",
        "tests/system/test_group_soak.py",
        "tests/system/test_repair.py",
        "tests/system/test_verify_flips.py",
    ),
}

SPREAD = (
    "tests/system/test_backup.py",
    "tests/system/test_crash_cycles.py",
    "tests/system/test_kills.py",
    "tests/system/test_consumers.py",
    "tests/test_lint.py",
    "tests/sim/",
)
"""Long tests that share nothing: each runs wherever there is room."""

# With two workers: beside Spark run the longest single tests, and then the clusters.
FIRST = (
    *CHAINS["spark"],
    *SPREAD[:4],
    *CHAINS["clusters"],
    *SPREAD[4:],
    "tests/test_packaging.py",
    "tests/cli/",
    "tests/supervisor/",
    "tests/system/",
)


def unit_of(nodeid: str) -> str:
    """What a test is handed out with: its chain, nothing else, or its file."""
    for name, places in CHAINS.items():
        if nodeid.startswith(places):
            return name
    return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]


def rank(nodeid: str, places: Sequence[str] = FIRST) -> int:
    """Tests with a smaller one begin first."""
    found = (number for number, place in enumerate(places) if nodeid.startswith(place))
    return next(found, len(places))


class Chained(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out units, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Chained | None:
    """Asked by pytest-xdist in the process that hands out the tests."""
    return Chained(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the workers: alone, tests run in the order in which they stand."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))
