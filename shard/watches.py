"""Watches that wait for something to happen.

The one rule: a watch costs its shard nothing while nothing happens. It is answered when the first
change behind its position is there, or when its time is over; nothing is pushed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardnode.shard.waiting import Desk, Waiting
from shardnode.wire.errors import Overloaded, ShardnodeError
from shardnode.wire.replies import Changes
from shardnode.wire.requests import Watch

if TYPE_CHECKING:
    from shardnode.shard.effects import Effects

WATCHERS_MAX = 10_000


class Watches:
    """The parked watches of one shard."""

    def __init__(self, effects: Effects, desk: Desk) -> None:
        self._effects = effects
        self._desk = desk
        self._parked: list[tuple[Waiting, Watch, int]] = []
        self._seen_index = 0

    def __len__(self) -> int:
        return len(self._parked)

    def take(self, waiting: Waiting, watch: Watch, now_ms: int) -> None:
        """Answer at once when there is something to tell, else park it."""
        until = min(waiting.deadline_ms, now_ms + watch.wait_ms)
        if self._tell(waiting, watch, at_any_rate=until <= now_ms or watch.after is None):
            return
        if len(self._parked) >= WATCHERS_MAX:
            raise Overloaded(
                f"{WATCHERS_MAX} watches wait here already; try again later",
                lag=len(self._parked),
                limit=WATCHERS_MAX,
            )
        self._parked.append((waiting, watch, until))

    def wake(self, now_ms: int) -> None:
        """After a drain: answer those that have something to hear or have waited long enough."""
        index = self._effects.applied_index
        moved, self._seen_index = index != self._seen_index, index
        kept = []
        for waiting, watch, until in self._parked:
            over = now_ms >= until
            if not ((moved or over) and self._tell(waiting, watch, at_any_rate=over)):
                kept.append((waiting, watch, until))
        self._parked = kept

    def _tell(self, waiting: Waiting, watch: Watch, *, at_any_rate: bool) -> bool:
        try:
            changes: Changes = self._effects.changes(watch)
        except ShardnodeError as error:
            self._desk.refuse(waiting.message, waiting.to, error)
            return True
        if not changes.keys and not at_any_rate:
            return False
        self._desk.answer(waiting, changes.encode(), index=self._effects.applied_index)
        return True
