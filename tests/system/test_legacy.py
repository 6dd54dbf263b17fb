"""A client that knows no shards, as docs/PROTOCOL.md describes it: raw frames without a prefix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from shardnode import Client
from shardnode.wire.codec import Answer, Body
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.frames import build_request, parse_reply
from shardnode.wire.kinds import Kind
from shardnode.wire.replies import Deleted, Entry, Written, decode_reply
from shardnode.wire.requests import DeleteMany, Get, GetMany, Put, Scan, SessionOpen
from tests.system.kit import NodeProcess, folder, started


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with folder() as data, started(data, "--shards", "4") as running:
        yield running


class LegacyClient:
    """One REQ socket; the empty delimiter is its own."""

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        self._socket.connect(f"tcp://{endpoint}")

    def ask(
        self, kind: Kind, body: Body, client_id: bytes = bytes(16), sequence: int = 0
    ) -> Answer:
        self._socket.send_multipart(
            build_request(kind, body.encode(), prefix=None, client_id=client_id, sequence=sequence)
        )
        assert self._socket.poll(10_000)
        reply = parse_reply(self._socket.recv_multipart())
        assert reply.shard is None
        return decode_reply(reply)

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def legacy(node: NodeProcess) -> Iterator[LegacyClient]:
    client = LegacyClient(node.address)
    yield client
    client.close()


def test_legacy_client_reads_and_writes_every_key_and_each_is_stored_by_its_owner(
    node: NodeProcess, legacy: LegacyClient
) -> None:
    keys = [b"legacy-%d" % number for number in range(60)]
    for key in keys:
        assert isinstance(legacy.ask(Kind.PUT, Put(key, b"v" + key)), Written)
    for key in keys:
        found = legacy.ask(Kind.GET, Get(key))
        assert isinstance(found, Entry)
        assert found.value == b"v" + key
    with Client(node.address) as db:
        # A scan asks every shard for what it has, so this also tells where each key is.
        assert sorted(entry.key for entry in db.scan(prefix=b"legacy-")) == sorted(keys)
        assert len({db.explain(key).shard for key in keys}) == 4
        assert db.get_many(keys) == [b"v" + key for key in keys]
    assert legacy.ask(Kind.DELETE_MANY, DeleteMany([keys[0]])) != Deleted(0, 0)
    with Client(node.address) as db:
        assert db.get(keys[0]) is None


def test_legacy_session_makes_retries_safe_on_every_shard(legacy: LegacyClient) -> None:
    me = b"legacy-client-id"
    legacy.ask(Kind.SESSION_OPEN, SessionOpen(60_000), client_id=me, sequence=1)
    for number in range(20):
        body = Put(b"session-%d" % number, b"1")
        first = legacy.ask(Kind.PUT, body, client_id=me, sequence=number + 2)
        assert legacy.ask(Kind.PUT, body, client_id=me, sequence=number + 2) == first


def test_legacy_request_over_several_shards_is_refused(legacy: LegacyClient) -> None:
    many = GetMany([b"legacy-%d" % number for number in range(60)])
    for kind, body in ((Kind.GET_MANY, many), (Kind.SCAN, Scan())):
        with pytest.raises(InvalidRequest):
            legacy.ask(kind, body)
