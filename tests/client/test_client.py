"""`Client` against a fake node over real sockets."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest

import shardnode
from shardnode import (
    Client,
    Conflict,
    DeadlineExceeded,
    Do,
    Entry,
    If,
    InvalidRequest,
    OutcomeUnknown,
    Overloaded,
    ShardnodeError,
    Unavailable,
)
from shardnode.client.calls import TableCall
from shardnode.client.engine import Engine
from shardnode.wire import limits
from shardnode.wire.errors import Denied, NotLeader, SessionExpired, WrongShard
from shardnode.wire.kinds import Kind
from shardnode.wire.requests import PutMany
from tests.client.fake import NODE, FakeNode

KEYS = [b"key-%d" % number for number in range(200)]


def test_import_loads_neither_sockets_nor_codec() -> None:
    code = "import shardnode, sys; print({'zmq', 'msgpack', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_public_name_is_there() -> None:
    for name in shardnode.__all__:
        assert getattr(shardnode, name) is not None
    assert set(shardnode.__all__) <= set(dir(shardnode))
    with pytest.raises(AttributeError):
        _ = shardnode.nothing_of_that_name


def test_keys_and_values_are_bytes_like_or_text(db: Client) -> None:
    keys: list[Any] = [b"k", "k", bytearray(b"k"), memoryview(b"k")]
    for number, key in enumerate(keys):
        db.put(key, f"{number}")
        assert db.get(key) == str(number).encode()
    assert db.put_many([("a", b"1"), (b"b", "2")])
    assert db.get_many(["a", b"b", "c"]) == [b"1", b"2", None]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda db: db.put(1, b""),
        lambda db: db.put(b"k", None),
        lambda db: db.get_many(b"abc"),
        lambda db: db.delete_many("abc"),
        lambda db: db.put_many(b"abc"),
        lambda db: db.put_many(["ab"]),
        lambda db: db.put(b"k", b"", ttl="1"),
        lambda db: db.put(b"k", b"", timeout="1"),
        lambda db: db.cas(b"k", b"", version="1"),
        lambda db: db.transact(then=[b"k"]),
    ],
)
def test_wrong_type_is_a_type_error_and_nothing_is_sent(
    node: FakeNode, db: Client, wrong: Any
) -> None:
    with pytest.raises(TypeError):
        wrong(db)
    assert not node.seen


@pytest.mark.parametrize(
    "wrong",
    [
        lambda db: db.put(b"", b""),
        lambda db: db.put(bytes(limits.key_bytes_max + 1), b""),
        lambda db: db.put(b"k", bytes(limits.value_bytes_max + 1)),
        lambda db: db.put(b"k", b"", ttl=0),
        lambda db: db.put(b"k", b"", ttl=timedelta(seconds=-1)),
        lambda db: db.put(b"k", b"", timeout=0),
        lambda db: db.get(b"k", consistency="eventual"),
        lambda db: list(db.scan(limit=-1)),
        lambda db: db.transact(),
        lambda db: db.watch(start="nonsense"),
    ],
)
def test_wrong_value_is_an_invalid_request_and_nothing_is_sent(
    node: FakeNode, db: Client, wrong: Any
) -> None:
    with pytest.raises(InvalidRequest):
        wrong(db)
    assert not node.seen


@pytest.mark.parametrize("address", ["nowhere", "host:", ":7400", "host:99999", [], ""])
def test_bad_address_is_refused(address: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDNODE_CONNECT", "also bad")
    with pytest.raises(InvalidRequest):
        Client(address or None if address == "" else address)


def test_address_comes_from_the_environment(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDNODE_CONNECT", node.address)
    with Client() as db:
        assert db.put(b"k", b"v") == 1


def test_second_address_is_tried_when_the_first_is_dead(node: FakeNode) -> None:
    with Client(["127.0.0.1:1", node.address]) as db:
        assert db.put(b"k", b"v") == 1


def test_one_key_is_written_read_and_deleted(db: Client) -> None:
    version = db.put(b"k", b"v", ttl=timedelta(seconds=1.5))
    expires_at = datetime.fromtimestamp(1_700_000_001.5, tz=UTC)
    assert db.get_entry(b"k") == Entry(b"k", b"v", version, expires_at)
    assert db.get(b"k", consistency="stale") == b"v"
    assert db.delete(b"k") == 1
    assert db.delete(b"k") == 0
    assert db.get(b"k") is None
    assert db.get_entry(b"k") is None


def test_cas_wins_once(db: Client) -> None:
    version = db.cas(b"k", b"1", version=0)
    with pytest.raises(Conflict) as caught:
        db.cas(b"k", b"2", version=0)
    assert (caught.value.key, caught.value.version) == (b"k", version)
    assert db.cas(b"k", b"3", version=version) > version
    assert db.get(b"k") == b"3"


def test_transaction_takes_the_branch_that_its_comparisons_choose(db: Client) -> None:
    version = db.put(b"{t}:1", b"old")
    done = db.transact(
        compare=[
            If.version(b"{t}:1", equals=version),
            If.value(b"{t}:1", equals=b"old"),
            If.absent(b"{t}:2"),
        ],
        then=[Do.put(b"{t}:2", b"new"), Do.delete(b"{t}:1")],
        otherwise=[Do.get(b"{t}:1")],
    )
    assert done.succeeded
    assert [result.version for result in done.results] == [version + 1, version]
    done = db.transact([If.exists(b"{t}:1")], otherwise=[Do.get(b"{t}:2")])
    assert not done.succeeded
    assert done.results[0].value == b"new"


def test_many_calls_keep_the_order_given(node: FakeNode, db: Client) -> None:
    versions = db.put_many({key: key[::-1] for key in KEYS})
    entries = {key: node.shards[node.table.shard_of_key(key)].data[key] for key in KEYS}
    assert versions == [entries[key][1] for key in KEYS]
    assert db.get_many(reversed(KEYS)) == [key[::-1] for key in reversed(KEYS)]
    assert db.delete_many([*KEYS, *KEYS, b"missing"]) == len(KEYS)
    assert node.data() == {}


def test_of_a_key_that_comes_twice_the_last_value_is_written(node: FakeNode, db: Client) -> None:
    versions = db.put_many([(b"k", b"1"), (b"l", b"1"), ("k", b"2")])
    assert versions[0] == versions[2]
    assert node.data() == {b"k": b"2", b"l": b"1"}


def test_empty_many_calls_ask_nobody() -> None:
    with Client("127.0.0.1:1") as db:
        assert (db.put_many({}), db.get_many([]), db.delete_many([])) == ([], [], 0)


def test_many_calls_are_split_at_the_limits(
    node: FakeNode, db: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "batch_keys_max", 30)
    node.do(lambda: setattr(node.shards[0], "found_max", 7))
    db.put_many(dict.fromkeys(KEYS, b"v"))
    assert db.get_many(KEYS) == [b"v"] * len(KEYS)
    bodies = [seen.body for seen in node.seen if isinstance(seen.body, PutMany)]
    assert max(len(body.keys) for body in bodies) == 30


def test_large_values_are_split_by_bytes(node: FakeNode, db: Client) -> None:
    value = bytes(limits.value_bytes_max)
    keys = [b"{one}%d" % number for number in range(5)]
    db.put_many(dict.fromkeys(keys, value))
    assert node.kinds_seen().count(Kind.PUT_MANY) == 2
    assert db.get_many(keys[:3]) == [value] * 3


def test_partial_failure_names_what_succeeded_and_what_failed(node: FakeNode, db: Client) -> None:
    node.rule("refuse", Denied("not you"), kind=Kind.PUT_MANY, shard=1)
    with pytest.raises(Denied) as caught:
        db.put_many(dict.fromkeys(KEYS, b"v"))
    shards = {key: node.table.shard_of_key(key) for key in KEYS}
    assert set(caught.value.succeeded) == {key for key in KEYS if shards[key] == 0}
    assert set(caught.value.failed) == {key for key in KEYS if shards[key] == 1}
    assert set(node.data()) == set(caught.value.succeeded)


def test_requests_go_to_direct_ports(node: FakeNode, db: Client) -> None:
    db.put_many(dict.fromkeys(KEYS, b"v"))
    vias = {(Kind(seen.request.header.kind), seen.via) for seen in node.seen}
    assert vias == {
        (Kind.TOPOLOGY, "router"),
        (Kind.SESSION_OPEN, "direct"),
        (Kind.PUT_MANY, "direct"),
    }


def test_closed_direct_ports_are_replaced_by_the_router() -> None:
    with FakeNode(2, direct=False) as node, Client(node.address) as db:
        db.put_many(dict.fromkeys(KEYS, b"v"))
        assert db.get_many(KEYS) == [b"v"] * len(KEYS)
        assert {seen.via for seen in node.seen} == {"router"}


def test_worker_that_dies_and_comes_back_is_not_noticed(node: FakeNode, db: Client) -> None:
    db.put(b"k", b"1")
    shard = node.table.shard_of_key(b"k")
    node.stop_direct(shard)
    db.put(b"k", b"2")
    assert node.seen[-1].via == "router"
    node.start_direct(shard)
    db.put(b"k", b"3")
    assert db.get(b"k") == b"3"
    assert len(node.shards[shard].applied) == 3


def test_write_whose_answer_is_lost_runs_once(node: FakeNode) -> None:
    node.rule("swallow", kind=Kind.PUT, times=1)
    with Client(node.address) as db:
        version = db.put(b"k", b"v")
    assert node.kinds_seen().count(Kind.PUT) == 2
    assert node.shards[node.table.shard_of_key(b"k")].index == version == 1


def test_many_writes_whose_answers_are_lost_run_once(node: FakeNode, db: Client) -> None:
    for shard in (0, 1):
        node.rule("swallow", kind=Kind.PUT_MANY, shard=shard, times=1)
    db.put_many(dict.fromkeys(KEYS, b"v"))
    assert [shard.index for shard in node.shards] == [1, 1]


def test_write_without_any_answer_is_unknown_and_read_is_late(node: FakeNode, db: Client) -> None:
    db.put(b"k", b"v")
    node.rule("swallow")
    with pytest.raises(OutcomeUnknown):
        db.put(b"k", b"w", timeout=0.1)
    with pytest.raises(DeadlineExceeded) as caught:
        db.get(b"k", timeout=0.1)
    assert isinstance(caught.value, TimeoutError)


def test_answer_after_the_deadline_disturbs_nobody(node: FakeNode, db: Client) -> None:
    db.put(b"k", b"v")
    node.rule("hold", kind=Kind.GET, times=1)
    with pytest.raises(DeadlineExceeded):
        db.get(b"k", timeout=0.05)
    node.release()
    assert db.get(b"k") == b"v"


@pytest.mark.parametrize(
    "error",
    [
        NotLeader(leader=NODE),
        NotLeader(),
        Unavailable("restarting"),
        Overloaded("full", lag=1, limit=1),
        SessionExpired(),
        WrongShard(epoch=1),
    ],
)
def test_passing_refusal_never_reaches_the_caller(
    node: FakeNode, db: Client, error: ShardnodeError
) -> None:
    node.rule("refuse", error, kind=Kind.PUT, times=2)
    assert db.put(b"k", b"v") == 1


def test_nothing_listening_is_unavailable_at_once() -> None:
    with Client("127.0.0.1:1") as db, pytest.raises(Unavailable, match="start") as caught:
        db.get(b"k")
    assert isinstance(caught.value, ConnectionError)


def test_forgotten_session_is_opened_anew(node: FakeNode, db: Client) -> None:
    db.put(b"k", b"1")
    node.forget_sessions()
    db.put(b"k", b"2")
    assert db.get(b"k") == b"2"


def test_moved_slots_are_followed(node: FakeNode, db: Client) -> None:
    db.put_many(dict.fromkeys(KEYS, b"1"))
    node.move(range(limits.slots // 2), 1)
    db.put_many(dict.fromkeys(KEYS, b"2"))
    db.put(KEYS[0], b"3")
    assert set(node.shards[1].data) == set(KEYS)
    assert db.get_many(KEYS) == [b"3", *[b"2"] * (len(KEYS) - 1)]


def test_cluster_is_described(node: FakeNode, db: Client) -> None:
    route = db.explain(b"user:1")
    assert (route.slot, route.shard, route.leader, route.pid) == (2377, 0, NODE, None)
    assert [shard.state for shard in db.status().shards] == ["serving", "serving"]
    topology = db.topology()
    assert topology.nodes == {NODE: node.endpoint}
    assert topology.shards[1].replicas == {NODE: node.direct[1]}


def test_eight_threads_share_one_client(node: FakeNode, db: Client) -> None:
    problems: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(60):
                key = b"%d-%d" % (thread, number)
                version = db.put(key, key)
                entry = db.get_entry(key)
                assert entry is not None
                assert (entry.value, entry.version) == (key, version)
                if number % 20 == 0:
                    keys = [b"%d-%d-%d" % (thread, number, n) for n in range(50)]
                    db.put_many(dict.fromkeys(keys, b"v"))
                    assert db.get_many(keys) == [b"v"] * 50
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not problems
    assert len(node.data()) == 8 * (60 + 3 * 50)


def test_thread_that_listens_hands_over_to_one_that_waits(node: FakeNode, db: Client) -> None:
    db.put(b"k", b"v")
    node.rule("hold", kind=Kind.GET)
    results: list[bytes | None] = []
    threads = [threading.Thread(target=lambda: results.append(db.get(b"k"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    while node.kinds_seen().count(Kind.GET) < 4:
        assert db.put(b"other", b"") > 0
    for _ in threads:
        node.release()
    for thread in threads:
        thread.join(10)
    assert results == [b"v"] * 4


def test_closing_wakes_those_who_wait(node: FakeNode) -> None:
    db = Client(node.address)
    db.put(b"k", b"v")
    node.rule("drop", kind=Kind.GET)
    errors: list[ShardnodeError] = []

    def read() -> None:
        try:
            db.get(b"k")
        except ShardnodeError as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    while node.kinds_seen().count(Kind.GET) < 3:
        node.do(lambda: None)
    db.close()
    db.close()
    for thread in threads:
        thread.join(10)
    assert [type(error) for error in errors] == [Unavailable] * 3
    with pytest.raises(InvalidRequest, match="closed"):
        db.get(b"k")


def _in_child(db: Client, result: Connection) -> None:
    db.put(b"child", b"1")
    result.send(db.get_many([b"parent", b"child"]))


def test_forked_child_has_its_own_sockets_and_id(node: FakeNode, db: Client) -> None:
    db.put(b"parent", b"1")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(db, theirs))
    child.start()
    assert ours.poll(20)
    assert ours.recv() == [b"1", b"1"]
    child.join(20)
    assert child.exitcode == 0
    db.put(b"parent", b"2")
    ids = {
        seen.request.header.client_id
        for seen in node.seen
        if seen.request.header.kind == Kind.SESSION_OPEN
    }
    assert len(ids) == 2
    assert db.get_many([b"parent", b"child"]) == [b"2", b"1"]


def test_an_engine_that_nobody_closed_is_freed_without_waiting(node: FakeNode) -> None:
    """Sockets and their context in one piece of garbage: ZeroMQ would wait for the sockets."""
    engine = Engine([node.endpoint])
    engine.run(TableCall(), 5.0)
    engine.itself = engine  # type: ignore[attr-defined]
    del engine
    collector = threading.Thread(target=gc.collect, daemon=True)
    collector.start()
    collector.join(20.0)
    assert not collector.is_alive()
