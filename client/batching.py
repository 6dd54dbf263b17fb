"""Batching: concurrent puts, gets and deletes of one event loop become one request per shard.

One rule: two operations on one key are never under way together, unless both only read. So the
keys of a request are distinct, and operations on a key run in the order in which they were called.

What is called in one turn of the loop is sent in the next. A shard has at most `UNDER_WAY_MAX`
batches; what comes meanwhile waits, and makes the next batch larger when the shard is slow.
"""

from __future__ import annotations

import copy
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shardnode.client import operations
from shardnode.client.calls import Call, TableCall
from shardnode.client.many import GetManyCall, PutManyCall, column, groups_of
from shardnode.client.transactions import Do
from shardnode.client.values import Transaction
from shardnode.wire import limits
from shardnode.wire.errors import DeadlineExceeded, Denied, InvalidRequest, ShardnodeError
from shardnode.wire.kinds import Consistency

if TYPE_CHECKING:
    from shardnode.client.engine_aio import AsyncEngine

UNDER_WAY_MAX = 2
"""One that the shard works on, and one on its way."""

SPREAD = 0.25
"""Operations share a batch if their deadlines differ by no more than this part of their timeout,
because a batch has one deadline: that of its oldest operation."""


class Verb(IntEnum):
    """What can be batched."""

    PUT = 1
    GET = 2
    DELETE = 3


class Op(NamedTuple):
    """One operation that waits."""

    verb: Verb
    option: int
    """The TTL of a put, the consistency of a get."""
    key: bytes
    value: bytes
    timeout_s: float
    deadline: float
    future: Future[Any]


class _Batch(NamedTuple):
    """What is under way."""

    keys: set[bytes]
    writes: bool


class Batcher:
    """All lanes of one client in one event loop."""

    def __init__(self, loop: AbstractEventLoop, engine: AsyncEngine) -> None:
        self._loop = loop
        self._engine = engine
        self._pending: list[Op] = []
        self._lanes: dict[int, _Lane] = {}
        self._asking = False

    def add(
        self, verb: Verb, option: int, key: bytes, value: bytes, timeout_s: float
    ) -> Future[Any]:
        """Take an operation with a valid key and value; its future has the result."""
        loop = self._loop
        future: Future[Any] = loop.create_future()
        if not self._pending and not self._asking:
            loop.call_soon(self._flush)
        deadline = loop.time() + timeout_s
        self._pending.append(Op(verb, option, key, value, timeout_s, deadline, future))
        return future

    def close(self, error: ShardnodeError) -> None:
        """Fail what has not been sent."""
        waiting, self._pending = self._pending, []
        for lane in self._lanes.values():
            waiting += lane.close()
        for op in waiting:
            fail(op, error)

    def _flush(self) -> None:
        """Hand what was called to the lanes of its shards."""
        pending = self._pending
        if not pending or self._asking:
            return
        table = self._engine.core.routes.table
        if table is None:
            self._ask(max(op.timeout_s for op in pending))
            return
        self._pending = []
        groups = groups_of([op.key for op in pending], table)
        for shard, positions in groups.items():
            lane = self._lanes.get(shard)
            if lane is None:
                lane = self._lanes[shard] = _Lane(self._loop, self._engine, shard)
            lane.queue.extend(column(pending, positions))
            lane.pump()
        self._engine.turn()

    def _ask(self, timeout_s: float) -> None:
        """Get the table first."""
        call = TableCall()

        def answered() -> None:
            self._asking = False
            try:
                call.result()
            except ShardnodeError as error:
                pending, self._pending = self._pending, []
                for op in pending:
                    fail(op, error)
            else:
                self._flush()

        self._asking = True
        call.waiter = answered
        self._engine.start(call, timeout_s)


class _Lane:
    """What waits for one shard, and what is under way to it."""

    def __init__(self, loop: AbstractEventLoop, engine: AsyncEngine, shard: int) -> None:
        self.queue: list[Op] = []
        self._loop = loop
        self._engine = engine
        self._shard = shard
        self._batches: dict[Call[Any], _Batch] = {}
        self._timer: TimerHandle | None = None

    def pump(self) -> None:
        """Send what may go now."""
        while self.queue and len(self._batches) < UNDER_WAY_MAX:
            chosen = self._choose()
            if not chosen:
                break
            for ops in _alike(chosen):
                self._send(ops)
        if self.queue and self._timer is None:
            self._timer = self._loop.call_at(self.queue[0].deadline, self._expire)

    def close(self) -> list[Op]:
        """Give back what waits."""
        if self._timer is not None:
            self._timer.cancel()
        queue, self.queue = self.queue, []
        return queue

    def _choose(self) -> list[Op]:
        """Take operations from the queue that go well together, in order."""
        queue = self.queue
        first, last = queue[0], queue[-1]
        if len(queue) <= limits.batch_keys_max and (
            last.deadline - first.deadline <= first.timeout_s * SPREAD
        ):
            keys = {op.key for op in queue}
            if len(keys) == len(queue) and all(
                batch.keys.isdisjoint(keys) for batch in self._batches.values()
            ):
                self.queue = []
                return queue
        return self._choose_one_by_one()

    def _choose_one_by_one(self) -> list[Op]:
        chosen: list[Op] = []
        left: list[Op] = []
        read: set[bytes] = set()
        taken: set[bytes] = set()
        """Keys that a write of this choice has, or for which an operation already waits."""
        for batch in self._batches.values():
            (taken if batch.writes else read).update(batch.keys)
        until = self.queue[0].deadline + self.queue[0].timeout_s * SPREAD
        for op in self.queue:
            key, writes = op.key, op.verb is not Verb.GET
            if (
                key in taken
                or (writes and key in read)
                or op.deadline > until
                or len(chosen) == limits.batch_keys_max
            ):
                left.append(op)
                taken.add(key)
            else:
                chosen.append(op)
                (taken if writes else read).add(key)
        self.queue = left
        return chosen

    def _send(self, ops: Sequence[Op]) -> None:
        call = _call_for(ops, self._shard)
        first = ops[0]
        self._batches[call] = _Batch({op.key for op in ops}, first.verb is not Verb.GET)
        call.waiter = lambda: self._done(call, ops)
        self._engine.start(call, max(0.001, first.deadline - self._loop.time()), turn=False)

    def _done(self, call: Call[Any], ops: Sequence[Op]) -> None:
        del self._batches[call]
        try:
            result = call.result()
        except (Denied, InvalidRequest) as error:
            self._part(ops, error)
        except ShardnodeError as error:
            _settle_in_part(ops, error)
        else:
            for op, value in zip(ops, _results(ops, result), strict=True):
                if not op.future.done():
                    op.future.set_result(value)
        self.pump()

    def _part(self, ops: Sequence[Op], error: ShardnodeError) -> None:
        """One of them was refused, which had no effect on any: each for itself, then."""
        if len(ops) == 1:
            fail(ops[0], error.failed.get(ops[0].key, error))
            return
        for op in ops:
            if op.key in error.succeeded:
                succeed(op, error.succeeded[op.key])
            else:
                self._send([op])

    def _expire(self) -> None:
        """Tell those who waited too long that nothing happened."""
        self._timer = None
        now = self._loop.time()
        queue, self.queue = self.queue, []
        for op in queue:
            if op.deadline > now:
                self.queue.append(op)
            else:
                text = "shard {} was busy with earlier operations for too long; it had no effect"
                fail(op, DeadlineExceeded(text.format(self._shard)))
        self.pump()


def _alike(ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
    """Operations that one request can hold."""
    first = ops[0][:2]
    if all(op[:2] == first for op in ops):
        return [ops]
    groups: dict[tuple[Any, ...], list[Op]] = {}
    for op in ops:
        groups.setdefault(op[:2], []).append(op)
    return groups.values()


def _call_for(ops: Sequence[Op], shard: int) -> Call[Any]:
    verb, option, key, *_ = ops[0]
    if verb is Verb.PUT:
        put = PutManyCall([op.key for op in ops], [op.value for op in ops], option)
        put.placed = shard
        return put
    if verb is Verb.GET:
        get = GetManyCall([op.key for op in ops], Consistency(option))
        get.placed = shard
        return get
    if len(ops) == 1:
        return operations.delete(key)
    # A DELETE_MANY only counts; a transaction tells which keys existed.
    return operations.transact((), [Do.delete(op.key) for op in ops], ())


def _results(ops: Sequence[Op], result: Any) -> Sequence[Any]:
    if isinstance(result, Transaction):
        return [int(done.version > 0) for done in result.results]
    return result if ops[0].verb is not Verb.DELETE else [result]


def _settle_in_part(ops: Sequence[Op], error: ShardnodeError) -> None:
    for op in ops:
        if op.key in error.succeeded and op.key not in error.failed:
            succeed(op, error.succeeded[op.key])
        else:
            fail(op, error.failed.get(op.key, error))


def succeed(op: Op, value: object) -> None:
    """Its caller may have gone."""
    if not op.future.done():
        op.future.set_result(value)


def fail(op: Op, error: ShardnodeError) -> None:
    """Each caller gets a copy: an exception collects the traces of all who raise it."""
    if not op.future.done():
        own = copy.copy(error)
        own.succeeded, own.failed = {}, {}
        op.future.set_exception(own)
