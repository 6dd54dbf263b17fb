"""A streaming query that is stopped and killed at random moments, over a topic that is written to.

    python -P -m shardnode.testing.spark_restarts --restarts 20 --sink topic --seed 7

    missed      a message was acknowledged and is not in the sink
    twice       … is there more than once; a key of the sink was put more than once
    invented    something is in the sink that nobody appended

The query is a process of its own with its Java and its Python workers (`spark_restarts_query`). In
turns it is told to stop, and killed with all of them; its checkpoint stays. At the end one more run
takes what is there and ends.

The one rule: what counts is what the node says. Nothing of the query is believed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil

from shardnode.client import Client
from shardnode.testing.node import NodeUnderTest

SOURCE = "restarts/source"
SINK = "restarts/sink"
PREFIX = b"restarts/"
PARTITIONS = 4
BATCH_MAX = 10
RUN_S = (0.2, 6.0)
"""How long a query runs, from its first micro-batch on."""

START_S = 240.0
END_S = 600.0
PAUSE_S = 0.05


@dataclass(slots=True)
class Result:
    """What came of it."""

    appended: int = 0
    found: int = 0
    acts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Producer(threading.Thread):
    """Appends counted messages until it is told to stop."""

    def __init__(self, address: str, random: Random) -> None:
        super().__init__(name="producer", daemon=True)
        self.appended = 0
        self._address = address
        self._random = random
        self._over = threading.Event()

    def run(self) -> None:
        with Client(self._address, timeout=30.0) as db:
            topic = db.topic(SOURCE)
            while not self._over.wait(PAUSE_S):
                first = self.appended
                count = self._random.randint(1, BATCH_MAX)
                messages = [b"%d" % (first + n) for n in range(count)]
                topic.append(messages, partition=self._random.randrange(PARTITIONS))
                self.appended += count

    def end(self) -> int:
        self._over.set()
        self.join()
        return self.appended


class Watcher(threading.Thread):
    """Counts how often each key of the sink was put."""

    def __init__(self, address: str) -> None:
        super().__init__(name="watcher", daemon=True)
        self.puts: Counter[bytes] = Counter()
        self.total = 0
        self.grown = threading.Condition()
        self._client = Client(address, timeout=30.0)
        self._changes = self._client.watch(prefix=PREFIX)  # from here on, not from the first put

    def run(self) -> None:
        for change in self._changes:
            with self.grown:
                self.puts[change.key] += 1
                self.total += 1
                self.grown.notify_all()

    def wait_for(self, count: int, timeout: float) -> None:
        """Until so many puts were seen, or the time is over."""
        with self.grown:
            self.grown.wait_for(lambda: self.total >= count, timeout)


class Restarts:
    """One run."""

    def __init__(self, node: NodeUnderTest, sink: str, seed: int, folder: Path) -> None:
        self.result = Result()
        self._node = node
        self._sink = sink
        self._random = Random(seed)
        self._folder = folder
        self._watcher = Watcher(node.address) if sink == "keys" else None

    def run(self, restarts: int) -> Result:
        with self._node.client() as db:
            db.create_topic(SOURCE, partitions=PARTITIONS)
            db.create_topic(SINK, partitions=PARTITIONS - 1)
        if self._watcher is not None:
            self._watcher.start()
        producer = Producer(self._node.address, Random(self._random.random()))
        producer.start()
        for number in range(restarts):
            self._disturb(number)
        self.result.appended = producer.end()
        with self._query(once=True) as query:
            if query.process.wait(END_S) != 0:
                self.result.problems.append(f"the last query failed: {query.log_end()}")
        self._judge()
        return self.result

    def _disturb(self, number: int) -> None:
        """Let a query run for a while; then stop it, or kill it."""
        with self._query(once=False) as query:
            line = query.first_line()
            if line != "running":
                self.result.problems.append(f"query {number} did not start: {query.log_end()}")
                return
            threading.Event().wait(self._random.uniform(*RUN_S))
            act = "stopped" if number % 2 == 0 else "killed"
            self.result.acts[act] += 1
            if act == "killed":
                query.kill()
            else:
                query.process.send_signal(signal.SIGTERM)
                if query.process.wait(END_S) != 0:
                    self.result.problems.append(f"query {number} failed: {query.log_end()}")

    def _query(self, *, once: bool) -> Query:
        settings = {
            "connect": self._node.address,
            "source": SOURCE,
            "sink": SINK if self._sink == "topic" else "",
            "prefix": PREFIX.decode(),
            "checkpoint": str(self._folder / "checkpoint"),
            "once": once,
        }
        return Query(settings, self._folder / "query.log")

    def _judge(self) -> None:
        found = self._found_keys() if self._watcher is not None else self._found_messages()
        expected = {b"%d" % n for n in range(self.result.appended)}
        self.result.found = len(found)
        twice = sorted(each for each, count in found.items() if count > 1)
        for what, wrong in (
            ("missed", sorted(expected - found.keys())),
            ("twice", twice),
            ("invented", sorted(found.keys() - expected)),
        ):
            if wrong:
                self.result.problems.append(f"{what}: {len(wrong)}, such as {wrong[:5]}")

    def _found_messages(self) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        with self._node.client(timeout=30.0) as db:
            topic = db.topic(SINK)
            for partition, bounds in enumerate(topic.all_bounds()):
                at = bounds.first
                while at < bounds.end:
                    page = topic.read(partition, at, 10_000)
                    found.update(message.value for message in page)
                    at += len(page)
        return found

    def _found_keys(self) -> Counter[bytes]:
        """How often each was put; a key that is not there counts as not put."""
        assert self._watcher is not None
        with self._node.client(timeout=30.0) as db:
            there = [e.key for e in db.scan(prefix=PREFIX, keys_only=True)]
        self._watcher.wait_for(len(there), END_S)
        at = len(PREFIX)
        return Counter({key[at:]: max(self._watcher.puts[key], 1) for key in there})


class Query:
    """The process of a query; leaving the block ends it and what it started."""

    def __init__(self, settings: dict[str, Any], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "shardnode.testing.spark_restarts_query",
                    json.dumps(settings),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=log.parent,
            )

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def first_line(self) -> str:
        """What it says when it has done its first micro-batch; empty when it ended before."""
        assert self.process.stdout is not None
        late = threading.Timer(START_S, self.kill)
        late.start()
        try:
            return self.process.stdout.readline().strip()
        finally:
            late.cancel()

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:]

    def kill(self) -> None:
        """SIGKILL to the driver, its Java, and the Python workers of that."""
        try:
            driver = psutil.Process(self.process.pid)
            family = [driver, *driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            family = []
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()
        psutil.wait_procs(family, END_S)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--sink", choices=["topic", "keys"], default="topic")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="shardnode-restarts-") as folder:
        path = Path(folder)
        with NodeUnderTest(3, folder=path / "node") as node:
            result = Restarts(node, given.sink, given.seed, path).run(given.restarts)
    acts = ", ".join(f"{count} {act}" for act, count in sorted(result.acts.items()))
    lines = [f"{acts}; {result.appended:,} messages, {result.found:,} in the sink ({given.sink})"]
    sys.stdout.write("\n".join([*lines, *result.problems, ""]))
    return 1 if result.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
