"""Appends and reads of streams through a worker's service, without a socket."""

from __future__ import annotations

import random

import msgpack
import pytest

from shardnode.shard.duties import SET_EVERY_MS
from shardnode.shard.effects import Effects
from shardnode.shard.entries import PARTITIONS_SET, encode_entry
from shardnode.shard.replica import Request
from shardnode.shard.streams import Streams
from shardnode.sim.disk import SimFiles
from shardnode.storage.engine import MemoryEngine
from shardnode.wire.control import TopicAlter, TopicCreate, TopicDelete, TopicFound
from shardnode.wire.errors import InvalidRequest, MalformedFrame, NotFound, WrongShard
from shardnode.wire.frames import Frame, build_request
from shardnode.wire.kinds import Kind, OffsetPoint
from shardnode.wire.placement import (
    CONTROL_PARTITION,
    initial_table,
    pack_namespace,
    slot_of_partition,
)
from shardnode.wire.replies import decode_reply
from shardnode.wire.requests import Scan
from shardnode.wire.streams import (
    Append,
    Appended,
    MessageBatch,
    MessagesFound,
    OffsetFound,
    OffsetLookup,
    Read,
)
from tests.engine.kit import SMALL
from tests.shard.desk import Counter

SPACE = 1 << 32


def bare(shards: int = 1) -> Counter:
    """A desk that can have streams and has none."""
    files = SimFiles(random.Random(3))
    files.mkdir("shard-0")
    effects = Effects(MemoryEngine(SMALL), "", Streams(files, "shard-0"))
    return Counter(shards=shards, effects=effects)


def counter(shards: int = 1) -> Counter:
    """A desk with one partition of a stream."""
    desk = bare(shards)
    payload = encode_entry(1, PARTITIONS_SET, msgpack.packb([1, [[SPACE, {}]], True]))
    desk.replica.propose([Request(0, CONTROL_PARTITION, payload)])
    desk.drain()
    return desk


def batch(*values: bytes) -> bytes:
    return MessageBatch(values).encode()


def append(desk: Counter, *values: bytes) -> Appended:
    found = desk.ask(Kind.APPEND, Append(SPACE, len(values), batch(*values)))
    assert isinstance(found, Appended)
    return found


def read(desk: Counter, offset: int, limit: int = 0, page_bytes: int = 0) -> MessagesFound:
    found = desk.ask(Kind.READ, Read(SPACE, offset, limit, page_bytes))
    assert isinstance(found, MessagesFound)
    return found


def waiting_read(offset: int) -> list[Frame]:
    return build_request(Kind.READ, Read(SPACE, offset, wait_ms=500).encode(), prefix=0)


def late(desk: Counter) -> list[bytes]:
    """The batches of the one page that came later than it was asked for."""
    (reply,) = desk.late()
    found = decode_reply(reply)
    assert isinstance(found, MessagesFound)
    return list(found.batches)


def test_what_was_appended_is_read_as_the_bytes_that_came() -> None:
    desk = counter()
    assert append(desk, b"a", b"b").offset == 0
    stamp = append(desk, b"c").timestamp_ms
    page = read(desk, 0)
    assert (list(page.base_offsets), list(page.counts)) == ([0, 2], [2, 1])
    assert list(page.batches) == [batch(b"a", b"b"), batch(b"c")]
    assert (page.next, page.first, page.end) == (3, 0, 3)
    assert page.timestamps_ms[1] == stamp
    assert read(desk, 1, limit=1).next == 2
    assert read(desk, 0, page_bytes=1).next == 2
    assert list(read(desk, 3).batches) == []


def test_offsets_are_found_by_point_and_by_time() -> None:
    desk = counter()
    first = append(desk, b"a").timestamp_ms
    desk.drain(later_ms=1_000)
    later = append(desk, b"b").timestamp_ms
    for point, stamp, offset in [
        (OffsetPoint.EARLIEST, 0, 0),
        (OffsetPoint.LAST, 0, 1),
        (OffsetPoint.LATEST, 0, 2),
        (OffsetPoint.TIMESTAMP, first, 0),
        (OffsetPoint.TIMESTAMP, first + 1, 1),
        (OffsetPoint.TIMESTAMP, later + 1, 2),
    ]:
        found = desk.ask(Kind.OFFSET_LOOKUP, OffsetLookup(SPACE, point, stamp))
        assert found == OffsetFound(offset, 0, 2)


def test_reader_at_the_end_waits_for_its_own_partition_and_no_longer_than_it_said() -> None:
    desk = counter()
    assert desk.drain(waiting_read(0)) == []
    desk.ask(Kind.SCAN, Scan())
    assert len(desk.service.stream_reads) == 1
    append(desk, b"a")
    assert late(desk) == [batch(b"a")]
    assert desk.drain(waiting_read(1)) == []
    desk.drain(later_ms=499)
    assert len(desk.service.stream_reads) == 1
    desk.drain(later_ms=2)
    assert late(desk) == []
    assert len(desk.service.stream_reads) == 0


def test_nonsense_is_refused_before_it_is_logged() -> None:
    desk = counter()
    index = desk.replica.log.last_index
    for ask, error in [
        (Append(SPACE, 2, batch(b"one")), MalformedFrame),
        (Append(SPACE, 1, b"no batch"), MalformedFrame),
        (Append(SPACE + 1, 1, batch(b"x")), NotFound),
    ]:
        with pytest.raises(error):
            desk.ask(Kind.APPEND, ask)
    assert desk.replica.log.last_index == index
    with pytest.raises(InvalidRequest):
        desk.ask(Kind.READ, Read(SPACE, 7))


def test_partition_of_another_shard_is_refused() -> None:
    desk = counter(shards=4)
    table = initial_table(4)
    other = next(
        space
        for space in range(SPACE, SPACE + 99)
        if table.shard_of_slot(slot_of_partition(space)) != 0
    )
    with pytest.raises(WrongShard):
        desk.ask(Kind.APPEND, Append(other, 1, batch(b"x")))


def test_topics_make_the_partitions_of_their_shard_and_take_them_away_again() -> None:
    desk = bare()
    desk.service.topics = desk.effects.control.topics
    created = desk.ask(Kind.TOPIC_CREATE, TopicCreate("shop/orders", 3, 1_000))
    assert isinstance(created, TopicFound)
    desk.drain(later_ms=SET_EVERY_MS)
    desk.drain()
    streams = desk.effects.streams
    assert streams is not None
    spaces = [pack_namespace(created.stream, created.topic, number) for number in range(3)]
    assert list(streams.settings) == spaces
    assert {each["retention_ms"] for each in streams.settings.values()} == {1_000}
    desk.ask(Kind.APPEND, Append(spaces[1], 1, batch(b"x")))
    desk.ask(Kind.TOPIC_ALTER, TopicAlter("shop/orders", partitions=4))
    desk.drain(later_ms=SET_EVERY_MS)
    desk.drain()
    assert len(streams) == 4
    desk.ask(Kind.TOPIC_DELETE, TopicDelete("shop/orders"))
    desk.drain(later_ms=SET_EVERY_MS)
    desk.drain()
    assert len(streams) == 0
    with pytest.raises(NotFound):
        desk.ask(Kind.APPEND, Append(spaces[1], 1, batch(b"x")))
    index = desk.replica.log.last_index
    desk.drain(later_ms=3 * SET_EVERY_MS)
    assert desk.replica.log.last_index == index, "nothing is left to do"


def test_leader_that_lags_behind_the_topics_changes_nothing() -> None:
    desk = counter()
    body = msgpack.packb([1, [[SPACE, None]], True])
    payload = encode_entry(1, PARTITIONS_SET, body)
    desk.replica.propose([Request(0, CONTROL_PARTITION, payload)])
    desk.drain()
    append(desk, b"still there")
