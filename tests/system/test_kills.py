"""What users are promised when processes die: real nodes, real SIGKILL."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import psutil
import pytest

from shardnode import Client, ShardnodeError
from tests.system.kit import folder, started, until


def kill(pid: int | None, number: signal.Signals) -> None:
    """To a worker of the node under test, which has just told its id."""
    assert pid is not None
    os.kill(pid, number)


def keys_by_shard(db: Client, count: int) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for number in range(count):
        key = b"key-%d" % number
        found.setdefault(db.explain(key).shard, []).append(key)
    return found


def test_killed_worker_comes_back_within_3_s_while_the_others_answer_all_the_while() -> None:
    with folder() as data, started(data, "--shards", "4") as node, Client(node.address) as db:
        by_shard = keys_by_shard(db, 400)
        assert sorted(by_shard) == [0, 1, 2, 3]
        db.put_many({key: b"before" for keys in by_shard.values() for key in keys})
        victim = 2
        others = [key for shard, keys in by_shard.items() if shard != victim for key in keys]
        slowest, done = 0.0, threading.Event()
        failures: list[str] = []

        def watch_others() -> None:
            nonlocal slowest
            with Client(node.address, timeout=1.0) as second:
                while not done.is_set():
                    begun = time.monotonic()
                    try:
                        assert second.get_many(others) == [b"before"] * len(others)
                    except (ShardnodeError, AssertionError) as error:
                        failures.append(repr(error))
                    slowest = max(slowest, time.monotonic() - begun)

        watcher = threading.Thread(target=watch_others)
        watcher.start()
        before = {shard.id: shard.pid for shard in db.status().shards}
        killed_at = time.monotonic()
        kill(before[victim], signal.SIGKILL)
        mine = by_shard[victim]
        assert db.get_many(mine) == [b"before"] * len(mine)
        took = time.monotonic() - killed_at
        db.put_many(dict.fromkeys(mine, b"after"))
        done.set()
        watcher.join()
        after = {shard.id: shard.pid for shard in db.status().shards}
    assert took < 3.0
    assert failures == []
    assert slowest < 1.0
    assert before[victim] != after[victim]
    assert {s: p for s, p in before.items() if s != victim} == {
        s: p for s, p in after.items() if s != victim
    }


def test_nothing_acknowledged_is_lost_over_kills_of_every_worker_under_load() -> None:
    with folder() as data, started(data, "--shards", "2") as node:
        acknowledged: dict[bytes, bytes] = {}
        done = threading.Event()

        def write() -> None:
            with Client(node.address, timeout=10.0) as db:
                number = 0
                while not done.is_set():
                    batch = {b"%d" % (number + n): b"v%d" % number for n in range(50)}
                    db.put_many(batch)
                    acknowledged.update(batch)
                    number += 50

        def reached(goal: int) -> bool:
            return len(acknowledged) > goal

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for round_ in range(6):
                goal = len(acknowledged) + 500
                until(partial(reached, goal))
                victim = next(s for s in node.shards() if s.id == round_ % 2)
                kill(victim.pid, signal.SIGKILL)
        finally:
            done.set()
            writer.join()
        with Client(node.address) as db:
            keys = list(acknowledged)
            assert db.get_many(keys) == [acknowledged[key] for key in keys]


def test_killed_supervisor_leaves_no_process_and_a_restart_works() -> None:
    with folder() as data:
        with started(data, "--shards", "2") as node:
            with Client(node.address) as db:
                db.put(b"kept", b"yes")
            family = node.family()
            assert len(family) == 4
            node.process.send_signal(signal.SIGKILL)
            _, left = psutil.wait_procs(family, timeout=3)
            assert left == []
        with started(data, "--shards", "2") as node, Client(node.address) as db:
            assert db.get(b"kept") == b"yes"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_under_load_keeps_what_was_acknowledged_and_exits_0(number: signal.Signals) -> None:
    with folder() as data:
        acknowledged: list[bytes] = []
        with started(data, "--shards", "2") as node:
            stopped = threading.Event()

            def write() -> None:
                with Client(node.address, timeout=0.5) as db:
                    while not stopped.is_set():
                        key = b"%d" % len(acknowledged)
                        try:
                            db.put(key, b"v")
                        except ShardnodeError:
                            return
                        acknowledged.append(key)

            writer = threading.Thread(target=write)
            writer.start()
            until(lambda: len(acknowledged) > 200)
            node.process.send_signal(number)
            assert node.process.wait(20) == 0
            stopped.set()
            writer.join()
        with started(data, "--shards", "2") as node, Client(node.address) as db:
            assert db.get_many(acknowledged) == [b"v"] * len(acknowledged)


def test_hanging_worker_is_noticed_and_replaced() -> None:
    with folder() as data, started(data, "--shards", "2") as node, Client(node.address) as db:
        victim = db.status().shards[1]
        kill(victim.pid, signal.SIGSTOP)
        until(lambda: node.shards()[1].restarts == 1, timeout_s=20)
        until(lambda: node.shards()[1].state == "serving")
        assert node.shards()[1].pid != victim.pid
