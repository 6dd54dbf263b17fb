"""`AsyncConsumer`: the methods of `Consumer`, awaited.

One rule: a consumer of a group lives as long as its event loop turns. A task of its own sends the
signs of life; work that blocks the loop for longer than `session_timeout` costs the membership.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from shardnode.client import topics
from shardnode.client.calls import Alarm, Call
from shardnode.client.consuming import (
    FOREVER_S,
    NAP_S,
    Assigner,
    Consuming,
    to_limit,
    to_patience_s,
)
from shardnode.client.messages import Message
from shardnode.client.offsets import Offset, to_start
from shardnode.wire.errors import ShardnodeError

if TYPE_CHECKING:
    from shardnode.client.aio import AsyncClient
    from shardnode.client.engine_aio import AsyncEngine

T = TypeVar("T")


class Bell:
    """Wakes one task. Rung before that task sleeps, it does not sleep."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._alarm: Alarm | None = None
        self._is_rung = False

    def clear(self) -> None:
        """Before the sleeper looks whether there is anything to do."""
        self._is_rung = False

    def ring(self) -> None:
        self._is_rung = True
        if self._alarm is not None:
            self._engine.ring(self._alarm)

    def armed(self, until: float) -> Alarm | None:
        """An alarm for that time or earlier; None if the bell was rung since `clear`."""
        if self._is_rung:
            return None
        old = self._alarm
        if old is None or old.done or old.deadline > until:
            if old is not None and not old.done:
                self._engine.cancel([old])
            self._alarm = Alarm()
            left = until - self._engine.loop.time()
            self._engine.start(self._alarm, min(max(left, 0.0), NAP_S))
        return self._alarm


async def keep(engine: AsyncEngine, assigner: Assigner, bell: Bell, told: Bell) -> None:
    """Keep a member of a group alive, until cancelled. It knows nothing of the consumer, which may
    be forgotten without a word."""
    while True:
        bell.clear()
        now = engine.loop.time()
        changed = assigner.absorb(now)
        new, dropped = assigner.new_calls(now), assigner.dropped_calls()
        if changed:
            told.ring()
        engine.cancel(dropped)
        for call, timeout_s in new:
            engine.start(call, timeout_s)
        alarm = bell.armed(assigner.wake_at)
        if alarm is not None:
            await engine.wait([*assigner.under_way(), alarm], any, keep=True)


def _ringing(bell: Bell) -> Callable[[object], None]:
    """Rings it whatever happened."""
    return lambda _: bell.ring()


class AsyncConsumer:
    """A consumer for one task; `AsyncTopic.consumer` makes one. Close it, or use it in an `async
    with`. See `Consumer` for what the methods mean."""

    def __init__(self, client: AsyncClient, topic: str, consuming: Consuming) -> None:
        self.topic = topic
        self.group = consuming.membership.group if consuming.membership else None
        self._client = client
        self._consuming = consuming
        self._state = consuming.state
        self._engine: AsyncEngine | None = None
        self._bell: Bell | None = None
        self._keeper_bell: Bell | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def poll(self, timeout: float = 1.0, max_messages: int = 1000) -> list[Message]:
        """The next messages, at most so many; an empty list if none came in time."""
        limit = to_limit(max_messages)
        patience_s = to_patience_s(timeout)
        return await self._until(lambda now: self._state.take(limit, now), patience_s) or []

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages for ever, one by one."""
        state = self._state
        while True:
            engine = self._begun()
            message = state.pop(engine.loop.time()) if not state.is_hungry else None
            if message is None:
                message = await self._until(state.pop, FOREVER_S)
            if message is not None:
                yield message

    async def commit(
        self,
        what: Message | Iterable[Message] | None = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Say that these messages, or all that were given out, are dealt with."""
        engine = self._begun()
        calls = self._consuming.new_commits(what)
        engine.start_all(calls, self._client._timeout(timeout))
        if not wait:
            self._consuming.commits += calls
            return
        await engine.wait(calls)
        try:
            self._consuming.end_commits(calls)
        finally:
            self._tell_keeper()

    async def seek(self, partition: int, offset: Offset) -> None:
        """Go on at an offset, or where `earliest`, `latest`, `last` or a time is now."""
        engine = self._begun()
        start = to_start(offset)
        timeout_s = self._client._timeout(None)
        if self._consuming.membership is None:
            await self._until(lambda _: partition in self._state.assignment, timeout_s)
        self._state.of(partition)
        at = start.value
        if start.point is not None:
            found = await engine.run(topics.offset(self.topic, partition, offset), timeout_s)
            at = found.offset
        self._state.seek(partition, at)

    def position(self, partition: int) -> int:
        """The offset of the next message that it will give out."""
        return self._state.of(partition).position

    async def committed(self, partition: int, *, timeout: float | None = None) -> int | None:
        """Where the group goes on; None if it never committed."""
        call = self._consuming.committed(partition)
        return await self._begun().run(call, self._client._timeout(timeout))

    @property
    def assignment(self) -> list[int]:
        """The partitions that it reads now."""
        return self._state.assignment

    @property
    def is_at_end(self) -> bool:
        """Whether it has given out all that was there when it last looked."""
        return self._state.is_at_end

    async def close(self) -> None:
        """Leave the group, and stop reading."""
        consuming, engine = self._consuming, self._engine
        if consuming.is_closed:
            return
        consuming.is_closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if engine is None:
            return
        engine.cancel([*self._state.under_way(), *consuming.assigner.under_way()])
        if self._bell is not None:
            self._bell.ring()  # for another task that polls
        commits = list(consuming.commits)
        await engine.wait(commits)
        if consuming.membership is not None:
            with suppress(ShardnodeError):  # else its session ends by itself
                await engine.run(consuming.membership.leave(), self._client._timeout(None))
        consuming.end_commits(commits)

    async def __aenter__(self) -> Self:
        self._begun()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self) -> None:
        keeper = getattr(self, "_keeper", None)
        if keeper is not None and not keeper.get_loop().is_closed():
            keeper.cancel()

    # Inside.

    def _begun(self) -> AsyncEngine:
        """The engine; the first call makes a member of it."""
        consuming = self._consuming
        consuming.check()
        if self._engine is None:
            self._engine = self._client._connected()
            self._bell = Bell(self._engine)
            if consuming.membership is not None:
                self._keeper_bell = Bell(self._engine)
                keeping = keep(self._engine, consuming.membership, self._keeper_bell, self._bell)
                self._keeper = asyncio.ensure_future(keeping)
                self._keeper.add_done_callback(_ringing(self._bell))
        if self._keeper is not None and self._keeper.done():
            self._keeper.result()
        if consuming.commits:
            try:
                consuming.check_commits()
            finally:
                self._tell_keeper()
        return self._engine

    def _tell_keeper(self) -> None:
        """A partition turned out to be somebody else's: the coordinator shall hear of it."""
        if self._keeper_bell is not None and self._state.fenced:
            self._keeper_bell.ring()

    async def _until(self, take: Callable[[float], T], timeout_s: float) -> T | None:
        """Fetch and take until there is something, or time is up."""
        until = self._begun().loop.time() + timeout_s
        has_waited = False
        while True:
            engine, bell, state = self._begun(), self._bell, self._state
            assert bell is not None
            bell.clear()
            now = engine.loop.time()
            state.absorb()
            wake_at = self._assign(engine, now)
            found = take(now)
            fetches = state.new_calls()
            engine.cancel(state.dropped_calls())
            error = None if found else state.take_error()
            for fetch in fetches:
                engine.start(fetch, self._client._timeout(None) + fetch.wait_s)
            if found:
                return found
            if error is not None:
                raise error
            if has_waited and now >= until:
                return None
            alarm = bell.armed(min(until, wake_at))
            if alarm is not None:
                waits: list[Call[Any]] = [alarm, *state.under_way()]
                if self._keeper is None:
                    waits += self._consuming.assigner.under_way()
                await engine.wait(waits, any, keep=True)
            has_waited = True

    def _assign(self, engine: AsyncEngine, now: float) -> float:
        """Without a group nobody else does it; when to look again."""
        assigner = self._consuming.assigner
        if self._keeper is not None:
            return FOREVER_S + now
        assigner.absorb(now)
        for call, call_s in assigner.new_calls(now):
            engine.start(call, call_s)
        return assigner.wake_at
