"""`AsyncClient`: the methods of the library, awaited.

One rule: everything happens in the event loop that first used the client; no thread, no lock.
Concurrent puts, gets and deletes are batched (`batching`), so a thousand tasks that each await
one key cost a few requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Self, TypeVar

from shardnode.client import forks, operations, topics
from shardnode.client.arguments import (
    DEFAULT_TIMEOUT_S,
    Data,
    Level,
    Pairs,
    to_bytes,
    to_consistency,
    to_endpoints,
    to_timeout_s,
    to_ttl_ms,
)
from shardnode.client.batching import Verb
from shardnode.client.calls import Call, TableCall
from shardnode.client.engine_aio import AsyncEngine
from shardnode.client.messages import Position
from shardnode.client.offsets import Offset
from shardnode.client.operations import Ttl
from shardnode.client.scans import Scan
from shardnode.client.topic_aio import AsyncTopic
from shardnode.client.topic_calls import AppendCall
from shardnode.client.topics import Retention
from shardnode.client.transactions import Do, If
from shardnode.client.values import (
    Change,
    Entry,
    GroupInfo,
    Route,
    Status,
    TopicInfo,
    Topology,
    Transaction,
)
from shardnode.client.watches import WAIT_S, Watch
from shardnode.wire import limits
from shardnode.wire.errors import InvalidRequest

T = TypeVar("T")


class AsyncClient:
    """A client for the tasks of one event loop; see `Client` for what the methods mean.

    `address` is `host:port` of any node, or a list of them; without one, `SHARDNODE_CONNECT` or
    127.0.0.1:7400. Nothing is connected before the first call. A call ends within `timeout`
    seconds, which each method also takes for itself.
    """

    def __init__(
        self, address: str | Sequence[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._seeds = to_endpoints(address)
        self._timeout_s = to_timeout_s(timeout, DEFAULT_TIMEOUT_S)
        self._engine: AsyncEngine | None = None
        self._closed = False
        forks.watch(self)

    # Keys.

    async def put(
        self, key: Data, value: Data, *, ttl: Ttl = None, timeout: float | None = None
    ) -> int:
        """Set a key; its new version."""
        key = key if type(key) is bytes else to_bytes(key)
        value = value if type(value) is bytes else to_bytes(value, "value")
        if not 0 < len(key) <= limits.key_bytes_max or len(value) > limits.value_bytes_max:
            operations.put(key, value, ttl)  # says what is wrong
        ttl_ms = 0 if ttl is None else to_ttl_ms(ttl)
        timeout_s = self._timeout_s if timeout is None else to_timeout_s(timeout, 0.0)
        version: int = await self._connected().batcher.add(Verb.PUT, ttl_ms, key, value, timeout_s)
        return version

    async def get(
        self, key: Data, *, consistency: Level = "linearizable", timeout: float | None = None
    ) -> bytes | None:
        """The value of a key, None if it does not exist."""
        key = self._checked(key)
        level = to_consistency(consistency)
        timeout_s = self._timeout_s if timeout is None else to_timeout_s(timeout, 0.0)
        value: bytes | None = await self._connected().batcher.add(
            Verb.GET, level, key, b"", timeout_s
        )
        return value

    async def get_entry(
        self, key: Data, *, consistency: Level = "linearizable", timeout: float | None = None
    ) -> Entry | None:
        """A key with its version and the time at which it expires."""
        return await self._run(operations.get_entry(key, consistency), timeout)

    async def put_many(
        self, pairs: Pairs, *, ttl: Ttl = None, timeout: float | None = None
    ) -> list[int]:
        """Set many keys; their versions in the order given."""
        call = operations.put_many(pairs, ttl)
        return await self._run(call, timeout) if call else []

    async def get_many(
        self,
        keys: Iterable[Data],
        *,
        consistency: Level = "linearizable",
        timeout: float | None = None,
    ) -> list[bytes | None]:
        """The values of many keys in the order given, None for those that do not exist."""
        call = operations.get_many(keys, consistency)
        return await self._run(call, timeout) if call else []

    async def delete(self, key: Data, *, timeout: float | None = None) -> int:
        """Delete a key; 1 if it existed, else 0."""
        key = self._checked(key)
        timeout_s = self._timeout_s if timeout is None else to_timeout_s(timeout, 0.0)
        deleted: int = await self._connected().batcher.add(Verb.DELETE, 0, key, b"", timeout_s)
        return deleted

    async def delete_many(self, keys: Iterable[Data], *, timeout: float | None = None) -> int:
        """Delete many keys; how many of them existed."""
        call = operations.delete_many(keys)
        return await self._run(call, timeout) if call else 0

    async def cas(
        self, key: Data, value: Data, *, version: int, ttl: Ttl = None, timeout: float | None = None
    ) -> int:
        """Set a key if its version is the expected one (0: it must not exist)."""
        return await self._run(operations.cas(key, value, version, ttl), timeout)

    async def transact(
        self,
        compare: Sequence[If] = (),
        then: Sequence[Do] = (),
        otherwise: Sequence[Do] = (),
        *,
        timeout: float | None = None,
    ) -> Transaction:
        """If all comparisons hold, do `then`, else `otherwise`; atomically."""
        return await self._run(operations.transact(compare, then, otherwise), timeout)

    # Ranges and changes.

    async def scan(
        self,
        *,
        prefix: Data = b"",
        start: Data | None = None,
        end: Data | None = None,
        limit: int | None = None,
        reverse: bool = False,
        keys_only: bool = False,
        consistency: Level = "linearizable",
        timeout: float | None = None,
    ) -> AsyncIterator[Entry]:
        """The entries with a prefix, `start` ≤ key < `end`, in order."""
        scan = Scan(
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            reverse=reverse,
            keys_only=keys_only,
            consistency=consistency,
        )
        timeout_s = to_timeout_s(timeout, self._timeout_s)
        if scan.over:
            return
        engine = self._connected()
        scan.restart(await engine.run(TableCall(), timeout_s))
        try:
            while not scan.over:
                engine.start_all(scan.new_calls(), timeout_s)
                needed = scan.needed()
                engine.extend(needed, timeout_s)
                await engine.wait(needed)
                entries = scan.take()
                engine.start_all(scan.new_calls(), timeout_s)  # the next pages, meanwhile
                for entry in entries:
                    yield entry
                if scan.stale_epoch:
                    engine.cancel(scan.under_way())
                    scan.restart(await engine.run(TableCall(scan.stale_epoch), timeout_s))
        finally:
            engine.cancel(scan.under_way())

    def watch(
        self, *, prefix: Data = b"", start: str | None = None, timeout: float | None = None
    ) -> AsyncIterator[Change]:
        """The changes of keys with a prefix, as they happen: those after this call, or those
        behind the cursor `start`."""
        timeout_s = to_timeout_s(timeout, self._timeout_s)
        engine = self._connected()
        watch = Watch(prefix=prefix, start=start)
        placing = asyncio.ensure_future(self._placed(engine, watch, timeout_s))
        return self._watched(engine, watch, placing, timeout_s + WAIT_S)

    async def _placed(self, engine: AsyncEngine, watch: Watch, timeout_s: float) -> None:
        watch.begin(await engine.run(TableCall(), timeout_s))
        if not watch.is_placed:
            engine.start_all(watch.new_calls(), timeout_s)
            await engine.wait(watch.under_way())
            watch.take()

    async def _watched(
        self,
        engine: AsyncEngine,
        watch: Watch,
        placing: asyncio.Future[None],
        timeout_s: float,
    ) -> AsyncIterator[Change]:
        try:
            await placing
            while True:
                engine.extend(watch.under_way(), timeout_s)  # however long the caller took
                engine.start_all(watch.new_calls(), timeout_s)
                await engine.wait(watch.under_way(), any)
                for change in watch.take():
                    yield change
        finally:
            placing.cancel()
            engine.cancel(watch.under_way())

    # Topics.

    def topic(self, name: str) -> AsyncTopic:
        """A topic by its name; nothing is asked before it is used."""
        return AsyncTopic(self, name)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        retention_time: Retention = None,
        retention_bytes: int | None = None,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> AsyncTopic:
        """Create a topic, and its stream if need be; it can be used at once."""
        call = topics.create(name, partitions, retention_time, retention_bytes, exist_ok)
        return AsyncTopic(self, (await self._run(call, timeout)).name)

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention_time: Retention = None,
        retention_bytes: int | None = None,
        timeout: float | None = None,
    ) -> TopicInfo:
        """Change what is not None: more partitions, other retention (0: none)."""
        call = topics.alter(name, partitions, retention_time, retention_bytes)
        return TopicInfo.of(await self._run(call, timeout))

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        """What a topic is."""
        return TopicInfo.of(await self._run(topics.describe(name), timeout))

    async def list_topics(self, *, timeout: float | None = None) -> list[str]:
        """The full names of all topics, in order."""
        return await self._run(topics.names(), timeout)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic and its messages."""
        await self._run(topics.delete(name), timeout)

    async def list_groups(self, *, timeout: float | None = None) -> list[str]:
        """The names of all consumer groups, in order."""
        return await self._run(operations.list_groups(), timeout)

    async def describe_group(self, group: str, *, timeout: float | None = None) -> GroupInfo:
        """The members of a group, who reads what, and how far behind."""
        return await self._run(operations.describe_group(group), timeout)

    async def seek_group(
        self,
        group: str,
        topic: str,
        partition: int,
        offset: Offset,
        *,
        timeout: float | None = None,
    ) -> int:
        """Let a group go on elsewhere in a partition, forward or back; the offset it has then.
        Who reads it goes on there with its next heartbeat."""
        return await self._run(operations.seek_group(group, topic, partition, offset), timeout)

    # The cluster.

    async def explain(self, key: Data, *, timeout: float | None = None) -> Route:
        """Where a key is, and why."""
        return await self._run(operations.explain(key), timeout)

    async def status(self, *, timeout: float | None = None) -> Status:
        """How the shards of the node are that answers."""
        return await self._run(operations.status(), timeout)

    async def topology(self, *, timeout: float | None = None) -> Topology:
        """Where everything is."""
        return await self._run(operations.topology(), timeout)

    async def add_member(self, node: int, address: str, *, timeout: float | None = None) -> int:
        """Let a node, whose router is at `address`, be a member of every shard's group; returns
        the version of the wish. It comes true as the node catches up: see `topology`."""
        return await self._run(operations.add_member(node, address), timeout)

    async def remove_member(self, node: int, *, timeout: float | None = None) -> int:
        """Take a node out of every shard's group; returns the version of the wish."""
        return await self._run(operations.remove_member(node), timeout)

    async def transfer_leader(self, shard: int, node: int, *, timeout: float | None = None) -> int:
        """Let a node lead a shard, until the next election; returns the term it leads in."""
        return await self._run(operations.transfer_leader(shard, node), timeout)

    async def rebalance(self, *, timeout: float | None = None) -> int:
        """Let every shard's lead go back to where it belongs."""
        return await self._run(operations.rebalance(), timeout)

    async def close(self) -> None:
        """Close all connections; calls that are under way fail."""
        self._closed = True
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.close()

    # Inside.

    def _checked(self, key: Data) -> bytes:
        data = key if type(key) is bytes else to_bytes(key)
        if not 0 < len(data) <= limits.key_bytes_max:
            operations.delete(data)  # says what is wrong
        return data

    async def _run(self, call: Call[T], timeout: float | None, more_s: float = 0.0) -> T:
        timeout_s = to_timeout_s(timeout, self._timeout_s)
        return await self._connected().run(call, timeout_s + more_s)

    async def _append(self, call: AppendCall, timeout: float | None) -> Position:
        """Together with others of the same partition, where that can be."""
        timeout_s = to_timeout_s(timeout, self._timeout_s)
        engine = self._connected()
        future = engine.appender.add(call, timeout_s)
        return await (engine.run(call, timeout_s) if future is None else future)

    def _timeout(self, timeout: float | None) -> float:
        return to_timeout_s(timeout, self._timeout_s)

    def _connected(self) -> AsyncEngine:
        engine = self._engine
        loop = asyncio.get_running_loop()
        if engine is not None and engine.loop is loop:
            return engine
        if self._closed:
            raise InvalidRequest("this client is closed; make a new one")
        if engine is not None:
            if not engine.loop.is_closed():
                raise InvalidRequest("this client is used by another event loop; make one for each")
            engine.close()
        self._engine = engine = AsyncEngine(loop, self._seeds)
        return engine

    def after_fork(self) -> None:
        """In the child: the parent's sockets are left alone, and its id too."""
        forks.leave_behind(self._engine)
        self._engine = None
