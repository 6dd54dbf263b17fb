"""What is under way to each worker, and when that is too much. Pure.

The one rule: the memory that waits for a worker is bounded. Small requests are bounded by their
number, which is the high-water mark of the worker's socket; large ones are remembered one by one
until they are answered or their time is over, and refused beyond `LARGE_BYTES_MAX`. Nothing is
remembered of a small request, because they are many.
"""

from __future__ import annotations

from shardnode.wire import limits
from shardnode.wire.errors import Overloaded

LARGE_BYTES = 64 << 10
"""From here on a request is remembered; a queue full of smaller ones is bounded by its length."""

LARGE_BYTES_MAX = 64 << 20
"""Large requests under way to one worker: as much as its group accepts uncommitted."""

GRACE_MS = 1_000
"""A request is forgotten this long after its deadline: by then its worker has let go of it."""

Ticket = tuple[bytes, int]
"""A client's identity and the sequence of its request, which the reply repeats."""


class Lane:
    """The way to one worker."""

    __slots__ = ("_large", "forwarded", "large_bytes", "replied")

    def __init__(self) -> None:
        self._large: dict[Ticket, tuple[int, float]] = {}
        self.large_bytes = 0
        self.forwarded = 0
        self.replied = 0

    @property
    def under_way(self) -> int:
        """Requests without a reply, as far as is known: a worker that dies takes some with it."""
        return self.forwarded - self.replied

    @property
    def has_large(self) -> bool:
        return bool(self._large)

    def enter(self, ticket: Ticket, size: int, deadline_ms: int, now_ms: float) -> None:
        """Remember a large request; raises `Overloaded` if there are too many already. One is
        always let in, whatever its size."""
        if self._large and self.large_bytes + size > LARGE_BYTES_MAX:
            self._forget_overdue(now_ms)
        if self._large and self.large_bytes + size > LARGE_BYTES_MAX:
            raise Overloaded(
                f"expected at most {LARGE_BYTES_MAX} bytes of large requests under way to a shard,"
                f" found {self.large_bytes} and {size} more; send less at a time",
                lag=self.large_bytes + size,
                limit=LARGE_BYTES_MAX,
            )
        self.leave(ticket)  # a repeat takes the place of the first
        wait_ms = (deadline_ms or limits.deadline_ms_default) + GRACE_MS
        self._large[ticket] = (size, now_ms + wait_ms)
        self.large_bytes += size

    def leave(self, ticket: Ticket) -> None:
        """A reply has come, or the request was not sent after all."""
        size, _ = self._large.pop(ticket, (0, 0.0))
        self.large_bytes -= size

    def reset(self) -> None:
        """The worker was started anew: nothing is under way to it."""
        self._large.clear()
        self.large_bytes = 0
        self.replied = self.forwarded

    def _forget_overdue(self, now_ms: float) -> None:
        overdue = [ticket for ticket, (_, until) in self._large.items() if until < now_ms]
        for ticket in overdue:
            self.leave(ticket)
