"""`Consumer`: reads the partitions of a topic one after another, for one thread.

One rule: a consumer of a group lives as long as its process, not as long as its caller finds time.
A thread of its own sends the signs of life, and hears what is taken away and given; everything
else happens in the thread that polls.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
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
from shardnode.client.membership import New
from shardnode.client.messages import Message
from shardnode.client.offsets import Offset, to_start
from shardnode.wire.errors import ShardnodeError

if TYPE_CHECKING:
    from shardnode.client.engine import Engine
    from shardnode.client.sync import Client

T = TypeVar("T")

STOP_S = 5.0
"""How long closing waits for the thread, which wakes at once."""


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _stop_all() -> None:
    """Before Python ends: it would freeze these threads in the middle of anything, with locks that
    others then wait for."""
    for keeper in list(_keepers):
        keeper.stop()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_keepers.clear)


class Bell:
    """Wakes one thread. Rung before that thread sleeps, it does not sleep."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._alarm: Alarm | None = None
        self._is_rung = False

    def clear(self) -> None:
        """Before the sleeper looks whether there is anything to do."""
        with self._lock:
            self._is_rung = False

    def ring(self) -> None:
        with self._lock:
            self._is_rung = True
            alarm = self._alarm
        if alarm is not None:
            self._engine.ring(alarm)

    def armed(self, until: float) -> Alarm | None:
        """An alarm for that time or earlier; None if the bell was rung since `clear`."""
        now = monotonic()
        with self._lock:
            if self._is_rung:
                return None
            old = self._alarm
            if old is None or old.done or old.deadline > until:
                if old is not None and not old.done:
                    self._engine.cancel([old])
                self._alarm = Alarm()
                self._engine.start([self._alarm], min(max(until - now, 0.0), NAP_S))
            return self._alarm


class Keeper:
    """The thread that keeps a member of a group alive. It knows nothing of the consumer, which may
    be forgotten without a word; then it ends."""

    def __init__(
        self, engine: Engine, assigner: Assigner, lock: threading.Lock, told: Bell
    ) -> None:
        self.error: BaseException | None = None
        """Why it ended, if nobody asked it to."""
        self._engine = engine
        self._assigner = assigner
        self._lock = lock
        self._told = told
        self._bell = Bell(engine)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="shardnode-consumer", daemon=True)
        self._thread.start()
        _keepers.add(self)

    def wake(self) -> None:
        """There is something to say now."""
        self._bell.ring()

    def forget(self) -> None:
        """Let it end when it wakes the next time. Takes no lock, because the collector of garbage
        calls it, in the middle of anything."""
        self._is_stopping = True

    def stop(self) -> None:
        """Let it end now."""
        self._is_stopping = True
        self._bell.ring()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._bell.clear()
                self._turn()
        except BaseException as error:
            self.error = error  # raised by the next poll
        self._told.ring()

    def _turn(self) -> None:
        assigner = self._assigner
        now = monotonic()
        with self._lock:
            changed = assigner.absorb(now)
            new, dropped = assigner.new_calls(now), assigner.dropped_calls()
            waits, until = assigner.under_way(), assigner.wake_at
        if changed:
            self._told.ring()
        if dropped:
            self._engine.cancel(dropped)
        for call, timeout_s in new:
            self._engine.start([call], timeout_s)
        alarm = self._bell.armed(until)
        if alarm is not None and not self._is_stopping:
            self._engine.wait([*waits, alarm], any, keep=True)


class Consumer:
    """A consumer for one thread; `Topic.consumer` makes one. Close it, or use it in a `with`."""

    def __init__(self, client: Client, topic: str, consuming: Consuming) -> None:
        self.topic = topic
        self.group = consuming.membership.group if consuming.membership else None
        self._client = client
        self._consuming = consuming
        self._state = consuming.state
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._bell: Bell | None = None
        self._keeper: Keeper | None = None

    def poll(self, timeout: float = 1.0, max_messages: int = 1000) -> list[Message]:
        """The next messages, at most so many; an empty list if none came in time. Partitions take
        turns, and each is in order."""
        limit = to_limit(max_messages)
        return self._until(lambda now: self._state.take(limit, now), to_patience_s(timeout)) or []

    def __iter__(self) -> Iterator[Message]:
        """Messages for ever, one by one."""
        state, lock = self._state, self._lock
        while True:
            with lock:
                message = state.pop(monotonic()) if not state.is_hungry else None
            if message is None:
                message = self._until(state.pop, FOREVER_S)
            if message is not None:
                yield message

    def commit(
        self,
        what: Message | Iterable[Message] | None = None,
        *,
        wait: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Say that these messages, or all that were given out, are dealt with: whoever reads their
        partitions next begins behind them. Raises `Conflict` if a partition belongs to another
        member by now; what was read of it since the last commit will be read there again.

        Without `wait` it does not wait for an acknowledgement; an error is raised by a later call.
        """
        engine = self._begun()
        with self._lock:
            calls = self._consuming.new_commits(what)
        engine.start(calls, self._client._timeout(timeout))
        if not wait:
            self._consuming.commits += calls
            return
        engine.wait(calls)
        try:
            with self._lock:
                self._consuming.end_commits(calls)
        finally:
            self._tell_keeper()

    def seek(self, partition: int, offset: Offset) -> None:
        """Go on at an offset, or where `earliest`, `latest`, `last` or a time is now. The group
        learns of it with the next commit."""
        engine = self._begun()
        start = to_start(offset)
        if self._consuming.membership is None:
            self._until(lambda _: partition in self._state.assignment, self._client._timeout(None))
        with self._lock:
            self._state.of(partition)
        at = start.value
        if start.point is not None:
            call = topics.offset(self.topic, partition, offset)
            engine.run(call, self._client._timeout(None))
            at = call.result().offset
        with self._lock:
            self._state.seek(partition, at)

    def position(self, partition: int) -> int:
        """The offset of the next message that it will give out."""
        with self._lock:
            return self._state.of(partition).position

    def committed(self, partition: int, *, timeout: float | None = None) -> int | None:
        """Where the group goes on; None if it never committed."""
        with self._lock:
            call = self._consuming.committed(partition)
        self._begun().run(call, self._client._timeout(timeout))
        return call.result()

    @property
    def assignment(self) -> list[int]:
        """The partitions that it reads now."""
        with self._lock:
            return self._state.assignment

    @property
    def is_at_end(self) -> bool:
        """Whether it has given out all that was there when it last looked."""
        with self._lock:
            return self._state.is_at_end

    def close(self) -> None:
        """Leave the group, and stop reading; what was fetched and not given out is forgotten.
        Raises the error of a commit that nobody waited for."""
        consuming, engine = self._consuming, self._engine
        if consuming.is_closed:
            return
        consuming.is_closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()
        if engine is None:
            return
        assigner = consuming.assigner
        engine.cancel([*self._state.under_way(), *assigner.under_way()])
        if self._bell is not None:
            self._bell.ring()  # for another thread that polls
        commits = list(consuming.commits)
        engine.wait(commits)
        if consuming.membership is not None:
            with suppress(ShardnodeError):  # else its session ends by itself
                engine.run(consuming.membership.leave(), self._client._timeout(None))
        consuming.end_commits(commits)

    def __enter__(self) -> Self:
        self._begun()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        keeper = getattr(self, "_keeper", None)
        if keeper is not None:
            keeper.forget()

    # Inside.

    def _begun(self) -> Engine:
        """The engine; the first call makes a member of it."""
        consuming = self._consuming
        consuming.check()
        if self._engine is None:
            self._engine = self._client._connected()
            self._bell = Bell(self._engine)
            if consuming.membership is not None:
                args = (self._engine, consuming.membership, self._lock, self._bell)
                self._keeper = Keeper(*args)
        if self._keeper is not None and self._keeper.error is not None:
            raise self._keeper.error
        if consuming.commits:
            try:
                with self._lock:
                    consuming.check_commits()
            finally:
                self._tell_keeper()
        return self._engine

    def _tell_keeper(self) -> None:
        """A partition turned out to be somebody else's: the coordinator shall hear of it."""
        if self._keeper is not None and self._state.fenced:
            self._keeper.wake()

    def _until(self, take: Callable[[float], T], timeout_s: float) -> T | None:
        """Fetch and take until there is something, or time is up."""
        until = monotonic() + timeout_s
        has_waited = False
        while True:
            engine, bell = self._begun(), self._bell
            assert bell is not None
            bell.clear()
            now = monotonic()
            with self._lock:
                self._state.absorb()
                assigned, waits, wake_at = self._assign(now)
                found = take(now)
                fetches, dropped = self._state.new_calls(), self._state.dropped_calls()
                waits += self._state.under_way()
                error = None if found else self._state.take_error()
            if dropped:
                engine.cancel(dropped)
            for call, call_s in assigned:
                engine.start([call], call_s)
            for fetch in fetches:
                engine.start([fetch], self._client._timeout(None) + fetch.wait_s)
            if found:
                return found
            if error is not None:
                raise error
            if has_waited and now >= until:
                return None
            alarm = bell.armed(min(until, wake_at))
            if alarm is not None:
                engine.wait([*waits, alarm], any, keep=True)
            has_waited = True

    def _assign(self, now: float) -> tuple[Sequence[New], list[Call[Any]], float]:
        """Without a group nobody else does it: calls to start, calls to wait for, when to look
        again."""
        assigner = self._consuming.assigner
        if self._keeper is not None:
            return (), [], FOREVER_S + now
        assigner.absorb(now)
        return assigner.new_calls(now), list(assigner.under_way()), assigner.wake_at
