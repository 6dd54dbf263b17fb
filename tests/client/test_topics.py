"""Topics against a fake node: the same for `Client` and `AsyncClient`, and typed errors."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shardnode import AsyncClient, Client
from shardnode.client.messages import OutgoingMessage, Position
from shardnode.client.values import Bounds
from shardnode.wire import limits
from shardnode.wire.batches import ZSTD_MAGIC
from shardnode.wire.errors import (
    Compacted,
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    ShardnodeError,
    Unavailable,
)
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import partition_of_key
from tests.client.fake import FakeNode
from tests.client.fake_streams import STAMP_MS


def kinds(node: FakeNode) -> Counter[Kind]:
    return Counter(node.kinds_seen())


def test_topic_is_created_described_altered_listed_and_deleted(db: Client) -> None:
    topic = db.create_topic("shop/orders", partitions=3, retention_time=60, retention_bytes=1 << 30)
    assert topic.name == "shop/orders"
    found = db.describe_topic("shop/orders")
    assert (found.name, found.partitions, found.retention_bytes) == ("shop/orders", 3, 1 << 30)
    assert found.retention_time == timedelta(minutes=1)
    assert found.created_at == datetime.fromtimestamp(STAMP_MS / 1000, UTC)
    db.alter_topic("shop/orders", partitions=5)
    altered = db.alter_topic("shop/orders", retention_time=timedelta(0), retention_bytes=0)
    assert (altered.partitions, altered.retention_time, altered.retention_bytes) == (5, None, None)
    assert db.create_topic("plain").name == "default/plain"
    assert db.list_topics() == ["default/plain", "shop/orders"]
    db.delete_topic("plain")
    assert db.list_topics() == ["shop/orders"]
    with pytest.raises(NotFound):
        db.delete_topic("plain")
    with pytest.raises(NotFound):
        db.describe_topic("plain")


def test_more_topics_than_a_page_are_all_listed(node: FakeNode, db: Client) -> None:
    for number in range(limits.list_entries_max + 5):
        db.create_topic(f"t{number:05}")
    assert len(db.list_topics()) == limits.list_entries_max + 5
    assert kinds(node)[Kind.TOPIC_LIST] == 2


def test_topic_that_exists_is_a_conflict_unless_that_is_welcome(db: Client) -> None:
    db.create_topic("t", partitions=2)
    with pytest.raises(Conflict):
        db.create_topic("t")
    assert db.create_topic("t", exist_ok=True, partitions=7).name == "default/t"
    assert db.describe_topic("t").partitions == 2


def test_topic_of_a_name_asks_nothing_before_it_is_used(node: FakeNode, db: Client) -> None:
    topic = db.topic("never/created")
    assert node.seen == []
    with pytest.raises(NotFound):
        topic.append([b"x"])


def test_created_topic_can_be_used_at_once(node: FakeNode, db: Client) -> None:
    node.do(lambda: setattr(node.streams, "slow", True))
    rule = node.rule("refuse", NotFound("not yet"), kind=Kind.OFFSET_LOOKUP, times=3)
    node.do(node.streams.spread)
    node.do(lambda: setattr(node.streams, "slow", False))
    db.create_topic("t", partitions=4)
    assert rule.times == 0
    assert kinds(node)[Kind.OFFSET_LOOKUP] == 4 + 3


def test_topic_whose_partitions_do_not_come_in_time_is_told_to_be_there(
    node: FakeNode, db: Client
) -> None:
    node.do(lambda: setattr(node.streams, "slow", True))
    with pytest.raises(Unavailable, match="default/t is as it was wanted, but not all"):
        db.create_topic("t", timeout=0.3)
    assert db.list_topics() == ["default/t"]


def test_append_goes_by_partition_by_key_or_round(db: Client) -> None:
    topic = db.create_topic("t", partitions=4)
    assert topic.append([b"a", "b"], partition=2) == Position(2, 0)
    assert topic.append([b"c"], partition=2, key="k") == Position(2, 2)
    of_key = partition_of_key(b"customer-7", 4)
    assert topic.append([b"d"], key=b"customer-7").partition == of_key
    assert topic.append([OutgoingMessage(b"e", "customer-7"), b"f"]).partition == of_key
    rounds = [topic.append([b"x"]).partition for _ in range(8)]
    assert Counter(rounds) == {0: 2, 1: 2, 2: 2, 3: 2}
    starts = {db.topic("t").append([b"x"]).partition for _ in range(40)}
    assert starts == {0, 1, 2, 3}, "each begins somewhere"
    assert [m.key for m in topic.read(2, 0, 3)] == [None, None, b"k"]


def test_topic_is_described_once_for_many_appends(node: FakeNode, db: Client) -> None:
    db.create_topic("t")
    with Client(node.address) as other:
        for _ in range(5):
            other.topic("t").append([b"x"])
    assert kinds(node)[Kind.TOPIC_DESCRIBE] == 1
    assert kinds(node)[Kind.APPEND] == 5


def test_read_begins_where_it_is_told(db: Client) -> None:
    topic = db.create_topic("t")
    for number in range(5):
        topic.append([b"%d" % number, b"-"])  # each batch is a second later

    def first(offset: Any) -> bytes:
        return topic.read(0, offset, 1)[0].value

    assert first(0) == first("earliest") == b"0"
    assert first(4) == b"2"
    assert first("last") == b"-"
    assert topic.read(0, "latest") == []
    third = datetime.fromtimestamp(STAMP_MS / 1000 + 3, UTC)
    assert first(third) == first(third.isoformat()) == b"2"
    assert topic.read(0, "-10m") == []
    assert topic.offset(0, third) == 4
    assert (topic.offset(0, "earliest"), topic.offset(0, "latest"), topic.offset(0, "last")) == (
        0,
        10,
        9,
    )
    assert topic.bounds(0) == Bounds(0, 10)
    assert len(topic.read()) == 10
    assert len(topic.read(max_messages=3)) == 3
    with pytest.raises(InvalidRequest):
        topic.read(0, 11)
    with pytest.raises(InvalidRequest):
        topic.offset(0, 3)


def test_bounds_of_all_partitions(db: Client) -> None:
    topic = db.create_topic("t", partitions=5)
    topic.append([b"x"] * 3, partition=4)
    assert topic.all_bounds() == [Bounds(0, 0)] * 4 + [Bounds(0, 3)]


def test_read_waits_for_the_next_message_and_no_longer_than_it_says(
    node: FakeNode, db: Client
) -> None:
    topic = db.create_topic("t")
    begun = time.monotonic()
    assert topic.read(wait=0.3, timeout=0.5) == []
    assert 0.25 < time.monotonic() - begun < 2
    reads = kinds(node)[Kind.READ]
    with Client(node.address) as other:

        async def append_later() -> None:
            async with AsyncClient(node.address) as later:
                while kinds(node)[Kind.READ] == reads:
                    await asyncio.sleep(0.01)
                await later.topic("t").append([b"x"])

        async def both() -> list[Any]:
            reading = asyncio.to_thread(other.topic("t").read, wait=20.0)
            found, _ = await asyncio.gather(reading, append_later())
            return found

        [message] = asyncio.run(both())
    assert message.value == b"x"
    assert kinds(node)[Kind.READ] == reads + 1, "nobody asked twice"


def test_what_retention_deleted_is_told_and_stepped_over_where_no_offset_was_named(
    node: FakeNode, db: Client
) -> None:
    topic = db.create_topic("t")
    for _ in range(4):
        topic.append([b"a", b"b"])
    [partition] = node.streams.partitions.values()
    node.do(lambda: partition.trim(4))
    with pytest.raises(Compacted) as refused:
        topic.read(0, 1)
    assert refused.value.first_available == 4
    assert topic.read(0, "earliest")[0].offset == 4
    node.rule("refuse", Compacted("", first_available=6), kind=Kind.READ, times=1)
    assert topic.read(0, "earliest")[0].offset == 6, "it was deleted after it was found"


def test_compressed_batch_travels_and_is_stored_as_one_frame(node: FakeNode, db: Client) -> None:
    topic = db.create_topic("t")
    topic.append([b"x" * 100] * 100, compression="zstd")
    [partition] = node.streams.partitions.values()
    assert partition.batches[0].data.startswith(ZSTD_MAGIC)
    assert [m.value for m in topic.read()] == [b"x" * 100] * 100


def test_producer_that_appends_again_after_a_restart_appends_once(
    node: FakeNode, db: Client
) -> None:
    topic = db.create_topic("t", partitions=2)
    first = topic.append([b"a"], partition=1, producer="till-3", sequence=1)
    with Client(node.address) as restarted:
        again = restarted.topic("t").append([b"a"], partition=1, producer="till-3", sequence=1)
    assert again == first
    topic.append([b"b"], partition=1, producer="till-3", sequence=2)
    with pytest.raises(Conflict):
        topic.append([b"a"], partition=1, producer="till-3", sequence=1)
    assert [m.value for m in topic.read(1)] == [b"a", b"b"]


def test_wrong_arguments_are_refused_before_anything_is_sent(node: FakeNode, db: Client) -> None:
    topic = db.topic("t")
    wrong: list[tuple[type[Exception], Any]] = [
        (TypeError, lambda: topic.append(b"x")),  # type: ignore[arg-type]
        (TypeError, lambda: topic.append([b"x"], partition="1")),  # type: ignore[arg-type]
        (InvalidRequest, lambda: topic.append([])),
        (InvalidRequest, lambda: topic.append([b"x"], partition=-1)),
        (InvalidRequest, lambda: topic.append([b"x"], compression="gzip")),  # type: ignore[arg-type]
        (InvalidRequest, lambda: topic.append([b"x"], producer="p", partition=1)),
        (InvalidRequest, lambda: topic.append([b"x"], sequence=1, partition=1)),
        (InvalidRequest, lambda: topic.append([b"x"], producer="p", sequence=1)),
        (LimitExceeded, lambda: topic.append([b""] * 10_001)),
        (LimitExceeded, lambda: topic.append([bytes(limits.value_bytes_max)] * 3)),
        (
            LimitExceeded,
            lambda: topic.append([bytes(limits.value_bytes_max)] * 3, compression="zstd"),
        ),
        (InvalidRequest, lambda: topic.read(max_messages=0)),
        (InvalidRequest, lambda: topic.read(wait=61)),
        (TypeError, lambda: topic.read(wait="1")),  # type: ignore[arg-type]
        (InvalidRequest, lambda: db.topic("a/b/c")),
        (InvalidRequest, lambda: db.topic("..")),
        (TypeError, lambda: db.topic(b"t")),  # type: ignore[arg-type]
        (InvalidRequest, lambda: db.create_topic("t", 0)),
        (InvalidRequest, lambda: db.create_topic("t", retention_time=-1)),
        (TypeError, lambda: db.create_topic("t", retention_bytes=1.5)),  # type: ignore[arg-type]
    ]
    for error, call in wrong:
        with pytest.raises(error):
            call()
    assert node.seen == []


def test_partition_that_the_topic_does_not_have_is_not_found(node: FakeNode, db: Client) -> None:
    topic = db.create_topic("t", partitions=2)
    for call in (
        lambda: topic.append([b"x"], partition=2),
        lambda: topic.read(2),
        lambda: topic.bounds(2),
    ):
        with pytest.raises(NotFound, match="below 2, found 2"):
            call()
    with Client(node.address) as other:
        other.alter_topic("t", partitions=3)
    assert topic.append([b"x"], partition=2) == Position(2, 0), "it looks again"


def test_topic_that_was_created_anew_is_found_under_its_name(node: FakeNode, db: Client) -> None:
    topic = db.create_topic("t", partitions=4)
    topic.append([b"old"], partition=3)
    with Client(node.address) as other:
        other.delete_topic("t")
        other.create_topic("t", partitions=2)
    assert topic.append([b"new"], partition=1) == Position(1, 0)
    assert [m.value for m in topic.read(1)] == [b"new"]
    with pytest.raises(NotFound, match="below 2, found 3"):
        topic.read(3)
    db.delete_topic("t")
    with pytest.raises(NotFound, match="no topic"):
        topic.append([b"late"])


def test_partitions_that_another_client_added_are_used_after_a_while(
    node: FakeNode, db: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardnode.client.routes.TOPIC_FRESH_S", 0.0)
    topic = db.create_topic("t", partitions=1)
    with Client(node.address) as other:
        other.alter_topic("t", partitions=4)
    used = {topic.append([b"x"]).partition for _ in range(50)}
    assert used == {0, 1, 2, 3}
    node.rule("refuse", Unavailable("shard 0 is away"), kind=Kind.TOPIC_DESCRIBE)
    assert topic.append([b"x"], timeout=0.5).offset >= 0, "what it knows is enough to go on"


def test_append_that_is_not_answered_is_unknown_and_repeated_once_it_can_be(
    node: FakeNode, db: Client
) -> None:
    topic = db.create_topic("t")
    node.rule("swallow", kind=Kind.APPEND, times=1)
    assert topic.append([b"x"]) == Position(0, 0)
    assert [m.value for m in topic.read()] == [b"x"], "the repeat was recognised"
    node.rule("swallow", kind=Kind.APPEND)
    with pytest.raises(ShardnodeError) as failed:
        topic.append([b"y"], timeout=0.3)
    assert failed.value.code == "outcome_unknown"


def test_read_that_is_not_answered_ends_in_time(node: FakeNode, db: Client) -> None:
    topic = db.create_topic("t")
    node.rule("drop", kind=Kind.READ)
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        topic.read(wait=0.2, timeout=0.3)
    assert time.monotonic() - begun < 3


def test_slots_that_move_are_followed(node: FakeNode, db: Client) -> None:
    topic = db.create_topic("t", partitions=4)
    for number in range(4):
        topic.append([b"x"], partition=number)
    node.move(range(limits.slots), 1)
    for number in range(4):
        assert topic.append([b"y"], partition=number) == Position(number, 1)
    assert topic.all_bounds() == [Bounds(0, 2)] * 4


def test_async_methods_mean_the_same(node: FakeNode) -> None:
    async def main() -> None:
        async with AsyncClient(node.address) as db:
            topic = await db.create_topic("t", partitions=2, retention_bytes=5)
            assert db.topic("t").name == topic.name
            assert (await db.describe_topic("t")).retention_bytes == 5
            assert (await db.alter_topic("t", partitions=3)).partitions == 3
            assert await db.list_topics() == ["default/t"]
            assert await topic.append([b"a", "b"], partition=2) == Position(2, 0)
            await asyncio.gather(*(topic.append([b"%d" % n], key=b"k") for n in range(20)))
            place = partition_of_key(b"k", 3)
            found = await topic.read(place, "earliest")
            assert {m.value for m in found if m.key} == {b"%d" % n for n in range(20)}
            assert await topic.read(0, "latest", wait=0.05) == []
            assert await topic.offset(2, "earliest") == 0
            assert (await topic.bounds(2)).first == 0
            assert len(await topic.all_bounds()) == 3
            with pytest.raises(Conflict):
                await db.create_topic("t")
            await db.create_topic("t", exist_ok=True)
            await db.delete_topic("t")
            with pytest.raises(NotFound):
                await topic.append([b"x"])

    asyncio.run(asyncio.wait_for(main(), 30))


def test_closed_client_ends_a_call_that_waits_for_its_partition(node: FakeNode) -> None:
    async def main() -> None:
        db = AsyncClient(node.address)
        topic = await db.create_topic("t")
        node.rule("refuse", NotFound("gone"), kind=Kind.READ)
        reading = asyncio.ensure_future(topic.read(timeout=60))
        while kinds(node)[Kind.READ] < 4:
            await asyncio.sleep(0.01)
        await db.close()
        with pytest.raises(Unavailable, match="closed"):
            await reading

    asyncio.run(asyncio.wait_for(main(), 30))
