"""`Client`: the methods of the library for threads.

One rule: the calling thread does its own sending and receiving. There is no thread in between, so
a single caller pays for no hand-over. When several threads call at once, one of them listens for
all (`Engine.wait`), and passes that on when its own call is done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Self, TypeVar

from shardnode.client import forks, operations, topics
from shardnode.client.arguments import (
    DEFAULT_TIMEOUT_S,
    Data,
    Level,
    Pairs,
    to_endpoints,
    to_timeout_s,
)
from shardnode.client.calls import Call, TableCall
from shardnode.client.engine import Engine
from shardnode.client.offsets import Offset
from shardnode.client.operations import Ttl
from shardnode.client.scans import Scan
from shardnode.client.topic import Topic
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
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.placement import PlacementTable

T = TypeVar("T")


class Client:
    """A client for any number of threads, also across a fork.

    `address` is `host:port` of any node, or a list of them; without one, `SHARDNODE_CONNECT` or
    127.0.0.1:7400. Nothing is connected before the first call. A call ends within `timeout`
    seconds, which each method also takes for itself.
    """

    def __init__(
        self, address: str | Sequence[str] | None = None, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self._seeds = to_endpoints(address)
        self._timeout_s = to_timeout_s(timeout, DEFAULT_TIMEOUT_S)
        self._engine: Engine | None = None
        self._opening = threading.Lock()
        self._closed = False
        forks.watch(self)

    # Keys.

    def put(self, key: Data, value: Data, *, ttl: Ttl = None, timeout: float | None = None) -> int:
        """Set a key; its new version."""
        return self._run(operations.put(key, value, ttl), timeout)

    def get(
        self,
        key: Data,
        *,
        consistency: Level = "linearizable",
        timeout: float | None = None,
    ) -> bytes | None:
        """The value of a key, None if it does not exist."""
        return self._run(operations.get(key, consistency), timeout)

    def get_entry(
        self,
        key: Data,
        *,
        consistency: Level = "linearizable",
        timeout: float | None = None,
    ) -> Entry | None:
        """A key with its version and the time at which it expires."""
        return self._run(operations.get_entry(key, consistency), timeout)

    def put_many(self, pairs: Pairs, *, ttl: Ttl = None, timeout: float | None = None) -> list[int]:
        """Set many keys; their versions in the order given. Of a key that comes twice the last
        value is written. Atomic per shard only, up to `batch_keys_max` keys: a failure in part
        raises with `.succeeded` and `.failed`."""
        call = operations.put_many(pairs, ttl)
        return self._run(call, timeout) if call else []

    def get_many(
        self,
        keys: Iterable[Data],
        *,
        consistency: Level = "linearizable",
        timeout: float | None = None,
    ) -> list[bytes | None]:
        """The values of many keys in the order given, None for those that do not exist."""
        call = operations.get_many(keys, consistency)
        return self._run(call, timeout) if call else []

    def delete(self, key: Data, *, timeout: float | None = None) -> int:
        """Delete a key; 1 if it existed, else 0."""
        return self._run(operations.delete(key), timeout)

    def delete_many(self, keys: Iterable[Data], *, timeout: float | None = None) -> int:
        """Delete many keys; how many of them existed."""
        call = operations.delete_many(keys)
        return self._run(call, timeout) if call else 0

    def cas(
        self,
        key: Data,
        value: Data,
        *,
        version: int,
        ttl: Ttl = None,
        timeout: float | None = None,
    ) -> int:
        """Set a key if its version is the expected one (0: it must not exist); its new version.
        Raises `Conflict` with the version found."""
        return self._run(operations.cas(key, value, version, ttl), timeout)

    def transact(
        self,
        compare: Sequence[If] = (),
        then: Sequence[Do] = (),
        otherwise: Sequence[Do] = (),
        *,
        timeout: float | None = None,
    ) -> Transaction:
        """If all comparisons hold, do `then`, else `otherwise`; atomically, with keys of one
        shard."""
        return self._run(operations.transact(compare, then, otherwise), timeout)

    # Ranges and changes.

    def scan(
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
    ) -> Iterator[Entry]:
        """The entries with a prefix, `start` ≤ key < `end`, in order. Each page is linearizable on
        its shard; the whole is not a snapshot. `timeout` is for each step."""
        scan = Scan(
            prefix=prefix,
            start=start,
            end=end,
            limit=limit,
            reverse=reverse,
            keys_only=keys_only,
            consistency=consistency,
        )
        return self._scanned(scan, to_timeout_s(timeout, self._timeout_s))

    def _scanned(self, scan: Scan, timeout_s: float) -> Iterator[Entry]:
        if scan.over:
            return
        engine = self._connected()
        scan.restart(self._table(0, timeout_s))
        try:
            while not scan.over:
                engine.start(scan.new_calls(), timeout_s)
                needed = scan.needed()
                engine.extend(needed, timeout_s)
                engine.wait(needed)
                entries = scan.take()
                engine.start(scan.new_calls(), timeout_s)  # the next pages, meanwhile
                yield from entries
                if scan.stale_epoch:
                    engine.cancel(scan.under_way())
                    scan.restart(self._table(scan.stale_epoch, timeout_s))
        finally:
            engine.cancel(scan.under_way())

    def watch(
        self, *, prefix: Data = b"", start: str | None = None, timeout: float | None = None
    ) -> Iterator[Change]:
        """The changes of keys with a prefix, as they happen, for ever: those after this call, or
        those behind the cursor `start`. `timeout` is how long a shard may be out of reach."""
        timeout_s = to_timeout_s(timeout, self._timeout_s)
        watch = Watch(prefix=prefix, start=start)
        engine = self._connected()
        watch.begin(self._table(0, timeout_s))
        if not watch.is_placed:
            engine.start(watch.new_calls(), timeout_s)
            engine.wait(watch.under_way())
            watch.take()
        return self._watched(watch, timeout_s + WAIT_S)

    def _watched(self, watch: Watch, timeout_s: float) -> Iterator[Change]:
        engine = self._connected()
        try:
            while True:
                engine.extend(watch.under_way(), timeout_s)  # however long the caller took
                engine.start(watch.new_calls(), timeout_s)
                engine.wait(watch.under_way(), any)
                changes = watch.take()
                engine.start(watch.new_calls(), timeout_s)
                yield from changes
        finally:
            engine.cancel(watch.under_way())

    # Topics.

    def topic(self, name: str) -> Topic:
        """A topic by its name, in stream `default` unless it says `stream/topic`; nothing is asked
        before it is used."""
        return Topic(self, name)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        retention_time: Retention = None,
        retention_bytes: int | None = None,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> Topic:
        """Create a topic, and its stream if need be; it can be used at once. Raises `Conflict` if
        it exists, unless `exist_ok`, which leaves it as it is.

        Messages older than `retention_time` (seconds or a timedelta) are deleted, and the oldest
        ones of a partition that is larger than `retention_bytes`.
        """
        call = topics.create(name, partitions, retention_time, retention_bytes, exist_ok)
        return Topic(self, self._run(call, timeout).name)

    def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention_time: Retention = None,
        retention_bytes: int | None = None,
        timeout: float | None = None,
    ) -> TopicInfo:
        """Change what is not None: more partitions, another retention (0: none). With more
        partitions a key may go to another one than before."""
        call = topics.alter(name, partitions, retention_time, retention_bytes)
        return TopicInfo.of(self._run(call, timeout))

    def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        """What a topic is; raises `NotFound`."""
        return TopicInfo.of(self._run(topics.describe(name), timeout))

    def list_topics(self, *, timeout: float | None = None) -> list[str]:
        """The full names of all topics, in order."""
        return self._run(topics.names(), timeout)

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic and its messages; raises `NotFound`."""
        self._run(topics.delete(name), timeout)

    def list_groups(self, *, timeout: float | None = None) -> list[str]:
        """The names of all consumer groups, in order."""
        return self._run(operations.list_groups(), timeout)

    def describe_group(self, group: str, *, timeout: float | None = None) -> GroupInfo:
        """The members of a group, who reads what, and how far behind."""
        return self._run(operations.describe_group(group), timeout)

    def seek_group(
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
        return self._run(operations.seek_group(group, topic, partition, offset), timeout)

    # The cluster.

    def explain(self, key: Data, *, timeout: float | None = None) -> Route:
        """Where a key is, and why."""
        return self._run(operations.explain(key), timeout)

    def status(self, *, timeout: float | None = None) -> Status:
        """How the shards of the node are that answers."""
        return self._run(operations.status(), timeout)

    def topology(self, *, timeout: float | None = None) -> Topology:
        """Where everything is."""
        return self._run(operations.topology(), timeout)

    def add_member(self, node: int, address: str, *, timeout: float | None = None) -> int:
        """Let a node, whose router is at `address`, be a member of every shard's group; returns
        the version of the wish. It comes true as the node catches up: see `topology`."""
        return self._run(operations.add_member(node, address), timeout)

    def remove_member(self, node: int, *, timeout: float | None = None) -> int:
        """Take a node out of every shard's group; returns the version of the wish."""
        return self._run(operations.remove_member(node), timeout)

    def transfer_leader(self, shard: int, node: int, *, timeout: float | None = None) -> int:
        """Let a node lead a shard, until the next election; returns the term it leads in."""
        return self._run(operations.transfer_leader(shard, node), timeout)

    def rebalance(self, *, timeout: float | None = None) -> int:
        """Let every shard's lead go back to where it belongs."""
        return self._run(operations.rebalance(), timeout)

    def close(self) -> None:
        """Close all connections; calls of other threads that are under way fail."""
        self._closed = True
        with self._opening:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:
            self.close()

    # Inside.

    def _run(self, call: Call[T], timeout: float | None, more_s: float = 0.0) -> T:
        timeout_s = self._timeout_s if timeout is None else to_timeout_s(timeout, 0.0)
        (self._engine or self._connected()).run(call, timeout_s + more_s)
        return call.result()

    def _timeout(self, timeout: float | None) -> float:
        return to_timeout_s(timeout, self._timeout_s)

    def _table(self, epoch_min: int, timeout_s: float) -> PlacementTable:
        engine = self._connected()
        call = TableCall(epoch_min)
        engine.run(call, timeout_s)
        return call.result()

    def _connected(self) -> Engine:
        with self._opening:
            if self._closed:
                raise InvalidRequest("this client is closed; make a new one")
            if self._engine is None:
                self._engine = Engine(self._seeds)
            return self._engine

    def after_fork(self) -> None:
        """In the child: the parent's sockets and locks are left alone, and its id too."""
        forks.leave_behind(self._engine)
        self._engine = None
        self._opening = threading.Lock()
