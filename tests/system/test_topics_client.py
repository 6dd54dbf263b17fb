"""Topics through the client library on a real node: what is acknowledged is read, once, in order,
also by those that were killed in between."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from shardnode import AsyncClient, Client, Conflict, NotFound
from shardnode.client.messages import Message, OutgoingMessage
from shardnode.client.topic import Topic
from tests.system.kit import folder, started, until

SHARDS, PARTITIONS = 2, 6


def everything(topic: Topic, partition: int) -> list[Message]:
    found: list[Message] = []
    while page := topic.read(partition, found[-1].offset + 1 if found else 0):
        found += page
    return found


def test_topic_is_ready_when_it_was_created_and_gone_when_it_was_deleted() -> None:
    with (
        folder() as data,
        started(data, "--shards", str(SHARDS)) as node,
        Client(node.address) as db,
    ):
        for _ in range(5):
            topic = db.create_topic("shop/orders", partitions=PARTITIONS)
            for partition in range(PARTITIONS):
                assert topic.append([b"x"], partition=partition, timeout=0.5).offset == 0
            db.delete_topic("shop/orders")
        assert db.list_topics() == []
        with pytest.raises(NotFound):
            topic.append([b"x"])


def test_messages_are_read_as_they_were_appended() -> None:
    with (
        folder() as data,
        started(data, "--shards", str(SHARDS)) as node,
        Client(node.address) as db,
    ):
        topic = db.create_topic("t", partitions=PARTITIONS)
        sent = OutgoingMessage(b"v", b"k", [("a", b"1"), ("a", b"2")])
        topic.append([sent, b"plain"], partition=1)
        topic.append([b"y" * 100] * 1_000, partition=1, compression="zstd")
        first, second, *others = everything(topic, 1)
        assert (first.key, first.value, first.headers.pairs) == (
            b"k",
            b"v",
            (("a", b"1"), ("a", b"2")),
        )
        assert (second.key, second.headers) == (None, {})
        assert [m.value for m in others] == [b"y" * 100] * 1_000
        assert topic.read(1, "last")[0].offset == 1_001
        assert topic.read(1, first.timestamp)[0].offset == 0
        assert topic.read(1, "-1h", 1)[0].offset == 0
        assert topic.bounds(1) == (0, 1_002)
        db.alter_topic("t", partitions=PARTITIONS + 3)
        assert topic.append([b"z"], partition=PARTITIONS + 2).offset == 0


def test_every_append_that_was_acknowledged_is_there_once_after_kills() -> None:
    """Workers are killed under load; each batch is appended by a producer that goes on."""
    with (
        folder() as data,
        started(data, "--shards", str(SHARDS)) as node,
        Client(node.address, timeout=30) as db,
    ):
        topic = db.create_topic("t", partitions=2)
        done = threading.Event()
        sent: dict[int, list[bytes]] = {0: [], 1: []}

        def produce(partition: int) -> None:
            while not done.is_set():
                value = b"%d" % len(sent[partition])
                topic.append([value], partition=partition)
                sent[partition].append(value)

        threads = [threading.Thread(target=produce, args=(n,)) for n in sent]
        for thread in threads:
            thread.start()
        for _ in range(2):
            for shard in node.shards():
                os.kill(shard.pid, signal.SIGKILL)
                wanted = [(values, len(values) + 5) for values in sent.values()]
                until(lambda todo=wanted: all(len(v) > n for v, n in todo))  # type: ignore[misc]
        done.set()
        for thread in threads:
            thread.join()
        for partition, values in sent.items():
            found = everything(topic, partition)
            assert [m.value for m in found] == values
            assert [m.offset for m in found] == list(range(len(values)))


def test_async_producers_and_a_waiting_reader() -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address) as db:
            topic = await db.create_topic("t", partitions=2)
            with pytest.raises(Conflict):
                await db.create_topic("t")
            reading = asyncio.ensure_future(topic.read(1, 0, wait=20))
            await asyncio.gather(*(topic.append([b"%d" % n], partition=1) for n in range(50)))
            [first, *_] = await reading
            found = await topic.read(1, 0)
            assert first in found
            assert sorted(int(m.value) for m in found) == list(range(50))

    with folder() as data, started(data, "--shards", str(SHARDS)) as node:
        asyncio.run(asyncio.wait_for(main(node.address), 60))
