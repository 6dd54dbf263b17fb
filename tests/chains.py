"""Which tests run one after the other in one worker, and which of them begin first.

Tests of one file stay together, so that a node or a wheel that they share is made once, and four
thousand short ones are not handed out one by one. Files of one chain share what is dear to start (a
session of Spark), or would be in each other's way (clusters whose answers are timed). Long tests
begin first, or a worker would sit at the last of them while the others have nothing left to do.

Tests of whole nodes wait a good part of their time, which those that only compute can use: there
is one worker more than cores, the spare one. It takes nothing but such tests and gives way to all
others, so that whatever is timed has the cores whenever it wants them.

The one rule: the place of a file decides. The marks of pytest-xdist do the same by changing the
names of tests, which pytest 9.2 ignores without a word.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

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

COMPUTING = (
    "tests/test_lint.py",
    "tests/sim/",
    "tests/test_tidy.py",
    "tests/raft/",
    "tests/node/",
    "tests/backup/",
    "tests/engine/",
    "tests/offline/",
    "tests/storage/",
    "tests/wire/",
)
"""Their result does not depend on when they get a core."""

SPARE_NICE = 10

# With two cores: beside Spark run the longest single tests, and then the clusters.
FIRST = (
    *CHAINS["spark"],
    *SPREAD[:4],
    *CHAINS["clusters"],
    "tests/test_packaging.py",
    "tests/cli/",
    "tests/supervisor/",
    "tests/system/",
    "tests/pipeline/",
    "tests/test_setup_scripts.py",
)


def unit_of(nodeid: str) -> str:
    """What a test is handed out with: its chain, nothing else, or its file."""
    for name, places in CHAINS.items():
        if nodeid.startswith(places):
            return name
    return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]


def rank(nodeid: str) -> tuple[int, int]:
    """Tests with a smaller one begin first; those that only compute come last."""
    return _place(nodeid, COMPUTING, -1), _place(nodeid, FIRST, len(FIRST))


def _place(nodeid: str, places: Sequence[str], otherwise: int) -> int:
    found = (number for number, place in enumerate(places) if nodeid.startswith(place))
    return next(found, otherwise)


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_spare(worker: str, workers: int) -> bool:
    """Whether this worker is the one more than cores."""
    return workers > cores() and worker == f"gw{workers - 1}"


class Chained(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out units, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if is_spare(node.gateway.id, self.numnodes):
            computing = (unit for unit in self.workqueue if unit.startswith(COMPUTING))
            unit = next(computing, None)
            if unit is None:
                node.shutdown()
                return
            self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Chained | None:
    """Asked by pytest-xdist in the process that hands out the tests."""
    return Chained(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the workers: alone, tests run in the order in which they stand."""
    about = getattr(config, "workerinput", None)
    if about is None:
        return
    items.sort(key=lambda item: rank(item.nodeid))
    if is_spare(about["workerid"], about["workercount"]):
        os.nice(SPARE_NICE)
