"""The supervisor: starts the router and the workers, watches them, starts them again, stops them.

    what it sees                    what it does
    ------------------------------  -------------------------------------------------------------
    a child ends                    starts it again, alone, when `supervisor_policy` says so
    a child is silent too long      kills it, which is the case above
    a worker's state changes        tells the router at once, and everything every second
    shard 0's placement table       tells the router and every worker
    … and the nodes that it wants   likewise, and writes them down
    a stop is asked for             the router first, then the workers; kills those that overstay

One thread, one selector: pipes, exits (process handles, never stored numbers) and a wake-up pipe.
It sleeps until one of them or the next due time.

The one rule: only this thread touches children. Others look at `view`, which is replaced whole and
never changed, and ask through `ask_to_stop`.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from shardnode.node.affinity import is_pinned
from shardnode.node.children import BrokenLine, Child
from shardnode.node.members import Members
from shardnode.node.supervisor_member import ROUTER, Member, Post
from shardnode.node.supervisor_policy import Pace, Restarts, Row, not_ready, out_of_service
from shardnode.wire.errors import ShardnodeError
from shardnode.wire.placement import PlacementTable

log = logging.getLogger("shardnode.node")

REFRESH_S = 1.0
"""The router hears of every index at least this often."""

NEWS = ("state", "role", "leader", "term", "reached", "error")
"""A change of one of these in a line is told at once; the indexes grow all the time."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process as others see it."""

    name: str
    shard: int | None
    pid: int | None
    state: str
    restarts: int
    hangs: int
    silent_s: float
    counters: dict[str, float]
    error: str


@dataclass(frozen=True, slots=True)
class View:
    """The node at one moment. Nobody changes it, so any thread may read it."""

    rows: tuple[Row, ...] = ()
    epoch: int = 0
    missing: tuple[str, ...] = ("nothing is started yet",)
    processes: tuple[ProcessView, ...] = ()

    @property
    def out_of_service(self) -> tuple[str, ...]:
        """Shards that will not serve before somebody has looked, when others do."""
        return out_of_service(self.rows)

    @property
    def serves(self) -> bool:
        """Whether nothing is missing but those."""
        return set(self.missing) <= set(self.out_of_service)

    @property
    def parked(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.processes if each.state == "parked")


@dataclass(frozen=True, slots=True)
class Patience:
    """Times of the supervisor itself."""

    hang_s: float = 5.0
    stop_s: float = 10.0
    router_stop_s: float = 2.0
    """The router's share of a stop."""
    pace: Pace = field(default_factory=Pace)


class Supervisor:
    """Watches over the children of one node, from `run` to the end of the last of them."""

    def __init__(
        self,
        posts: Sequence[Post],
        patience: Patience | None = None,
        *,
        members: Members | None = None,
        clock: Callable[[], float] = time.monotonic,
        stderr: int | None = None,
    ) -> None:
        self._patience = patience or Patience()
        self._clock = clock
        self._stderr = stderr
        hang_s = self._patience.hang_s
        self._members = [
            Member(
                post, Restarts(self._patience.pace, may_park=post.shard is not None), hang_s=hang_s
            )
            for post in posts
        ]
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._wanted = members or Members(None, {})
        self._topics: dict[str, Any] = {}
        self._table = ""
        self._epoch = 0
        self._news = True
        self._refresh_at = 0.0
        self._stop_asked = False
        self._workers_told = False
        self._router_until = self._stop_until = 0.0
        self._stopping = self._in_haste = False
        self.view = View()
        self.changed = threading.Condition()
        """Notified when `view` was replaced, or the supervisor has ended."""
        self.has_ended = False
        self.failure: BaseException | None = None
        self._publish(clock())

    # What other threads may call.

    def ask_to_stop(self, *, at_once: bool = False) -> None:
        """Begin a clean stop; `at_once` leaves nobody time for theirs."""
        with self.changed:
            if self.has_ended:
                return
            self._in_haste = self._in_haste or at_once
            self._stop_asked = True
            with suppress(BlockingIOError):  # the pipe is full of earlier wishes
                os.write(self._wake_write, b"\0")

    def run(self) -> None:
        """The loop. Returns when every child is gone; whatever goes wrong, none is left behind."""
        try:
            self._loop()
        except BaseException as error:
            self.failure = error
            log.exception("the supervisor failed; the node stops")
        finally:
            self._kill_all()
            self._selector.close()
            with self.changed:
                os.close(self._wake_read)
                os.close(self._wake_write)
                self.has_ended = True
                self.changed.notify_all()

    # The loop.

    def _loop(self) -> None:
        before = self._clock()
        while True:
            now = self._clock()
            for member in self._members:
                if member.start_due_at is not None and member.start_due_at <= now:
                    self._start(member, now)
            if self._stop_asked and self._step_of_stop(now):
                return
            self._tell(now)
            wait_s = self._wait_s(self._clock())
            for key, _ in self._selector.select(wait_s):
                key.data()
            now = self._clock()
            if now - before > wait_s + 1.0:
                self._forgive(now - before - wait_s, now)
            before = now
            self._look_for_silence(now)

    def _wait_s(self, now: float) -> float:
        starts = [m.start_due_at for m in self._members if m.start_due_at is not None]
        due = [self._refresh_at, *starts]
        if self._stopping:
            due = [self._stop_until if self._workers_told else self._router_until]
        if not all(m.child is None or m.child.exit_fd is not None for m in self._members):
            due.append(now + 0.05)  # without process handles, ends have to be looked for
        return max(0.0, min(due) - now)

    def _start(self, member: Member, now: float) -> None:
        try:
            child = member.start(now, self._stderr)
        except OSError as error:  # no process or no memory to be had: as if it had died at once
            log.error("%s could not be started: %s", member.name, error)
            member.start_due_at = now + self._patience.pace.delay_s_max
            return
        if self._table:
            child.send("table", {"table": self._table})
        child.send("members", self._wanted.line())
        if self._topics:
            child.send("topics", self._topics)
        register = self._selector.register
        register(child.read_fd, selectors.EVENT_READ, lambda: self._read(member, child))
        if child.exit_fd is not None:
            register(child.exit_fd, selectors.EVENT_READ, lambda: self._look(member, child))
        self._news = True

    def _read(self, member: Member, child: Child) -> None:
        try:
            lines = child.lines()
        except BrokenLine as error:
            log.error("%s (process %d) said something strange: %s", member.name, child.pid, error)
            return
        now = self._clock()
        for line in lines:
            last = member.last_line
            self._news = self._news or any(last.get(name) != line.get(name) for name in NEWS)
            member.heard(line, now)
            if "table" in line:
                self._learn_table(line["table"])
            if "members" in line and self._wanted.learn(line):
                self._tell_all("members", self._wanted.line())
            if "topics" in line:
                self._learn_topics(line)
        if lines and member.post.core is not None and not member.is_pinned:
            self._check_core(member, child)
        if child.ended_output:
            self._selector.unregister(child.read_fd)

    def _look(self, member: Member, child: Child) -> None:
        """A process may have ended."""
        if child.exit_code() is None:
            return
        if not child.ended_output:
            self._read(member, child)
        for fd in (child.read_fd, child.exit_fd):
            if fd is not None:
                with suppress(KeyError):
                    self._selector.unregister(fd)
        lived_s = self._clock() - member.started_at
        code, wait_s = member.ended(self._clock())
        self._news = True
        if self._stopping:
            member.start_due_at = None
            return
        how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
        what = f"{member.name} (process {child.pid}) {how} after {lived_s:.1f} s"
        if wait_s is None:
            log.error("%s; it died too often and is PARKED: the other shards go on without", what)
        else:
            log.warning("%s; started again in %d ms", what, wait_s * 1_000)

    def _look_for_silence(self, now: float) -> None:
        for member in self._members:
            if member.child is not None and member.child.exit_fd is None:
                self._look(member, member.child)
            child, watch = member.child, member.watch
            if child is None or watch is None or self._stopping:
                continue
            who = f"{member.name} (process {child.pid})"
            if watch.is_hung(now):
                log.error("%s was silent for %.1f s and is killed", who, watch.silent_s(now))
                member.hangs += 1
                child.kill()
                watch.heard(now)  # once is enough: its end is on its way
            elif watch.is_late(now) != member.is_late:
                member.is_late = not member.is_late
                if member.is_late:
                    log.warning("%s is late with its signs of life", who)

    def _forgive(self, gap_s: float, now: float) -> None:
        """We were stopped ourselves, or the machine slept: nobody could be heard."""
        for member in self._members:
            if member.watch is not None:
                member.watch.forgive(gap_s, now)

    def _check_core(self, member: Member, child: Child) -> None:
        """A worker pins itself; what is reported is what the system says."""
        core = member.post.core
        assert core is not None
        member.is_pinned = is_pinned(child.pid, core)
        self._news = self._news or member.is_pinned
        if not member.is_pinned and member.state == "serving" and not member.pin_missed:
            member.pin_missed = True
            log.warning("%s (process %d) is not pinned to core %d", member.name, child.pid, core)

    # What children are told.

    def _learn_table(self, text: object) -> None:
        try:
            table = PlacementTable.decode(b64decode(str(text)))
        except (ShardnodeError, Base64Error) as error:
            log.error("shard 0 sent a placement table that is not whole: %s", error)
            return
        if text == self._table or table.epoch < self._epoch:
            return
        self._table, self._epoch = str(text), table.epoch
        self._tell_all("table", {"table": self._table})

    def _learn_topics(self, line: Mapping[str, Any]) -> None:
        """The topics of the cluster, as shard 0 has them here: for all other shards."""
        version, topics = line.get("topics_version"), line["topics"]
        if type(version) is not int or not isinstance(topics, str):
            log.error("shard 0 sent topics that make no sense: version %r", version)
        elif version > self._topics.get("topics_version", 0):
            self._topics = {"topics_version": version, "topics": topics}
            self._tell_all("topics", self._topics)

    def _tell_all(self, topic: str, line: dict[str, Any]) -> None:
        for member in self._members:
            if member.child is not None:
                member.child.send(topic, line)

    def _tell(self, now: float) -> None:
        """Publish the view, and tell the router, if there is something new or it is time."""
        if not self._news and now < self._refresh_at:
            return
        self._news, self._refresh_at = False, now + REFRESH_S
        rows = self._publish(now)
        for member in self._members:
            if member.child is not None:
                if member.post.shard is None:
                    member.child.send("status", {"status": {"shards": rows}})
                elif member.child.has_unsent:
                    member.child.flush()

    def _publish(self, now: float) -> list[Row]:
        rows = [m.row() for m in self._members if m.post.shard is not None]
        router = next((m.last_line for m in self._members if m.post.shard is None), {})
        epochs = [m.last_line.get("epoch", 0) for m in self._members]
        view = View(
            rows=tuple(rows),
            epoch=max([self._epoch, *(each for each in epochs if isinstance(each, int))]),
            missing=not_ready(rows, router),
            processes=tuple(_process_view(member, now) for member in self._members),
        )
        with self.changed:
            self.view = view
            self.changed.notify_all()
        return rows

    # Stopping.

    def _step_of_stop(self, now: float) -> bool:
        """One look at a stop under way; True when nothing is left."""
        if not self._stopping:
            self._stopping = True
            self._router_until = now + min(self._patience.router_stop_s, self._patience.stop_s)
            self._stop_until = now + self._patience.stop_s
            for member in self._members:
                member.start_due_at = None
            self._stop_members(router=True)
        if self._in_haste:
            self._router_until = self._stop_until = now
            self._in_haste = False
        routers = [m for m in self._members if m.post.shard is None and m.child is not None]
        if not self._workers_told and (not routers or now >= self._router_until):
            for member in routers:
                self._overstayed(member)
            self._workers_told = True
            self._stop_members(router=False)
            return not any(member.child for member in self._members)
        left = [member for member in self._members if member.child is not None]
        if left and self._workers_told and now >= self._stop_until:
            for member in left:
                self._overstayed(member)
            self._stop_until = now + 1.0
        return not left

    def _stop_members(self, *, router: bool) -> None:
        for member in self._members:
            if member.child is not None and (member.post.shard is None) == router:
                member.child.send("stop", {"stop": True})
                member.child.terminate()

    def _overstayed(self, member: Member) -> None:
        if member.child is not None:
            log.warning("%s (process %d) did not stop and is killed", member.name, member.pid)
            member.child.kill()

    def _kill_all(self) -> None:
        for member in self._members:
            if member.child is not None:
                member.child.kill()
                member.child.close()
                member.child = None

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, 64)


def _process_view(member: Member, now: float) -> ProcessView:
    return ProcessView(
        name=member.name,
        shard=member.post.shard,
        pid=member.pid,
        state=member.state,
        restarts=member.restarts,
        hangs=member.hangs,
        silent_s=member.watch.silent_s(now) if member.watch is not None else 0.0,
        counters=member.counters,
        error=str(member.last_line.get("error", "")),
    )


__all__ = ["ROUTER", "Patience", "Post", "ProcessView", "Supervisor", "View"]
