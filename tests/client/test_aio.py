"""`AsyncClient` against a fake node: the same answers, and batches that keep order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardnode import (
    AsyncClient,
    Conflict,
    DeadlineExceeded,
    Denied,
    Do,
    If,
    InvalidRequest,
    OutcomeUnknown,
    Unavailable,
)
from shardnode.wire import limits
from shardnode.wire.kinds import Kind
from shardnode.wire.requests import GetMany, PutMany
from tests.client.fake import FakeNode

KEYS = [b"key-%d" % number for number in range(200)]


def run(node: FakeNode, work: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncClient(node.address) as db:
            await work(db)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_methods_mean_the_same_as_those_of_client(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        version = await db.put("k", "v", ttl=1)
        entry = await db.get_entry("k")
        assert entry is not None
        assert (entry.value, entry.version) == (b"v", version)
        assert entry.expires_at is not None
        assert await db.get(b"k", consistency="lease") == b"v"
        assert await db.delete("k") == 1
        assert await db.delete("k") == 0
        assert await db.get("k") is None
        assert len(await db.put_many(dict.fromkeys(KEYS, b"1"))) == len(KEYS)
        assert await db.get_many([KEYS[0], b"no"]) == [b"1", None]
        assert await db.delete_many(KEYS[:3]) == 3
        assert (await db.put_many({}), await db.get_many([])) == ([], [])
        assert await db.delete_many([]) == 0
        version = await db.cas(b"c", b"1", version=0)
        with pytest.raises(Conflict):
            await db.cas(b"c", b"2", version=0)
        done = await db.transact([If.version(b"c", equals=version)], [Do.delete(b"c")])
        assert done.succeeded
        assert (await db.explain(b"user:1")).slot == 2377
        assert (await db.status()).cluster == (await db.topology()).cluster == "fake"
        assert [e.key async for e in db.scan()] == sorted(KEYS[3:])
        assert [e.key async for e in db.scan(reverse=True, limit=2)] == sorted(KEYS)[:-3:-1]

    run(node, work)


def test_wrong_arguments_are_refused_alone_and_before_anything_is_sent(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        calls = [
            db.put(b"", b""),
            db.put(b"k", bytes(limits.value_bytes_max + 1)),
            db.get(bytes(limits.key_bytes_max + 1)),
            db.delete(b""),
            db.put(b"good", b"v"),
        ]
        *wrong, good = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(error, InvalidRequest) for error in wrong] == [True] * 4
        assert good == 1
        with pytest.raises(TypeError):
            await db.put(1, b"")  # type: ignore[arg-type]

    run(node, work)


def test_concurrent_calls_become_one_request_per_shard(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        await asyncio.gather(*(db.put(key, key) for key in KEYS))
        assert node.kinds_seen().count(Kind.PUT_MANY) == 2
        assert await asyncio.gather(*(db.get(key) for key in KEYS)) == KEYS
        assert node.kinds_seen().count(Kind.GET_MANY) == 2

    run(node, work)


def test_concurrent_deletes_each_learn_whether_their_key_existed(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        await db.put_many(dict.fromkeys(KEYS[::2], b"v"))
        deleted = await asyncio.gather(*(db.delete(key) for key in KEYS))
        assert deleted == [1, 0] * (len(KEYS) // 2)
        assert node.kinds_seen().count(Kind.TRANSACT) == 2

    run(node, work)


def test_hot_key_is_read_in_one_request(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        await db.put(b"hot", b"v")
        assert await asyncio.gather(*(db.get(b"hot") for _ in range(100))) == [b"v"] * 100
        assert node.kinds_seen().count(Kind.GET_MANY) == 1

    run(node, work)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "get", "delete"]), st.sampled_from([b"a", b"b", b"c"])),
        max_size=25,
    )
)
def test_operations_on_a_key_run_in_the_order_of_their_calls(
    node: FakeNode, steps: list[tuple[str, bytes]]
) -> None:
    async def work(db: AsyncClient) -> None:
        await db.delete_many([b"a", b"b", b"c"])
        model: dict[bytes, bytes] = {}
        expected: list[object] = []
        calls: list[Awaitable[object]] = []
        for number, (verb, key) in enumerate(steps):
            value = b"%d" % number
            if verb == "put":
                model[key] = value
                expected.append("put")
                calls.append(db.put(key, value))
            elif verb == "get":
                expected.append(model.get(key))
                calls.append(db.get(key))
            else:
                expected.append(int(model.pop(key, None) is not None))
                calls.append(db.delete(key))
        results = await asyncio.gather(*calls)
        shown = [
            "put" if want == "put" else got for want, got in zip(expected, results, strict=True)
        ]
        assert shown == expected

    run(node, work)
    for seen in node.seen:
        if isinstance(seen.body, PutMany):
            assert len(set(seen.body.keys)) == len(seen.body.keys)


def test_lost_answers_do_not_run_a_batch_twice(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        node.rule("swallow", kind=Kind.PUT_MANY, shard=0, times=1)
        await asyncio.gather(*(db.put(key, key) for key in KEYS))
        assert [shard.index for shard in node.shards] == [1, 1]

    run(node, work)


def test_refused_batch_is_tried_one_by_one(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        node.rule("refuse", Denied("one of them"), kind=Kind.PUT_MANY, times=1)
        keys = [b"{t}%d" % number for number in range(5)]
        results = await asyncio.gather(*(db.put(key, b"") for key in keys))
        assert results == [1, 2, 3, 4, 5]

    run(node, work)


def test_retry_leaves_when_its_pause_ends(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        await db.put(b"warm", b"up")
        node.rule("refuse", Unavailable("not now"), times=3)
        begin = asyncio.get_running_loop().time()
        await db.put(b"key", b"value")
        assert asyncio.get_running_loop().time() - begin < 0.7

    run(node, work)


def test_each_caller_gets_the_error_of_its_own_shard(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        await db.put(b"first", b"")
        node.rule("swallow", kind=Kind.PUT_MANY, shard=1)
        calls = [db.put(key, key, timeout=0.2) for key in KEYS]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for key, result in zip(KEYS, results, strict=True):
            if node.table.shard_of_key(key) == 1:
                assert isinstance(result, OutcomeUnknown)
            else:
                assert isinstance(result, int)
        assert len({id(result) for result in results if isinstance(result, OutcomeUnknown)}) > 1

    run(node, work)


def test_operation_that_waited_behind_a_stuck_one_had_no_effect(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        await db.put(b"k", b"0")
        node.rule("swallow", kind=Kind.PUT_MANY)
        first = asyncio.ensure_future(db.put(b"k", b"1", timeout=4.0))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceeded):
            await db.put(b"k", b"2", timeout=0.1)
        assert not first.done()
        node.forget_rules()
        await first

    run(node, work)
    assert node.data() == {b"k": b"1"}


def test_cancelled_caller_disturbs_nobody_in_its_batch(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        tasks = [asyncio.ensure_future(db.put(key, key)) for key in KEYS]
        await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert all(isinstance(result, int) for result in results[1:])

    run(node, work)


def test_slots_that_move_are_followed_by_batches(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        await asyncio.gather(*(db.put(key, b"1") for key in KEYS))
        node.move(range(limits.slots // 2), 1)
        await asyncio.gather(*(db.put(key, b"2") for key in KEYS))
        node.move(range(limits.slots // 4), 0)
        deleted = await asyncio.gather(*(db.delete(key) for key in KEYS))
        assert deleted == [1] * len(KEYS)

    run(node, work)


def test_watch_tells_what_follows_its_call(node: FakeNode) -> None:
    async def work(db: AsyncClient) -> None:
        changes = db.watch(prefix=b"k")
        first = asyncio.ensure_future(anext(aiter(changes)))
        while node.kinds_seen().count(Kind.WATCH) < 4:
            await asyncio.sleep(0)
        await db.put(b"k", b"v")
        change = await first
        assert (change.kind, change.key) == ("put", b"k")
        await db.delete(b"k")
        async for later in db.watch(start=change.cursor):
            assert later.kind == "delete"
            break

    run(node, work)


def test_nothing_listening_is_unavailable_for_every_caller() -> None:
    async def main() -> None:
        async with AsyncClient("127.0.0.1:1") as db:
            results = await asyncio.gather(db.put(b"a", b""), db.get(b"b"), return_exceptions=True)
            assert [type(error) for error in results] == [Unavailable] * 2

    asyncio.run(main())


def test_closed_client_fails_what_is_under_way(node: FakeNode) -> None:
    async def main() -> None:
        db = AsyncClient(node.address)
        await db.put(b"k", b"v")
        node.rule("drop", kind=Kind.GET_MANY)
        reading = asyncio.ensure_future(db.get(b"k"))
        while not any(isinstance(seen.body, GetMany) for seen in node.seen):
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(db.put(b"k", b"w"))  # behind the read of its key
        for _ in range(3):
            await asyncio.sleep(0)
        await db.close()
        for task in (reading, waiting):
            with pytest.raises(Unavailable):
                await task
        with pytest.raises(InvalidRequest, match="closed"):
            await db.get(b"k")

    asyncio.run(main())


def test_client_moves_on_to_the_next_event_loop(node: FakeNode) -> None:
    db = AsyncClient(node.address)

    async def put() -> int:
        return await db.put(b"k", b"v")

    assert [asyncio.run(put()), asyncio.run(put())] == [1, 2]
    asyncio.run(db.close())
