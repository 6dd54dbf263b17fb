"""Watches: the changes of all shards as one sequence.

One rule: a position moves only past what was given. Order holds per key, because a key's changes
come from one shard; between shards there is none. Nothing is pushed: a shard parks one request
until it has something to tell, so a slow watcher costs it nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardnode.client.arguments import Data, to_bytes
from shardnode.client.calls import ShardCall
from shardnode.client.values import Change, Where
from shardnode.wire import requests
from shardnode.wire.cursors import WatchCursor
from shardnode.wire.kinds import ChangeKind, Kind
from shardnode.wire.placement import PlacementTable
from shardnode.wire.replies import Changes

WAIT_S = 10.0
"""How long a shard parks a request; then it says "nothing yet", which proves that it is there."""

GRACE_S = 2.0
"""An answer that is later than this is asked for again."""

_NAMES = {kind.value: kind.name.lower() for kind in ChangeKind}


class Watch:
    """One watch. A shell calls `begin` with a table, starts `new_calls`, waits for any of
    `under_way` and gives out what `take` returns."""

    def __init__(self, *, prefix: Data, start: str | None) -> None:
        self._prefix = to_bytes(prefix, "prefix")
        self._cursor = None if start is None else WatchCursor.from_text(start)
        self._positions: dict[int, int] = {}
        self._epoch = 0
        self._calls: dict[int, ShardCall] = {}
        self._new: list[ShardCall] = []
        self._body(0)  # a prefix that is too long is refused before anything is sent

    def begin(self, table: PlacementTable) -> None:
        """Ask every shard: without a cursor, for its position of now. A shard that the cursor does
        not know has everything still to tell."""
        self._epoch = table.epoch
        known = self._cursor.positions() if self._cursor else {}
        for shard in range(table.shards):
            if self._cursor is None:
                self._ask(shard, None)
            else:
                self._positions[shard] = known.get(shard, 0)
                self._ask(shard, self._positions[shard])

    @property
    def is_placed(self) -> bool:
        """Whether every shard has a position: from there on nothing is missed."""
        return len(self._positions) == len(self._calls)

    def new_calls(self) -> Sequence[ShardCall]:
        """Calls to start."""
        new, self._new = self._new, []
        return new

    def under_way(self) -> Sequence[ShardCall]:
        """One call for each shard."""
        return list(self._calls.values())

    def take(self) -> list[Change]:
        """The changes that have come; raises the error of a shard."""
        changes: list[Change] = []
        for shard, call in list(self._calls.items()):
            if call.done:
                found, _ = call.result()
                assert isinstance(found, Changes)
                changes += self._absorb(shard, found)
                self._ask(shard, self._positions[shard])
        return changes

    def _absorb(self, shard: int, found: Changes) -> list[Change]:
        before = dict(self._positions)
        self._positions[shard] = found.next
        columns = zip(
            found.kinds, found.keys, found.values, found.versions, found.positions, strict=True
        )
        return [
            Change(_NAMES[kind], key, value, version, Where(self._epoch, before, shard, position))
            for kind, key, value, version, position in columns
        ]

    def _ask(self, shard: int, after: int | None) -> None:
        attempt_s = WAIT_S + GRACE_S if after is not None else 0.0
        call = ShardCall(Kind.WATCH, self._body(after), shard=shard, attempt_s=attempt_s)
        self._calls[shard] = call
        self._new.append(call)

    def _body(self, after: int | None) -> bytes:
        wait_ms = 0 if after is None else int(WAIT_S * 1000)
        return requests.Watch(prefix=self._prefix, after=after, wait_ms=wait_ms).encode()
