"""`AsyncConsumer` against a fake node: it means what `Consumer` means, in one event loop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shardnode import AsyncClient
from shardnode.client.consumer_aio import AsyncConsumer
from shardnode.client.messages import Message
from shardnode.client.topic_aio import AsyncTopic
from shardnode.wire.errors import Conflict, InvalidRequest, NotFound, Unavailable
from shardnode.wire.kinds import Kind
from tests.client.fake import FakeNode

SESSION_S = 1.0


def run(node: FakeNode, work: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncClient(node.address) as db:
            await work(db)

    asyncio.run(asyncio.wait_for(main(), 30))


async def until(condition: Callable[[], Any]) -> Any:
    while not (value := condition()):
        await asyncio.sleep(0.01)
    return value


async def filled(db: AsyncClient, partitions: int = 4) -> AsyncTopic:
    topic = await db.create_topic("t", partitions=partitions)
    for number in range(partitions):
        values = [b"%d:%d" % (number, n) for n in range(5)]
        await topic.append(values, partition=number)
    return topic


async def read(consumer: AsyncConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += await consumer.poll()
    assert len(found) == count
    return found


async def poll_on(consumer: AsyncConsumer) -> None:
    while True:
        await consumer.poll(0.05)


def test_partitions_are_read_waited_for_and_sought(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        topic = await filled(db)
        async with topic.consumer() as consumer:
            found = await read(consumer, 20)
            for number in range(4):
                assert [m.offset for m in found if m.partition == number] == [0, 1, 2, 3, 4]
            assert consumer.is_at_end
            begun = time.monotonic()
            assert await consumer.poll(timeout=0.3) == []
            assert 0.28 < time.monotonic() - begun < 2
            waiting = asyncio.ensure_future(consumer.poll(timeout=20))
            await until(lambda: len(node._parked) == 4)
            await topic.append([b"x"], partition=2)
            assert [m.value for m in await waiting] == [b"x"]
            await consumer.seek(1, 3)
            assert [m.offset for m in await read(consumer, 2)] == [3, 4]
            await consumer.seek(1, "last")
            assert consumer.position(1) == 4
        while not await (late := topic.consumer()).poll(timeout=0):
            await late.close()
        await late.close()

    run(node, work)


def test_group_commits_and_goes_on(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        topic = await filled(db, partitions=1)
        async with topic.consumer("g") as consumer:
            async for message in consumer:
                await consumer.commit(message)
                if message.offset == 2:
                    break
            assert await consumer.committed(0) == 3
        async with topic.consumer("g") as consumer:
            assert [m.offset for m in await read(consumer, 2)] == [3, 4]
            await consumer.commit(wait=False)
        async with topic.consumer("g") as consumer:
            await until(lambda: consumer.assignment)
            assert await consumer.committed(0) == 5
            node.rule("refuse", InvalidRequest("no"), kind=Kind.OFFSET_COMMIT, times=1)
            await topic.append([b"x"])
            await read(consumer, 1)
            await consumer.commit(wait=False)
            with pytest.raises(InvalidRequest, match="no"):
                await poll_on(consumer)

    run(node, work)


def test_members_share_and_a_dead_one_is_replaced(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        topic = await filled(db)
        first = topic.consumer("g", session_timeout=SESSION_S)
        found = await read(first, 20)
        async with topic.consumer("g", session_timeout=SESSION_S) as second:
            await until(lambda: (len(first.assignment), len(second.assignment)) == (2, 2))
            lost = next(m for m in found if m.partition in second.assignment)
            with pytest.raises(Conflict):
                await first.commit(lost)
            assert first._keeper is not None
            first._keeper.cancel()
            await until(lambda: len(second.assignment) == 4)
            with pytest.raises(asyncio.CancelledError):
                await first.poll()

    run(node, work)


def test_cancelled_poll_goes_on_with_the_next(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        topic = await filled(db, partitions=1)
        async with topic.consumer("g") as consumer:
            await read(consumer, 5)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(consumer.poll(timeout=20), 0.1)
            await topic.append([b"x"])
            assert [m.value for m in await read(consumer, 1)] == [b"x"]

    run(node, work)


def test_forgotten_consumer_keeps_no_task(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        topic = await filled(db, partitions=1)
        consumer = topic.consumer("g")
        await read(consumer, 5)
        assert len(asyncio.all_tasks()) == 3  # this one, what waits for it, and the keeper
        del consumer
        gc.collect()
        await until(lambda: len(asyncio.all_tasks()) == 2)

    run(node, work)


def test_errors_are_told(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        for group in (None, "g"):
            async with db.topic("none").consumer(group) as consumer:
                with pytest.raises(NotFound):
                    await consumer.poll(5)
        topic = await filled(db, partitions=1)
        consumer = topic.consumer("g")
        await read(consumer, 5)
        await db.close()
        with pytest.raises((InvalidRequest, Unavailable), match="closed"):
            await poll_on(consumer)
        await consumer.close()
        with pytest.raises(InvalidRequest, match="closed"):
            await consumer.poll()

    run(node, work)
