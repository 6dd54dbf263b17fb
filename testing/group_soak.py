"""A group whose members join, leave and die at random, over a topic that is appended to meanwhile.

    python -m shardnode.testing.group_soak --seconds 120 --members 4 --partitions 8 --seed 7

    missed      a message was acknowledged and no member processed it
    invented    a member got what nobody appended, or something else at an offset
    back        a committed offset went back
    stuck       the group did not come to the end of its partitions

The one rule: members are processes of their own, which can be killed; what they did is in files.
With several nodes one of them is killed now and then as well.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from shardnode.client import Client, ShardnodeError, topics
from shardnode.client.partition_calls import CommittedCall
from shardnode.testing.cluster import Cluster
from shardnode.testing.history import NO_EFFECT
from shardnode.wire.placement import pack_namespace

TOPIC = "soak/work"
GROUP = "workers"
BATCH_MAX = 50
END_S = 60.0
STEP_S = (0.3, 1.5)
NOT_YET = -signal.SIGTERM
"""How a process ends that is told to leave before it is a member."""


@dataclass(slots=True)
class Result:
    """What came of it."""

    acknowledged: int = 0
    processed: int = 0
    again: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    problems: list[str] = field(default_factory=list)


class GroupSoak:
    """One run."""

    def __init__(self, members: int, partitions: int, nodes: int, seed: int) -> None:
        self.result = Result()
        self._members_max = members
        self._partitions = partitions
        self._random = Random(seed)
        self._seed = seed
        self._cluster = Cluster(nodes=nodes, shards=2, seed=seed, proxied=False)
        self._running: list[subprocess.Popen[bytes]] = []
        self._count = 0
        self._over = threading.Event()
        self._appended: dict[int, dict[int, str]] = {}
        """Partition → offset → message, of what was acknowledged."""
        self._in_doubt: set[str] = set()
        self._errors: list[BaseException] = []

    def run(self, seconds: float) -> Result:
        with self._cluster as cluster, tempfile.TemporaryDirectory(prefix="grp-") as name:
            folder = Path(name)
            with cluster.client(timeout=30.0) as db:
                db.create_topic(TOPIC, self._partitions)
            threads = [
                threading.Thread(target=self._safely, args=(act,), daemon=True)
                for act in (self._append, self._watch_offsets)
            ]
            for thread in threads:
                thread.start()
            try:
                self._churn(folder, seconds)
                self._over.set()
                for thread in threads:
                    thread.join()
                self._finish(folder)
            finally:
                self._over.set()
                for process in self._running:
                    process.kill()
                    process.wait()
            self.result.problems += [f"{error!r}" for error in self._errors]
            self._judge(folder)
        return self.result

    def _safely(self, act: object) -> None:
        try:
            assert callable(act)
            act()
        except BaseException as error:  # told by the main thread
            self._errors.append(error)

    # What happens to the group.

    def _churn(self, folder: Path, seconds: float) -> None:
        for _ in range(self._members_max):
            self._join(folder)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self._random.uniform(*STEP_S))
            act = self._random.choice(["join", "join", "leave", "die", "node"])
            if act == "join" and len(self._running) < self._members_max:
                self._join(folder)
            elif act in ("leave", "die") and self._running:
                self._end(self._random.choice(self._running), dies=act == "die")
            elif act == "node" and len(self._cluster.nodes) > 1 and self._random.random() < 0.3:
                node = self._random.choice(list(self._cluster.nodes.values()))
                node.kill()
                time.sleep(self._random.uniform(0.0, 2.0))
                node.start()
                self.result.acts["node killed"] += 1

    def _join(self, folder: Path) -> None:
        self._count += 1
        addresses = ",".join(self._cluster.addresses)
        words = [addresses, TOPIC, GROUP, str(folder / f"m{self._count}"), str(self._count)]
        with (folder / f"log{self._count}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shardnode.testing.group_member", *words], stderr=log
            )
        self._running.append(process)
        self.result.acts["joined"] += 1

    def _end(self, process: subprocess.Popen[bytes], *, dies: bool) -> None:
        if dies:
            process.kill()
        else:
            process.terminate()
        code = process.wait(30)
        self._running.remove(process)
        self.result.acts["died" if dies else "left"] += 1
        if not dies and code not in (0, NOT_YET):
            self.result.problems.append(f"a member that was told to leave ended with {code}")

    def _finish(self, folder: Path) -> None:
        """Everybody is there again, and reads to the end."""
        while len(self._running) < self._members_max:
            self._join(folder)
        deadline = time.monotonic() + END_S
        with self._cluster.client(timeout=30.0) as db:
            while lag := self._lag(db):
                if time.monotonic() > deadline:
                    self.result.problems.append(f"stuck: {lag} messages are left after {END_S} s")
                    break
                time.sleep(0.1)
        for process in list(self._running):
            self._end(process, dies=False)

    # Beside it.

    def _append(self) -> None:
        random, number = Random(self._seed + 1), 0
        with self._cluster.client(timeout=5.0) as db:
            topic = db.topic(TOPIC)
            while not self._over.is_set():
                batch = [f"{number + n}" for n in range(random.randint(1, BATCH_MAX))]
                number += len(batch)
                try:
                    partition, offset = topic.append(batch)
                except ShardnodeError as error:
                    self.result.acts[f"append {type(error).__name__}"] += 1
                    if not isinstance(error, NO_EFFECT):
                        self._in_doubt.update(batch)
                    continue
                there = self._appended.setdefault(partition, {})
                there.update(enumerate(batch, offset))
                time.sleep(random.uniform(0, 0.01))

    def _watch_offsets(self) -> None:
        """Committed offsets only grow."""
        highest: dict[int, int] = {}
        with self._cluster.client(timeout=5.0) as db:
            while not self._over.wait(0.05):
                try:
                    found = self._committed(db)
                except ShardnodeError as error:
                    self.result.acts[f"look {type(error).__name__}"] += 1
                    continue
                self.result.looks += 1
                for partition, committed in enumerate(found):
                    before = highest.get(partition, 0)
                    if committed < before:
                        self.result.problems.append(
                            f"back: partition {partition} was at {before} and is at {committed}"
                        )
                    highest[partition] = max(committed, before)

    def _committed(self, db: Client) -> list[int]:
        """The offset that the group has committed in each partition."""
        topic = db._run(topics.describe(TOPIC), None)
        spaces = [pack_namespace(topic.stream, topic.topic, n) for n in range(self._partitions)]
        return [db._run(CommittedCall(space, GROUP), None) or 0 for space in spaces]

    def _lag(self, db: Client) -> int:
        ends = [bounds.end for bounds in db.topic(TOPIC).all_bounds()]
        return sum(ends) - sum(self._committed(db))

    # The verdict.

    def _judge(self, folder: Path) -> None:
        result = self.result
        processed: dict[int, dict[int, str]] = {}
        total = 0
        for path in folder.glob("m*"):
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.count(" ") != 2:
                    continue  # the last line of one that was killed in the middle of it
                partition, offset, value = line.split(" ")
                total += 1
                there = processed.setdefault(int(partition), {})
                before = there.setdefault(int(offset), value)
                if before != value and len(before) == len(value):
                    result.problems.append(
                        f"invented: partition {partition} offset {offset} was {before} and {value}"
                    )
        result.acknowledged = sum(map(len, self._appended.values()))
        result.processed = sum(map(len, processed.values()))
        result.again = total - result.processed
        known = {value for there in self._appended.values() for value in there.values()}
        for number, wanted in self._appended.items():
            found = processed.get(number, {})
            missed = [offset for offset in wanted if offset not in found]
            if missed:
                count = len(missed)
                result.problems.append(f"missed: {count} of partition {number}: {missed[:5]}")
            wrong = [n for n, value in wanted.items() if n in found and found[n] != value]
            if wrong:
                result.problems.append(f"invented: other messages at {wrong[:5]} of {number}")
        seen = {value for there in processed.values() for value in there.values()}
        strange = seen - known - self._in_doubt
        if strange:
            result.problems.append(f"invented: nobody appended {sorted(strange)[:5]}")


def table(result: Result) -> Iterator[str]:
    acts = ", ".join(f"{count} × {what}" for what, count in result.acts.most_common())
    yield f"{acts}; {result.looks} looks at the committed offsets"
    yield (
        f"{result.acknowledged} messages acknowledged, {result.processed} processed,"
        f" {result.again} of them again"
    )
    yield from result.problems[:20]
    yield "nothing missed, nothing invented, no commit went back" if not result.problems else ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="group_soak", description="A group under churn.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    options = parser.parse_args(arguments)
    soak = GroupSoak(options.members, options.partitions, options.nodes, options.seed)
    result = soak.run(options.seconds)
    sys.stdout.writelines(f"{line}\n" for line in table(result))
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
