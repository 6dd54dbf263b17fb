"""The engine of `AsyncClient`: one core and its links in one event loop.

One rule: everything happens in that loop, in turns. What a turn starts is sent in it, and a call
that ends in it wakes its waiter before the loop goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from shardnode.client.appending import Appender
from shardnode.client.batching import Batcher
from shardnode.client.calls import Alarm, Call
from shardnode.client.core import Core
from shardnode.client.links import Link, Links
from shardnode.wire.errors import InvalidRequest, Unavailable

T = TypeVar("T")


class AsyncEngine:
    """One core and its links in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seeds: Sequence[str]) -> None:
        self.loop = loop
        self.core = Core(seeds, random=Random(), new_client_id=lambda: os.urandom(16))
        self.batcher = Batcher(loop, self)
        self.appender = Appender(loop, self)
        self._links = Links(self.core, self._register)
        self._filenos: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._in_turn = False
        self._is_closed = False

    async def run(self, call: Call[T], timeout_s: float) -> T:
        """Start a call and wait until it is done."""
        self.start(call, timeout_s)
        await self.wait([call], all)
        return call.result()

    def start(self, call: Call[Any], timeout_s: float, *, turn: bool = True) -> None:
        """Start a call without waiting for it."""
        if self._is_closed:
            raise InvalidRequest("this client is closed; make a new one")
        self.core.start(call, self.loop.time(), timeout_s)
        if turn:
            self.turn()

    def start_all(self, calls: Sequence[Call[Any]], timeout_s: float) -> None:
        """Start several calls together."""
        for call in calls:
            self.start(call, timeout_s, turn=False)
        self.turn()

    def extend(self, calls: Sequence[Call[Any]], timeout_s: float) -> None:
        """Calls that were started ahead are waited for from now on."""
        for call in calls:
            self.core.extend(call, self.loop.time(), timeout_s)

    def cancel(self, calls: Sequence[Call[Any]]) -> None:
        """Nobody waits for these any more."""
        for call in calls:
            self.core.cancel(call, self.loop.time())

    def ring(self, alarm: Alarm) -> None:
        """End an alarm before its time, for whoever waits for it."""
        if not alarm.done and not self._is_closed:
            alarm.succeed(self.core, None)
            self.turn()

    async def wait(
        self, calls: Sequence[Call[Any]], enough: Any = all, *, keep: bool = False
    ) -> None:
        """Until `all` or `any` of them are done. Cancelled, it gives the calls up, unless it shall
        `keep` them."""
        try:
            while not enough([call.done for call in calls]):
                future: asyncio.Future[None] = self.loop.create_future()

                def wake(future: asyncio.Future[None] = future) -> None:
                    if not future.done():
                        future.set_result(None)

                for call in calls:
                    call.waiter = wake
                await future
        except BaseException:
            if not keep:
                self.cancel([call for call in calls if not call.done])
            raise

    def turn(self) -> None:
        """Send, receive, do what is due, wake those whose calls are done."""
        if self._in_turn:  # a call ended inside a turn, and its waiter started another one
            return
        self._in_turn = True
        core, now = self.core, self.loop.time()
        try:
            while True:
                core.tick(now)
                self._links.pump(now)  # what is due now leaves now
                if not core.finished:
                    break
                finished, core.finished = core.finished, []
                for call in finished:
                    if call.waiter is not None:
                        call.waiter()
        finally:
            self._in_turn = False
        self._set_timer()

    def _set_timer(self) -> None:
        wake_at = self.core.wake_at()
        timer = self._timer
        if wake_at is None or (timer is not None and timer.when() <= wake_at):
            return  # one that fires too early sets the next
        if timer is not None:
            timer.cancel()
        self._timer = self.loop.call_at(wake_at, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.turn()

    def _register(self, link: Link) -> None:
        self._filenos += [link.fileno, link.events_fileno]
        self.loop.add_reader(link.fileno, self._readable, link, False)
        self.loop.add_reader(link.events_fileno, self._readable, link, True)

    def _readable(self, link: Link, is_event: bool) -> None:
        self._links.touch(link, is_event=is_event)
        self.turn()

    def close(self) -> None:
        """Fail what is under way and close every socket. In a closed loop nobody waits."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.loop.is_closed():
            closed = Unavailable("the client was closed; it had no effect")
            self.batcher.close(closed)
            self.appender.close(closed)
            self.core.give_up("the client was closed", self.loop.time())
            for call in self.core.finished:
                if call.waiter is not None:
                    call.waiter()
            for fileno in self._filenos:
                self.loop.remove_reader(fileno)
        self.core.finished.clear()
        self._links.close()
