"""Directories that crashes have left, for `verify` to find sound.

The one rule: a directory is looked at when every process that wrote to it is gone, and before the
next one starts, so that nothing has been mended yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from shardnode.node.identity import DirectoryInUse
from shardnode.offline.verify import Verdict, verify
from shardnode.offline.verify_shard import look_at_shard
from shardnode.sim.checks import Checks
from shardnode.sim.node import SimNode
from shardnode.sim.runner import Plan, Run
from shardnode.sim.world import World
from shardnode.storage.audit import Book
from shardnode.testing.crash_cycles import Cycles

LET_GO_S = 20.0


def crashed_nodes(count: int, seed: int) -> Iterator[str]:
    """So many directories of real nodes; what is wrong with each, empty when nothing is. The state
    is compared with what the log makes, too."""
    wrong: list[str] = []

    def look(data: Path) -> None:
        if (data / "node.json").exists():
            wrong.append("; ".join(map(str, _verify_when_let_go(data).damage)))

    cycles = Cycles(seed, look=look)
    cycles.run(count)
    yield from wrong
    yield from cycles.result.problems


def crashed_worlds(count: int, seed: int) -> Iterator[str]:
    """The disks of simulated members, each time one has lost its power."""
    for number in range(seed, seed + count):
        run = Run(number, Plan(), checks=_Looking)
        run.go()
        assert isinstance(run.checks, _Looking)
        yield from run.checks.wrong


def _verify_when_let_go(data: Path) -> Verdict:
    """The last worker of a supervisor that was killed holds the lock a moment longer."""
    deadline = time.monotonic() + LET_GO_S
    while True:
        try:
            return verify(data, replay=True)
        except DirectoryInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class _Looking(Checks):
    """Looks at the disk of whoever dies, unless it was damaged on purpose, or has torn a sector:
    where it is full the simulated one does, and then a copy of the superblock is really lost."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.wrong: list[str] = []

    def died(self, node: SimNode) -> None:
        super().died(node)
        if not (node.damaged or node.files.flips or node.files.cut_short):
            book = Book()
            look_at_shard(node.files, node.settings.directory, book, state_is_in_files=False)
            self.wrong.append("; ".join(map(str, book.damage)))
