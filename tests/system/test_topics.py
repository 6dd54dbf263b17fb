"""Topics on a real node, by raw frames: every shard makes its partitions, and keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from shardnode import Client
from shardnode.wire.codec import Answer, Body
from shardnode.wire.control import TopicCreate, TopicDelete, TopicFound
from shardnode.wire.errors import NotFound
from shardnode.wire.frames import PLACE_FOR_ME, build_request, parse_reply
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.placement import (
    initial_table,
    namespace_to_bytes,
    pack_namespace,
    slot_of_partition,
)
from shardnode.wire.replies import decode_reply
from shardnode.wire.streams import Append, Appended, MessageBatch, MessagesFound, Read
from tests.system.kit import NodeProcess, folder, started, until

PARTITIONS, SHARDS = 8, 4


class Raw:
    """One DEALER to the router."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def ask(self, kind: Kind, body: Body, namespace: int | None = None) -> Answer:
        about = {} if namespace is None else {"routing_key": namespace_to_bytes(namespace)}
        flags = 0 if namespace is None else Flag.NAMESPACE
        prefix = 0 if namespace is None else PLACE_FOR_ME
        self._socket.send_multipart(
            build_request(kind, body.encode(), prefix=prefix, flags=flags, **about)  # type: ignore[arg-type]
        )
        assert self._socket.poll(10_000)
        return decode_reply(parse_reply(self._socket.recv_multipart()))


@contextmanager
def connected(node: NodeProcess) -> Iterator[Raw]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://{node.address}")
        yield Raw(socket)
    finally:
        context.destroy(linger=0)


def append(raw: Raw, namespace: int, *values: bytes) -> Appended:
    ask = Append(namespace, len(values), MessageBatch(values).encode())
    found = raw.ask(Kind.APPEND, ask, namespace)
    assert isinstance(found, Appended)
    return found


def values_of(raw: Raw, namespace: int) -> list[bytes]:
    found = raw.ask(Kind.READ, Read(namespace, 0), namespace)
    assert isinstance(found, MessagesFound)
    return [value for each in found.batches for value in MessageBatch.decode(each).values]


def is_there(raw: Raw, namespace: int) -> bool:
    try:
        values_of(raw, namespace)
    except NotFound:
        return False
    return True


def test_partitions_are_made_on_their_shards_and_outlive_a_kill() -> None:
    with folder() as data:
        with started(data, "--shards", str(SHARDS)) as node, connected(node) as raw:
            created = raw.ask(Kind.TOPIC_CREATE, TopicCreate("shop/orders", PARTITIONS))
            assert isinstance(created, TopicFound)
            spaces = [
                pack_namespace(created.stream, created.topic, number)
                for number in range(PARTITIONS)
            ]
            table = initial_table(SHARDS)
            owners = [table.shard_of_slot(slot_of_partition(space)) for space in spaces]
            assert sorted(owners) == sorted([*range(SHARDS)] * 2), "spread evenly"
            until(lambda: all(is_there(raw, space) for space in spaces))
            for number, space in enumerate(spaces):
                assert append(raw, space, b"first", b"%d" % number).offset == 0
                assert append(raw, space, b"more").offset == 2
            node.process.kill()
            node.process.wait()
        with started(data, "--shards", str(SHARDS)) as node, connected(node) as raw:
            for number, space in enumerate(spaces):
                assert values_of(raw, space) == [b"first", b"%d" % number, b"more"]
            assert append(raw, spaces[0], b"again").offset == 3
            raw.ask(Kind.TOPIC_DELETE, TopicDelete("shop/orders"))
            until(lambda: not any(is_there(raw, space) for space in spaces))
            with pytest.raises(NotFound):
                append(raw, spaces[0], b"late")


def test_shard_with_more_partitions_than_the_limit_is_fenced_by_name_and_the_others_serve() -> None:
    with folder() as data:
        with started(data, "--shards", "2") as node, Client(node.address, timeout=20) as db:
            db.create_topic("many/parts", 3)
            db.put_many({b"%d" % n: b"v" for n in range(20)})
        with folder() as place:
            config = place / "low.toml"
            config.write_text("[limits]\npartitions = 1\n")
            with started(data, "--config", str(config), "--shards", "2") as node:
                (fenced,) = until(lambda: [s for s in node.shards() if s.state == "fenced"])
                assert [s.state for s in node.shards() if s.id != fenced.id] == ["serving"]
        assert "limits.partitions), found 2, the first beyond it namespace" in fenced.error
        with started(data, "--shards", "2") as node, Client(node.address, timeout=20) as db:
            assert db.get_many([b"%d" % n for n in range(20)]) == [b"v"] * 20
