"""One place in the node: the router's or a shard's, and the child that fills it for now.

A member outlives its children. It knows how to start one, what the last one said, how often it
died, and when the next is due.

The one rule: a member does what the supervisor's loop tells it and decides nothing by itself; the
decisions are `supervisor_policy`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardnode.node.children import Child
from shardnode.node.supervisor_policy import Restarts, Row, Watch, shard_row

ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Post:
    """What a child is started with."""

    name: str
    command: Sequence[str]
    first_line: dict[str, Any]
    shard: int | None = None
    """None: the router."""
    core: int | None = None
    pass_fds: tuple[int, ...] = ()


@dataclass(slots=True)
class Member:
    """A post, and everything that has happened to it."""

    post: Post
    restarts_policy: Restarts
    hang_s: float
    child: Child | None = None
    watch: Watch | None = None
    started_at: float = 0.0
    start_due_at: float | None = 0.0
    """When to start the next child; None: not at all, because one runs or it is parked."""
    starts: int = 0
    parked: bool = False
    is_late: bool = False
    hangs: int = 0
    is_pinned: bool = False
    pin_missed: bool = False
    last_line: dict[str, Any] = field(default_factory=dict)
    """What the child that runs now said last."""
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.post.name

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    @property
    def pid(self) -> int | None:
        return self.child.pid if self.child is not None else None

    @property
    def state(self) -> str:
        if self.post.shard is not None:
            state: str = self.row()["state"]
            return state
        return str(self.last_line.get("state", "starting"))

    def start(self, now: float, stderr: int | None) -> Child:
        """Start a fresh child in this post."""
        assert self.child is None, "one child at a time"
        post = self.post
        self.child = Child(post.command, post.first_line, pass_fds=post.pass_fds, stderr=stderr)
        self.watch = Watch(now, self.hang_s)
        self.started_at, self.start_due_at = now, None
        self.starts += 1
        self.is_late = self.is_pinned = self.pin_missed = False
        self.last_line, self.counters = {}, {}
        return self.child

    def heard(self, line: dict[str, Any], now: float) -> None:
        """Keep what the child said."""
        assert self.watch is not None
        self.watch.heard(now)
        self.last_line = line
        counters = line.get("counters")
        if isinstance(counters, dict):
            self.counters = {
                str(name): value for name, value in counters.items() if type(value) in (int, float)
            }

    def ended(self, now: float) -> tuple[int, float | None]:
        """Take leave of the child: (its exit code, seconds until the next; None: parked)."""
        assert self.child is not None
        code = self.child.close()
        self.child = self.watch = None
        self.last_line, self.is_pinned = {}, False
        wait_s = self.restarts_policy.after_death(now, now - self.started_at)
        self.parked = wait_s is None
        self.start_due_at = None if wait_s is None else now + wait_s
        return code, wait_s

    def row(self) -> Row:
        """This shard in `status --json`."""
        assert self.post.shard is not None, "the router is not a shard"
        return shard_row(
            self.post.shard,
            self.last_line,
            pid=self.pid,
            core=self.post.core if self.is_pinned else None,
            restarts=self.restarts,
            parked=self.parked,
        )
