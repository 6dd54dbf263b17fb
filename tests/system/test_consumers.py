"""Consumer groups on real nodes: every message is dealt with, commits never go back, and whoever
dies is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from random import Random

import pytest

from shardnode import Client, Conflict
from shardnode.client.consumer import Consumer
from shardnode.client.topic import Topic
from tests.system.kit import NodeProcess, folder, started, until

SHARDS, PARTITIONS = 2, 8
SESSION_S = 2.0

MEMBER = """
import sys
from shardnode import Client, Conflict
with Client(sys.argv[1], timeout=30) as db:
    with db.topic("t").consumer("g", session_timeout=float(sys.argv[2])) as consumer:
        while True:
            messages = consumer.poll(timeout=1)
            for message in messages:
                print(message.partition, message.offset, message.value.decode(), flush=True)
            try:
                consumer.commit(messages)
            except Conflict:
                pass
"""


class Seen:
    """What all members together have dealt with."""

    def __init__(self, topic: Topic) -> None:
        self.lock = threading.Lock()
        self.counts: Counter[tuple[int, int]] = Counter()
        self.topic = topic

    def add(self, partition: int, offset: int) -> None:
        with self.lock:
            self.counts[partition, offset] += 1

    def missing(self) -> list[tuple[int, int]]:
        ends = self.topic.all_bounds()
        wanted = [(n, offset) for n, bounds in enumerate(ends) for offset in range(bounds.end)]
        with self.lock:
            return [each for each in wanted if each not in self.counts]


def produce(topic: Topic, random: Random, count: int) -> None:
    for number in range(count):
        values = [b"%d" % number] * random.randint(1, 20)
        topic.append(values, partition=random.randrange(PARTITIONS))


def deal_with(consumer: Consumer, seen: Seen, stop: threading.Event, problems: list[str]) -> None:
    """A member: deals with messages one page at a time and commits them."""
    while not stop.is_set():
        page = consumer.poll(timeout=0.2, max_messages=50)
        for message in page:
            seen.add(message.partition, message.offset)
        for number in {message.partition for message in page}:
            offsets = [m.offset for m in page if m.partition == number]
            if offsets != list(range(offsets[0], offsets[-1] + 1)):
                problems.append(f"a gap in {offsets} of partition {number}")
        with suppress(Conflict):  # somebody else has it now, and reads it again
            consumer.commit(page)


def test_group_of_four_over_eight_partitions_with_members_that_come_and_go() -> None:
    random = Random(7)
    with (
        folder() as data,
        started(data, "--shards", str(SHARDS)) as node,
        Client(node.address, timeout=30) as db,
    ):
        topic = db.create_topic("t", partitions=PARTITIONS)
        seen = Seen(topic)
        problems: list[str] = []
        producer = threading.Thread(target=produce, args=(topic, random, 600))
        producer.start()
        members: list[tuple[Consumer, threading.Event, threading.Thread]] = []
        highest = [0] * PARTITIONS

        def join() -> None:
            consumer = topic.consumer("g", session_timeout=SESSION_S)
            stop = threading.Event()
            thread = threading.Thread(target=deal_with, args=(consumer, seen, stop, problems))
            thread.start()
            members.append((consumer, stop, thread))

        def leave() -> None:
            consumer, stop, thread = members.pop(random.randrange(len(members)))
            stop.set()
            thread.join()
            consumer.close()

        def check_commits() -> None:
            for each in db.describe_group("g").partitions:
                assert (each.committed or 0) >= highest[each.partition], "a commit went back"
                highest[each.partition] = each.committed or 0

        for _ in range(4):
            join()
        for _ in range(8):
            until(lambda: sum(len(each.assignment) for each, _, _ in members) == PARTITIONS)
            if len(members) > 1 and random.random() < 0.5:
                leave()
            else:
                join()
            check_commits()
        producer.join()
        until(lambda: seen.missing() == [], 60)
        while members:
            leave()
        check_commits()
        assert problems == []
        assert highest == [bounds.end for bounds in topic.all_bounds()]
        assert db.list_groups() == ["g"]
        db.seek_group("g", "t", 3, "earliest")
        with topic.consumer("g") as late:
            found = until(lambda: late.poll(timeout=1))
            assert {m.partition for m in found} == {3}, "the rest was committed"
            assert found[0].offset == 0


def member(node: NodeProcess) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-P", "-c", MEMBER, node.address, str(SESSION_S)]
    return subprocess.Popen(words, stdout=subprocess.PIPE)


def test_member_that_is_killed_is_replaced_within_its_session() -> None:
    with (
        folder() as data,
        started(data, "--shards", str(SHARDS)) as node,
        Client(node.address, timeout=30) as db,
    ):
        topic = db.create_topic("t", partitions=PARTITIONS)
        for number in range(PARTITIONS):
            topic.append([b"before"], partition=number)
        process = member(node)
        assert process.stdout is not None
        before = {int(process.stdout.readline().split()[0]) for _ in range(PARTITIONS)}
        assert before == set(range(PARTITIONS))
        with topic.consumer("g", session_timeout=SESSION_S) as consumer:
            until(lambda: len(consumer.assignment) == PARTITIONS // 2)
            process.kill()
            process.wait()
            process.stdout.close()
            killed_at = time.monotonic()
            until(lambda: len(consumer.assignment) == PARTITIONS)
            assert time.monotonic() - killed_at < 2.5 * SESSION_S
            for number in range(PARTITIONS):
                topic.append([b"after"], partition=number)
            found: set[int] = set()
            while len(found) < PARTITIONS:
                found |= {m.partition for m in consumer.poll(5) if m.value == b"after"}


def test_group_survives_the_death_of_every_worker() -> None:
    """Coordinator and partitions die and come back under a group that reads and commits."""
    random = Random(11)
    with (
        folder() as data,
        started(data, "--shards", str(SHARDS)) as node,
        Client(node.address, timeout=30) as db,
    ):
        topic = db.create_topic("t", partitions=PARTITIONS)
        seen = Seen(topic)
        problems: list[str] = []
        stop = threading.Event()
        consumers = [topic.consumer("g", session_timeout=SESSION_S) for _ in range(2)]
        threads = [
            threading.Thread(target=deal_with, args=(each, seen, stop, problems))
            for each in consumers
        ]
        threads.append(threading.Thread(target=produce, args=(topic, random, 400)))
        for thread in threads:
            thread.start()
        for _ in range(2):
            for shard in node.shards():
                count = len(seen.counts)
                os.kill(shard.pid, signal.SIGKILL)
                until(lambda more=count + 20: len(seen.counts) > more, 30)  # type: ignore[misc]
        threads.pop().join()
        until(lambda: seen.missing() == [], 60)
        stop.set()
        for thread in threads:
            thread.join()
        for consumer in consumers:
            consumer.close()
        assert problems == []
        info = db.describe_group("g")
        assert info.members == ()
        assert all(each.lag is not None and each.lag >= 0 for each in info.partitions)


@pytest.mark.parametrize("group", [None, "g"])
def test_thousand_messages_of_each_partition_come_in_order(group: str | None) -> None:
    with (
        folder() as data,
        started(data, "--shards", str(SHARDS)) as node,
        Client(node.address) as db,
    ):
        topic = db.create_topic("t", partitions=PARTITIONS)
        for number in range(PARTITIONS):
            for first in range(0, 1_000, 250):
                values = [b"%d" % n for n in range(first, first + 250)]
                topic.append(values, partition=number, compression="zstd" if first else None)
        with topic.consumer(group) as consumer:
            found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
            while not consumer.is_at_end or not found[0]:
                for message in consumer.poll(max_messages=777):
                    assert message.value == b"%d" % message.offset
                    found[message.partition].append(message.offset)
            assert all(offsets == list(range(1_000)) for offsets in found.values())
