"""The engine of `Client`: one core, its links, and the threads that wait for calls.

One rule: whoever holds the mutex may use core and sockets; nobody sleeps with it. Of the waiting
threads one is the listener: it sleeps on the file descriptors, the others on locks of their own.
A thread that sends also reads what has come, so it may finish a call of the listener, and then
wakes it through a pipe.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from collections.abc import Callable, Sequence
from random import Random
from time import monotonic
from typing import Any

from shardnode.client.calls import Alarm, Call
from shardnode.client.core import Core
from shardnode.client.links import Link, Links
from shardnode.wire.errors import InvalidRequest

Enough = Callable[[list[bool]], bool]


class _Sleeper:
    """A thread that waits while another one listens."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self) -> None:
        self._lock.acquire()

    def wake(self) -> None:
        """Under the mutex; waking twice is harmless."""
        if self._lock.locked():
            self._lock.release()


class Engine:
    """Runs calls for any number of threads of one process."""

    def __init__(self, seeds: Sequence[str]) -> None:
        self.core = Core(seeds, random=Random(), new_client_id=lambda: os.urandom(16))
        self._links = Links(self.core, self._register)
        self._mutex = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._listening = False
        self._listens_until = 0.0
        self._sleepers: dict[_Sleeper, None] = {}
        self._closed = False

    def run(self, call: Call[Any], timeout_s: float) -> None:
        """Start a call and wait until it is done."""
        self.start((call,), timeout_s)
        if not call.done:
            self.wait((call,))

    def start(self, calls: Sequence[Call[Any]], timeout_s: float) -> None:
        """Start calls without waiting for them."""
        with self._mutex:
            if self._closed:
                raise InvalidRequest("this client is closed; make a new one")
            now = monotonic()
            for call in calls:
                self.core.start(call, now, timeout_s)
            self._turn(now, listener=False)
            if self._listening:
                wake_at = self.core.wake_at()
                if wake_at is not None and wake_at < self._listens_until:
                    self._poke()

    def extend(self, calls: Sequence[Call[Any]], timeout_s: float) -> None:
        """Calls that were started ahead are waited for from now on."""
        with self._mutex:
            now = monotonic()
            for call in calls:
                self.core.extend(call, now, timeout_s)

    def cancel(self, calls: Sequence[Call[Any]]) -> None:
        """Nobody waits for these any more."""
        with self._mutex:
            if not self._closed:
                for call in calls:
                    self.core.cancel(call, monotonic())

    def ring(self, alarm: Alarm) -> None:
        """End an alarm before its time, for whoever waits for it."""
        with self._mutex:
            if not alarm.done and not self._closed:
                alarm.succeed(self.core, None)
                self._turn(monotonic(), listener=False)

    def wait(self, calls: Sequence[Call[Any]], enough: Enough = all, *, keep: bool = False) -> None:
        """Until `all` or `any` of them are done. Interrupted, it gives the calls up, unless it
        shall `keep` them."""
        try:
            while not self._wait_once(calls, enough):
                pass
        except BaseException:
            if not keep:
                self.cancel(calls)
            raise

    def _wait_once(self, calls: Sequence[Call[Any]], enough: Enough) -> bool:
        """Listen, or sleep while another thread does; whether the calls are done."""
        with self._mutex:
            if enough([call.done for call in calls]):
                self._pass_on()
                return True
            sleeper = _Sleeper() if self._listening else None
            for call in calls:
                call.waiter = sleeper.wake if sleeper else None
            if sleeper is None:
                self._listening = True
            else:
                self._sleepers[sleeper] = None
        try:
            if sleeper is None:
                self._listen(calls, enough)
            else:
                sleeper.sleep()
        finally:
            with self._mutex:
                if sleeper is None:
                    self._listening = False
                    self._pass_on()
                    if self._closed:
                        self._dispose()
                else:
                    del self._sleepers[sleeper]
        return False

    def _listen(self, calls: Sequence[Call[Any]], enough: Enough) -> None:
        """Take in what comes, for everybody, until the own calls are done."""
        while True:
            with self._mutex:
                if enough([call.done for call in calls]):
                    return  # closing ends all calls too
                wake_at = self.core.wake_at()
                self._listens_until = float("inf") if wake_at is None else wake_at
            timeout = None if wake_at is None else max(0.0, wake_at - monotonic())
            ready = self._selector.select(timeout)
            with self._mutex:
                if self._closed:
                    return
                for key, _ in ready:
                    if key.data is None:
                        os.read(self._wake_read, 1024)
                    else:
                        link, is_event = key.data
                        self._links.touch(link, is_event=is_event)
                self._turn(monotonic(), listener=True)

    def _turn(self, now: float, *, listener: bool) -> None:
        """Send, receive, do what is due, wake those whose calls are done. Under the mutex."""
        core = self.core
        self._links.pump(now)
        core.tick(now)
        if core.outbox:
            self._links.pump(now)
        if not core.finished:
            return
        for call in core.finished:
            if call.waiter is not None:
                call.waiter()
            elif self._listening and not listener:
                self._poke()
        core.finished.clear()

    def _pass_on(self) -> None:
        """Somebody has to listen while anybody waits. Under the mutex."""
        if not self._listening and self._sleepers:
            next(iter(self._sleepers)).wake()

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._wake_write, b"!")

    def _register(self, link: Link) -> None:
        self._selector.register(link.fileno, selectors.EVENT_READ, (link, False))
        self._selector.register(link.events_fileno, selectors.EVENT_READ, (link, True))

    def close(self) -> None:
        """Fail what is under way and close every socket."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            self.core.give_up("the client was closed", monotonic())
            for call in self.core.finished:
                if call.waiter is not None:
                    call.waiter()
            self.core.finished.clear()
            if self._listening:
                self._poke()  # the listener disposes of what it sleeps on
            else:
                self._dispose()

    def _dispose(self) -> None:
        self._selector.close()
        self._links.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
