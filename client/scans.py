"""Scans: the pages of all shards, merged in the order of keys.

One rule: nothing is left out without a word. A key is given only when every shard has shown what
it holds up to there; a shard that does not answer fails the scan by its name.

Shards hold disjoint keys and each page is in order. Whatever lies below the last key of every
unfinished shard's page is complete, so it is sorted in one go, in C. When slots move in the middle
of a scan, it starts again behind the last key it gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from shardnode.client.arguments import Data, to_bytes, to_consistency
from shardnode.client.calls import ShardCall
from shardnode.client.values import Entry, time_of
from shardnode.wire import limits, requests
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import PlacementTable
from shardnode.wire.replies import Page

Row = tuple[bytes, bytes, int, int]
_key = itemgetter(0)


class _Part:
    """One shard's share of a scan."""

    __slots__ = ("call", "finished", "rows", "shard")

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.rows: list[Row] = []
        self.call: ShardCall | None = None
        """The page under way."""
        self.finished = False
        """Whether its last page has come."""


class Scan:
    """One scan. A shell starts `new_calls`, waits for `needed` and gives out what `take` returns,
    until it is `over`; when it is `stale`, it gets a newer table and calls `restart`."""

    def __init__(
        self,
        *,
        prefix: Data,
        start: Data | None,
        end: Data | None,
        limit: int | None,
        reverse: bool,
        keys_only: bool,
        consistency: str,
    ) -> None:
        self._start, self._end = _range(prefix, start, end)
        self._reverse = reverse
        self._keys_only = keys_only
        self._consistency = to_consistency(consistency)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidRequest(f"expected a limit of 0 or more, found {limit!r}")
        self._left = limit
        self._last: bytes | None = None
        self._parts: list[_Part] = []
        self._new: list[ShardCall] = []
        self._epoch = 0
        self.stale_epoch = 0
        """The epoch of the table that a shard spoke of; 0 while ours is not older."""
        self.over = limit == 0 or (self._end is not None and self._start >= self._end)
        self._body(None)  # a bound that is too long is refused before anything is sent

    def restart(self, table: PlacementTable) -> None:
        """Begin, or go on behind the last key given, with all shards of a table."""
        self._epoch, self.stale_epoch = table.epoch, 0
        self._parts = [_Part(shard) for shard in range(table.shards)]
        self._new = []
        for part in self._parts:
            self._ask(part, self._last)

    def new_calls(self) -> Sequence[ShardCall]:
        """Calls to start."""
        new, self._new = self._new, []
        return new

    def needed(self) -> Sequence[ShardCall]:
        """Calls without which nothing more can be given."""
        return [part.call for part in self._parts if part.call is not None and not part.rows]

    def under_way(self) -> Sequence[ShardCall]:
        """Calls to cancel when the caller has had enough."""
        return [part.call for part in self._parts if part.call is not None and not part.call.done]

    def take(self) -> list[Entry]:
        """What can be given now; raises the error of a shard."""
        for part in self._parts:
            if part.call is not None and part.call.done:
                self._absorb(part, part.call)
        if self.stale_epoch or any(not p.rows and not p.finished for p in self._parts):
            return []
        rows = self._ripe()
        rows.sort(key=_key, reverse=self._reverse)
        if self._left is not None:
            rows = rows[: self._left]
            self._left -= len(rows)
        self.over = self._left == 0 or all(p.finished and not p.rows for p in self._parts)
        if rows:
            self._last = rows[-1][0]
        return [Entry(k, value, version, time_of(at)) for k, value, version, at in rows]

    def _ripe(self) -> list[Row]:
        """Take the rows up to the last one that every unfinished shard has shown."""
        shown = [part.rows[-1][0] for part in self._parts if not part.finished]
        if not shown:
            ripe = [row for part in self._parts for row in part.rows]
            for part in self._parts:
                part.rows = []
            return ripe
        bound = max(shown) if self._reverse else min(shown)
        ripe = []
        for part in self._parts:
            count = _count_until(part.rows, bound, reverse=self._reverse)
            ripe += part.rows[:count]
            part.rows = part.rows[count:]
        return ripe

    def _absorb(self, part: _Part, call: ShardCall) -> None:
        part.call = None
        page, epoch = call.result()
        assert isinstance(page, Page)
        if epoch > self._epoch:
            self.stale_epoch = max(epoch, self.stale_epoch)
            return
        values = page.values or [b""] * len(page.keys)
        part.rows += zip(page.keys, values, page.versions, page.expires_at_ms, strict=True)
        part.finished = page.next is None
        if not part.finished and (self._left is None or len(part.rows) < self._left):
            self._ask(part, page.next)
        elif not part.finished:
            part.finished = True  # it has shown all that the limit can take

    def _ask(self, part: _Part, after: bytes | None) -> None:
        part.call = ShardCall(Kind.SCAN, self._body(after), shard=part.shard)
        self._new.append(part.call)

    def _body(self, after: bytes | None) -> bytes:
        limit = min(self._left or 0, limits.scan_page_entries_max)
        return requests.Scan(
            start=self._start or None,
            end=self._end,
            after=after,
            limit=limit,
            reverse=self._reverse,
            keys_only=self._keys_only,
            consistency=self._consistency,
        ).encode()


def _range(prefix: Data, start: Data | None, end: Data | None) -> tuple[bytes, bytes | None]:
    """The keys that have the prefix and lie between start and end."""
    low, high = requests.prefix_range(to_bytes(prefix, "prefix"))
    if start is not None:
        low = max(low, to_bytes(start, "start"))
    if end is not None:
        last = to_bytes(end, "end")
        high = last if high is None else min(high, last)
    return low, high


def _count_until(rows: Sequence[Row], bound: bytes, *, reverse: bool) -> int:
    """How many rows of a sorted list come no later than a key."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        key = rows[middle][0]
        if (key >= bound) if reverse else (key <= bound):
            low = middle + 1
        else:
            high = middle
    return low
