"""One real node against what strangers, broken clients and slow ones do to it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import zmq

from shardnode import Client, Compacted, Unavailable
from shardnode.wire import limits
from shardnode.wire.cluster import TopologyFound
from shardnode.wire.codec import Answer
from shardnode.wire.errors import InvalidRequest, SessionExpired, ShardnodeError, WrongShard
from shardnode.wire.frames import (
    Frame,
    Reply,
    Request,
    build_reply,
    build_request,
    parse_reply,
    parse_request,
)
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import PlacementTable, initial_table
from shardnode.wire.replies import decode_reply, encode_error
from shardnode.wire.requests import Get, Put, SessionOpen
from tests.system.kit import NodeProcess, folder, started, until
from tests.wire.test_hostile import hostile_bodies

PATIENCE_MS = 10_000
KEY = b"hostile-key"
OWNER = initial_table(2).shard_of_key(KEY)
DOORS = ("router", "shard 0", "shard 1")


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with folder() as data, started(data, "--shards", "2") as running:
        yield running


class Raw:
    """A socket that says whatever the test wants."""

    def __init__(self, endpoint: str, **options: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.connect(f"tcp://{endpoint}")

    def ask(self, frames: list[Frame]) -> Answer:
        """The reply; an error in it is raised, as its type."""
        self.socket.send_multipart(frames)
        assert self.socket.poll(PATIENCE_MS), "no answer"
        return decode_reply(parse_reply(self.socket.recv_multipart()))

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextmanager
def raw(endpoint: str, **options: int) -> Iterator[Raw]:
    client = Raw(endpoint, **options)
    try:
        yield client
    finally:
        client.close()


def door(node: NodeProcess, name: str) -> str:
    """The address of the router, or of a shard's own port."""
    host, _, port = node.address.rpartition(":")
    offset = 0 if name == "router" else 100 + int(name.removeprefix("shard "))
    return f"{host}:{int(port) + offset}"


def metric(node: NodeProcess, name: str) -> float:
    host, _, port = node.address.rpartition(":")
    with urllib.request.urlopen(f"http://{host}:{int(port) + 80}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def memory_bytes(node: NodeProcess) -> int:
    """What the router and the workers hold for themselves."""
    return sum(process.memory_full_info().uss for process in node.family()[1:])


def request(kind: int, body: bytes, prefix: int = OWNER) -> list[Frame]:
    return build_request(kind, body, prefix=prefix, routing_key=KEY, client_id=b"some client's id")


def put(prefix: int) -> list[Frame]:
    body = Put(KEY, b"never").encode()
    return build_request(Kind.PUT, body, prefix=prefix, routing_key=KEY)


GET = build_request(Kind.GET, Get(KEY).encode(), prefix=OWNER, routing_key=KEY, deadline_ms=60_000)


def with_prefix(prefix: bytes) -> list[Frame]:
    return [prefix, *put(0)[1:]]


# -- 37: prefixes -------------------------------------------------------------------------------

PREFIXES: dict[str, tuple[list[Frame], type[ShardnodeError]]] = {
    "one byte": (with_prefix(b"\0"), InvalidRequest),
    "three bytes": (with_prefix(b"\0\0\0"), InvalidRequest),
    "five bytes": (with_prefix(b"\0\0\0\0\0"), InvalidRequest),
    "beyond every cluster": (with_prefix(b"\0\0\0\x64"), InvalidRequest),
    "almost the one that asks to be placed": (with_prefix(b"\xff\xff\xff\xfe"), InvalidRequest),
    "the other shard's": (put(1 - OWNER), WrongShard),
}


@pytest.mark.parametrize("where", DOORS)
@pytest.mark.parametrize("what", PREFIXES)
def test_bad_prefix_is_a_typed_error_at_every_door(
    node: NodeProcess, what: str, where: str
) -> None:
    frames, error = PREFIXES[what]
    with raw(door(node, where)) as stranger, pytest.raises(error):
        stranger.ask(frames)


def test_shard_that_does_not_exist_is_refused_with_how_many_there_are(node: NodeProcess) -> None:
    with raw(node.address) as stranger, pytest.raises(InvalidRequest, match="below 2"):
        stranger.ask(put(2))
    with raw(door(node, "shard 0")) as stranger, pytest.raises(WrongShard):
        stranger.ask(put(2))


def test_no_bad_prefix_has_touched_anything(node: NodeProcess) -> None:
    """Also when this test runs alone: every one of them once more."""
    for where in DOORS:
        for frames, error in PREFIXES.values():
            with raw(door(node, where)) as stranger, pytest.raises(error):
                stranger.ask(frames)
    with Client(node.address) as db:
        assert db.get(KEY) is None
        assert list(db.scan(prefix=b"hostile")) == []


# -- 38: bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["router", f"shard {OWNER}"])
def test_hostile_bodies_are_typed_errors_and_cost_no_memory(node: NodeProcess, where: str) -> None:
    kinds = (Kind.PUT_MANY, Kind.TRANSACT, Kind.SCAN, Kind.WATCH, Kind.SESSION_OPEN)
    bodies = hostile_bodies(1 << 16)
    before = memory_bytes(node)
    with raw(door(node, where)) as stranger:
        for body in bodies.values():
            for kind in kinds:
                with pytest.raises(InvalidRequest):
                    stranger.ask(request(kind, body))
        for number in (0, 0x7F01, 0x7F02, 0x7F10, 0xFFFF):
            with pytest.raises(InvalidRequest):
                stranger.ask(request(number, b"\x90"))
    assert memory_bytes(node) - before < 64 << 20


@pytest.mark.parametrize("where", ["router", f"shard {OWNER}"])
def test_oversized_frame_disconnects_its_sender_and_nobody_else(
    node: NodeProcess, where: str
) -> None:
    before = memory_bytes(node)
    with raw(door(node, where)) as bad, raw(door(node, where)) as good:
        gone = bad.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        assert good.ask(GET)
        bad.socket.send_multipart([*put(OWNER)[:-1], bytes(limits.frame_bytes_max + (1 << 20))])
        assert gone.poll(PATIENCE_MS), "it was not disconnected"
        gone.close()
        assert good.ask(GET)
    assert memory_bytes(node) - before < 64 << 20


@pytest.mark.parametrize("where", DOORS)
def test_strangers_who_speak_something_else_do_no_harm(node: NodeProcess, where: str) -> None:
    host, _, port = door(node, where).rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    said = [b"GET / HTTP/1.1\r\n\r\n", os.urandom(5_000), greeting + os.urandom(999), b""]
    strangers = []
    try:
        for words in said * 5:
            stranger = socket.create_connection((host, int(port)), timeout=5)
            strangers.append(stranger)
            stranger.sendall(words)
        with Client(node.address) as db:
            db.put(b"still", b"here")
            assert db.get(b"still") == b"here"
    finally:
        for stranger in strangers:
            stranger.close()


# -- 39: those who do not read ------------------------------------------------------------------


def test_client_that_does_not_read_loses_replies_and_holds_up_nobody(node: NodeProcess) -> None:
    with Client(node.address) as db:
        db.put(KEY, bytes(8_000))
        before = memory_bytes(node)
        with raw(node.address, RCVHWM=1, RCVBUF=4_096, SNDHWM=0) as slow:
            for _ in range(6_000):
                slow.socket.send_multipart(GET)
            slowest = 0.0

            def is_dropped() -> bool:
                nonlocal slowest
                begun = time.monotonic()
                assert db.get(KEY) == bytes(8_000)
                slowest = max(slowest, time.monotonic() - begun)
                return metric(node, "shardnode_router_replies_dropped") > 0

            until(is_dropped)
            assert slowest < 2.0
            assert memory_bytes(node) - before < 150 << 20
        db.delete(KEY)


def test_watcher_that_comes_back_too_late_is_told_so(node: NodeProcess) -> None:
    with Client(node.address, timeout=20) as db:
        watching = db.watch(prefix=KEY)
        changes = iter(watching)
        first: list[object] = []
        reader = threading.Thread(target=lambda: first.append(next(changes)))
        reader.start()
        until(lambda: db.put(KEY, b"seen") and first)
        reader.join()
        cursor = first[0].cursor  # type: ignore[attr-defined]
        for number in range(6):
            db.put(KEY, bytes([number]) * limits.value_bytes_max)
        with pytest.raises(Compacted):
            next(iter(db.watch(prefix=KEY, start=cursor)))
        db.delete(KEY)


# -- 41: sessions that are over -----------------------------------------------------------------


def test_retry_after_its_session_expired_is_an_error_and_never_a_second_run(
    node: NodeProcess,
) -> None:
    me, leased = b"a client's id 16", KEY + b"/{x}"
    shard = initial_table(2).shard_of_key(leased)

    def write(kind: Kind, body: bytes, sequence: int) -> list[Frame]:
        return build_request(
            kind, body, prefix=shard, routing_key=leased, client_id=me, sequence=sequence
        )

    counter = b"{x}-written"
    assert initial_table(2).shard_of_key(counter) == shard
    retried = write(Kind.PUT, Put(counter, b"first").encode(), 2)
    with raw(door(node, f"shard {shard}")) as client, Client(node.address) as db:
        client.ask(write(Kind.SESSION_OPEN, SessionOpen(limits.session_ttl_ms_min).encode(), 1))
        first = client.ask(retried)
        assert client.ask(retried) == first
        client.ask(write(Kind.PUT, Put(leased, b"", leased=True).encode(), 3))
        db.put(counter, b"second")
        until(lambda: db.get(leased) is None)  # it goes with the session
        with pytest.raises(SessionExpired):
            client.ask(retried)
        with pytest.raises(SessionExpired):  # a late copy of its opening does not help
            client.ask(write(Kind.SESSION_OPEN, SessionOpen(60_000).encode(), 1))
        assert db.get(counter) == b"second"


# -- 43: tables that are out of date ------------------------------------------------------------


class StaleRouter:
    """Stands before a node as if slots had just moved there: the first topology that it passes on
    has every slot at the wrong shard, and whatever comes later is of a newer epoch."""

    def __init__(self, router: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self.address = f"127.0.0.1:{self._front.bind_to_random_port('tcp://127.0.0.1')}"
        self._back = self._context.socket(zmq.DEALER)
        self._back.connect(f"tcp://{router}")
        self._done = threading.Event()
        self.topologies = self.refusals = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._done.is_set():
            if self._front.poll(20):
                identity, *frames = self._front.recv_multipart()
                self._back.send_multipart(frames)
                assert self._back.poll(PATIENCE_MS)
                reply = self._altered(
                    parse_request(frames), parse_reply(self._back.recv_multipart())
                )
                self._front.send_multipart([identity, *map(bytes, reply)])

    def _altered(self, request: Request, reply: Reply) -> list[Frame]:
        header, body, epoch = reply.header, reply.body, reply.header.epoch + 1
        if header.kind == Kind.TOPOLOGY:
            found = TopologyFound.decode(body)
            table = PlacementTable.decode(found.table)
            if self.topologies:
                table = replace(table, epoch=epoch)
            else:
                table = replace(table, owners=bytes(1 - owner for owner in table.owners))
            self.topologies += 1
            doors = [f"tcp://{self.address}"] * len(found.replica_endpoints)
            body = replace(found, table=table.encode(), replica_endpoints=doors).encode()
            epoch = table.epoch
        elif header.code == WrongShard.number:
            self.refusals += 1
            body = encode_error(WrongShard("slots moved", epoch=epoch))
        return build_reply(
            request.return_address(),
            body,
            shard=reply.shard,
            code=header.code,
            epoch=epoch,
            log_index=header.log_index,
        )

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._context.destroy(linger=0)


def test_stale_table_costs_one_refresh_and_puts_no_key_in_the_wrong_place(
    node: NodeProcess,
) -> None:
    stale = StaleRouter(node.address)
    try:
        batch = {b"stale-%d" % number: b"%d" % number for number in range(40)}
        with Client(stale.address) as db:
            db.put_many(batch)
            assert (stale.topologies, stale.refusals) == (2, 2)  # one refusal of each shard
            assert db.get_many(list(batch)) == list(batch.values())
            assert (stale.topologies, stale.refusals) == (2, 2)
    finally:
        stale.close()
    with Client(node.address) as db:
        assert db.get_many(list(batch)) == list(batch.values())
        assert {entry.key for entry in db.scan(prefix=b"stale-")} == {*batch}


# -- 34: a worker that keeps dying --------------------------------------------------------------


def test_worker_that_keeps_dying_is_parked_and_a_restart_of_the_node_brings_it_back() -> None:
    victim = 1 - OWNER
    other = next(b"%d" % n for n in range(99) if initial_table(2).shard_of_key(b"%d" % n) == victim)
    with folder() as data:
        with started(data, "--shards", "2") as node, Client(node.address) as db:
            db.put_many({KEY: b"kept", other: b"kept"})
            killed: set[int] = set()

            def is_parked() -> bool:
                row = node.shards()[victim]
                if row.pid is not None and row.pid not in killed:
                    killed.add(row.pid)
                    os.kill(row.pid, signal.SIGKILL)
                return bool(row.state == "parked")

            until(is_parked, timeout_s=40)
            assert len(killed) == 8
            assert db.get(KEY) == b"kept"
            ask = request(Kind.GET, Get(other).encode(), prefix=victim)
            with raw(node.address) as stranger, pytest.raises(Unavailable, match="parked"):
                stranger.ask(ask)
            assert metric(node, f'shardnode_shard_state{{shard="{victim}",state="parked"}}') == 1
        with started(data, "--shards", "2") as node, Client(node.address) as db:
            assert db.get_many([KEY, other]) == [b"kept", b"kept"]
