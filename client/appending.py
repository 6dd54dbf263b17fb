"""Appending: concurrent appends of one event loop become one request for each partition.

One rule: batches travel together and stay what they are. Each is stored as its caller packed it, in
the order in which they were called; only those of one partition share a request.

What is called in one turn of the loop is sent in the next. A partition has at most `UNDER_WAY_MAX`
requests; what comes meanwhile waits, and travels together when the shard is slow.
"""

from __future__ import annotations

import copy
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shardnode.client.calls import Call
from shardnode.client.messages import Position
from shardnode.client.topic_calls import AppendCall, AppendManyCall
from shardnode.wire import limits
from shardnode.wire.errors import DeadlineExceeded, Denied, InvalidRequest, ShardnodeError

if TYPE_CHECKING:
    from shardnode.client.engine_aio import AsyncEngine

UNDER_WAY_MAX = 2
"""One that the shard works on, and one on its way."""

SPREAD = 0.25
"""Batches travel together if their deadlines differ by no more than this part of their timeout,
because a request has one deadline: that of its oldest batch."""

BYTES_MAX = 900000
"""Of one request: it costs little beside its bytes by then, and others have their turn."""


class Op(NamedTuple):
    """An append that waits."""

    call: AppendCall
    """It, when it goes alone."""
    timeout_s: float
    deadline: float
    future: Future[Position]


class Appender:
    """All partitions that one client appends to in one event loop."""

    def __init__(self, loop: AbstractEventLoop, engine: AsyncEngine) -> None:
        self._loop = loop
        self._engine = engine
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._news: dict[_Lane, None] = {}

    def add(self, call: AppendCall, timeout_s: float) -> Future[Position] | None:
        """Take an append; its future has the result. None: it has to go alone, because its
        partition is not known yet, or its producer numbers its batches."""
        partition = call.place(self._engine.core)
        if partition is None:
            return None
        loop = self._loop
        future: Future[Position] = loop.create_future()
        lane = self._lanes.get((call.name, partition))
        if lane is None:
            lane = self._lanes[call.name, partition] = _Lane(self, call.name, partition)
        if not self._news:
            loop.call_soon(self._flush)
        self._news[lane] = None
        lane.queue.append(Op(call, timeout_s, loop.time() + timeout_s, future))
        return future

    def close(self, error: ShardnodeError) -> None:
        """Fail what has not been sent."""
        for lane in self._lanes.values():
            lane.close(error)
        self._lanes.clear()

    def _flush(self) -> None:
        lanes, self._news = self._news, {}
        for lane in lanes:
            lane.pump()
        self._engine.turn()

    def start(self, call: Call[Any], deadline: float) -> None:
        """Send a request with the next turn."""
        self._engine.start(call, max(0.001, deadline - self._loop.time()), turn=False)

    def call_at(self, when: float, lane: _Lane) -> TimerHandle:
        """Let a lane look at what waits too long."""
        return self._loop.call_at(when, lane.expire, self._loop)

    def forget(self, lane: _Lane) -> None:
        """Nothing waits there, and nothing is under way."""
        self._lanes.pop((lane.name, lane.partition), None)


class _Lane:
    """What waits for one partition."""

    def __init__(self, appender: Appender, name: str, partition: int) -> None:
        self.name = name
        self.partition = partition
        self.queue: list[Op] = []
        self._appender = appender
        self._under_way = 0
        self._timer: TimerHandle | None = None

    def pump(self) -> None:
        """Send what may go now."""
        while self.queue and self._under_way < UNDER_WAY_MAX:
            size = self._fitting()
            ops, self.queue = self.queue[:size], self.queue[size:]
            self._send([op for op in ops if not op.future.done()])  # its caller may have gone
        if self.queue:
            if self._timer is None:
                self._timer = self._appender.call_at(self.queue[0].deadline, self)
        elif not self._under_way:
            self.close(None)
            self._appender.forget(self)

    def close(self, error: ShardnodeError | None) -> None:
        """Nothing is sent from here any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queue, self.queue = self.queue, []
        for op in queue:
            assert error is not None, "only an empty lane ends without one"
            _fail(op, error)

    def _fitting(self) -> int:
        """How many of those that wait go into one request."""
        first = self.queue[0]
        until, room = first.deadline + first.timeout_s * SPREAD, BYTES_MAX
        for number, op in enumerate(self.queue[: limits.append_batches_max]):
            room -= len(op.call.data)
            if number and (room < 0 or op.deadline > until):
                return number
        return min(len(self.queue), limits.append_batches_max)

    def _send(self, ops: Sequence[Op]) -> None:
        if not ops:
            return
        call: Call[Any] = ops[0].call
        if len(ops) > 1:
            call = AppendManyCall(self.name, self.partition, [op.call for op in ops])
        self._under_way += 1
        call.waiter = lambda: self._done(call, ops)
        self._appender.start(call, ops[0].deadline)

    def _done(self, call: Call[Any], ops: Sequence[Op]) -> None:
        self._under_way -= 1
        try:
            found: Position = call.result()
        except (Denied, InvalidRequest) as error:
            if len(ops) == 1:
                _fail(ops[0], error)
            else:  # one of them was refused, which had no effect on any: each for itself, then
                for op in ops:
                    self._send([op])
        except ShardnodeError as error:
            for op in ops:
                _fail(op, error)
        else:
            partition, offset = found
            for op in ops:
                if not op.future.done():
                    op.future.set_result(Position(partition, offset))
                offset += op.call.size
        self.pump()

    def expire(self, loop: AbstractEventLoop) -> None:
        """Tell those who waited too long that nothing happened."""
        self._timer = None
        now = loop.time()
        late = [op for op in self.queue if op.deadline <= now]
        self.queue = [op for op in self.queue if op.deadline > now]
        text = f"partition {self.partition} of {self.name} was busy with earlier batches for too"
        for op in late:
            _fail(op, DeadlineExceeded(f"{text} long; it had no effect"))
        self.pump()


def _fail(op: Op, error: ShardnodeError) -> None:
    """Each caller gets a copy: an exception collects the traces of all who raise it."""
    if not op.future.done():
        op.future.set_exception(copy.copy(error))
