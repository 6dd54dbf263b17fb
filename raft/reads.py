"""Linearizable reads: which are waiting, for which round, and which may be served.

The one rule: a read gets the commit index at the time it was asked, and is served only after a
quorum has echoed a stamp sent later than that, and after this member has applied that far. A
valid lease stands in for the round.
"""

from __future__ import annotations

from collections import deque

from shardnode.raft.types import ReadGrant


class ReadQueue:
    """Reads of one leader in one term, oldest first. Bounded by the caller."""

    def __init__(self) -> None:
        self._new: list[int] = []
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._confirmed: deque[ReadGrant] = deque()

    def __len__(self) -> int:
        return len(self._new) + len(self._waiting) + len(self._confirmed)

    @property
    def wants_round(self) -> bool:
        """Whether reads have come in that no heartbeat round covers yet."""
        return bool(self._new)

    def ask(self, context: int) -> None:
        """A read that needs a round."""
        self._new.append(context)

    def grant(self, context: int, commit: int) -> None:
        """A read that the lease covers: it only waits to be applied."""
        self._confirmed.append(ReadGrant(context, commit))

    def begin_round(self, stamp: int, commit: int) -> None:
        """Heartbeats with stamps from `stamp` on leave now: they cover every read so far."""
        self._waiting.extend((stamp, context, commit) for context in self._new)
        self._new.clear()

    def confirm(self, stamp: int) -> None:
        """A quorum has echoed `stamp` or a later one."""
        while self._waiting and self._waiting[0][0] <= stamp:
            _, context, commit = self._waiting.popleft()
            self._confirmed.append(ReadGrant(context, commit))

    def take(self, applied: int) -> list[ReadGrant]:
        """Reads that may be served now."""
        ready = []
        while self._confirmed and self._confirmed[0].index <= applied:
            ready.append(self._confirmed.popleft())
        return ready

    def give_up(self) -> list[int]:
        """Leadership is gone: every read that was not handed out is refused."""
        contexts = [grant.context for grant in self._confirmed]
        contexts += [context for _, context, _ in self._waiting]
        contexts += self._new
        self._confirmed.clear()
        self._waiting.clear()
        self._new.clear()
        return contexts
