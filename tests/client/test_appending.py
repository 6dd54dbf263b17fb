"""Appends of one event loop that travel together: each is stored as its caller packed it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from shardnode import AsyncClient, Conflict, DeadlineExceeded, InvalidRequest, Unavailable
from shardnode.client.appending import BYTES_MAX
from shardnode.client.messages import Position
from shardnode.client.topic_aio import AsyncTopic
from shardnode.wire import limits
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import pack_namespace
from tests.client.fake import FakeNode


def run(node: FakeNode, work: Callable[[AsyncTopic], Awaitable[None]], partitions: int = 1) -> None:
    async def main() -> None:
        async with AsyncClient(node.address) as db:
            topic = await db.create_topic("t", partitions=partitions)
            await work(topic)

    asyncio.run(asyncio.wait_for(main(), 30))


def appends(node: FakeNode) -> Counter[Kind]:
    kinds = Counter(node.kinds_seen())
    return Counter({kind: kinds[kind] for kind in (Kind.APPEND, Kind.APPEND_MANY)})


def stored(node: FakeNode, partition: int = 0) -> list[tuple[int, int]]:
    """Where each batch is, and how many messages it has."""
    topic = node.streams.topics.describe("default/t")
    batches = node.streams.of(pack_namespace(topic.stream, topic.topic, partition)).batches
    return [(each.offset, each.size) for each in batches]


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_what_is_called_together_is_one_request_of_many_batches(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        sizes = [1, 3, 2, 5]
        calls = [topic.append([b"%d" % n] * size) for n, size in enumerate(sizes)]
        places = await asyncio.gather(*calls)
        assert places == [Position(0, offset) for offset in (0, 1, 4, 6)]
        assert stored(node) == [(0, 1), (1, 3), (4, 2), (6, 5)]
        assert [m.value for m in await topic.read(0, 3)] == [b"1", *[b"2"] * 2, *[b"3"] * 5]
        assert await topic.append([b"alone"]) == Position(0, 11)

    run(node, work)
    assert appends(node) == {Kind.APPEND: 1, Kind.APPEND_MANY: 1}


def test_partitions_keep_to_themselves_and_keys_choose_theirs(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        by_number = [topic.append([b"x"], partition=n % 2) for n in range(6)]
        by_key = [topic.append([b"y"], key=b"k%d" % n) for n in range(20)]
        in_turn = [topic.append([b"z"]) for _ in range(9)]
        places = await asyncio.gather(*by_number, *by_key, *in_turn)
        assert [place.partition for place in places[:6]] == [0, 1] * 3
        assert Counter(place.partition for place in places[-9:]) == {0: 3, 1: 3, 2: 3}
        for partition in range(3):
            ours = [place.offset for place in places if place.partition == partition]
            assert ours == list(range(len(ours))), "in the order of the calls"

    run(node, work, partitions=3)
    assert sum(appends(node).values()) == 3


def test_a_request_has_no_more_than_its_batches_and_bytes(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        count = limits.append_batches_max + 1
        await asyncio.gather(*(topic.append([b"s"]) for _ in range(count)))
        assert appends(node) == {Kind.APPEND: 1, Kind.APPEND_MANY: 1}
        large = [bytes(BYTES_MAX // 2 - 100)]
        await asyncio.gather(*(topic.append(large) for _ in range(3)))
        assert appends(node) == {Kind.APPEND: 2, Kind.APPEND_MANY: 2}
        assert len(stored(node)) == count + 3

    run(node, work)


def test_what_comes_while_a_shard_is_slow_waits_and_travels_together(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        await topic.append([b"first"])
        node.rule("hold", kind=Kind.APPEND, times=2)
        slow = [asyncio.ensure_future(topic.append([b"slow"]))]
        await until(lambda: appends(node)[Kind.APPEND] == 2)
        slow.append(asyncio.ensure_future(topic.append([b"slow"])))
        await until(lambda: appends(node)[Kind.APPEND] == 3)
        late = [asyncio.ensure_future(topic.append([b"late"])) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert sum(appends(node).values()) == 3
        node.release()
        await asyncio.gather(*slow, *late)
        assert appends(node) == {Kind.APPEND: 3, Kind.APPEND_MANY: 1}

    run(node, work)


def test_a_repeat_of_several_appends_nothing_twice(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        node.rule("swallow", kind=Kind.APPEND_MANY, times=1)
        places = await asyncio.gather(*(topic.append([b"x"] * 2) for _ in range(3)))
        assert [place.offset for place in places] == [0, 2, 4]
        assert stored(node) == [(0, 2), (2, 2), (4, 2)]

    run(node, work)
    assert appends(node)[Kind.APPEND_MANY] == 2


def test_when_several_are_refused_each_is_tried_by_itself(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        node.rule("refuse", InvalidRequest("one of them"), kind=Kind.APPEND_MANY)
        node.rule("refuse", InvalidRequest("this one"), kind=Kind.APPEND, times=1)
        calls = [topic.append([b"x"]) for _ in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert "this one" in str(found[0])
        assert found[1:] == [Position(0, 0), Position(0, 1)]

    run(node, work)


def test_other_errors_are_those_of_all_of_them(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        node.rule("refuse", Conflict("no"), kind=Kind.APPEND_MANY)
        calls = [topic.append([b"x"]) for _ in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in found] == [Conflict] * 3
        assert found[0] is not found[1], "each has a trace of its own"

    run(node, work)


def test_one_that_waited_too_long_is_told_that_it_had_no_effect(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        node.rule("hold", kind=Kind.APPEND, times=2)
        slow = []
        for sent in (1, 2):
            slow.append(asyncio.ensure_future(topic.append([b"slow"])))
            await until(lambda sent=sent: appends(node)[Kind.APPEND] == sent)  # type: ignore[misc]
        patient = asyncio.ensure_future(topic.append([b"patient"]))
        with pytest.raises(DeadlineExceeded, match="busy with earlier batches"):
            await topic.append([b"hasty"], timeout=0.1)
        node.release()
        await asyncio.gather(*slow, patient)
        assert len(stored(node)) == 3

    run(node, work)


def test_one_whose_caller_has_gone_is_not_sent(node: FakeNode) -> None:
    async def work(topic: AsyncTopic) -> None:
        calls = [asyncio.ensure_future(topic.append([b"%d" % n])) for n in range(3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert [m.value for m in await topic.read()] == [b"0", b"2"]

    run(node, work)


def test_a_numbered_batch_goes_alone_and_an_unknown_topic_is_asked_for_first(
    node: FakeNode,
) -> None:
    async def main() -> None:
        async with AsyncClient(node.address) as db:
            await db.create_topic("t")
        async with AsyncClient(node.address) as db:
            topic = db.topic("t")
            await asyncio.gather(topic.append([b"a"]), topic.append([b"b"]))
            numbered = (
                topic.append([b"n"], partition=0, producer="p", sequence=n) for n in range(2)
            )
            await asyncio.gather(*numbered)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert appends(node) == Counter({Kind.APPEND: 4})


def test_a_client_that_is_closed_ends_what_waits(node: FakeNode) -> None:
    async def main() -> None:
        db = AsyncClient(node.address)
        topic = await db.create_topic("t")
        node.rule("hold", kind=Kind.APPEND)
        calls = []
        for sent in (1, 2):
            calls.append(asyncio.ensure_future(topic.append([b"x"])))
            await until(lambda sent=sent: appends(node)[Kind.APPEND] == sent)  # type: ignore[misc]
        calls.append(asyncio.ensure_future(topic.append([b"waits"])))
        await asyncio.sleep(0)
        await db.close()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(each, Exception) for each in found] == [True] * 3
        assert isinstance(found[2], Unavailable)
        assert "closed" in str(found[2])

    asyncio.run(asyncio.wait_for(main(), 30))
