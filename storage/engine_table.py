"""The memory table: what was written since the last flush, and its keys in order when needed.

The one rule: a table only grows. A deletion is an entry too, so the dict's own order tells which
keys are new since they were last sorted, and writing costs nothing beyond `dict.update`.

Sorting is lazy and shared: a scan sorts the new keys into a further run and merges runs of
similar size, and a flush goes on with whatever runs are there. All of it is C; no key is touched
by a Python loop.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

_SAMPLE_EVERY = 32
"""A splitter is off by at most this many keys per run."""


class MemoryTable:
    """Keys and what is kept of them."""

    __slots__ = ("_runs", "_sorted", "data", "expiring", "ripe", "size_bytes")

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.size_bytes = 0
        self.expiring: list[tuple[int, int, Sequence[bytes]]] = []
        """A heap of (expires_ms, version, keys), one for each request with a time to live."""
        self.ripe: list[tuple[int, int, Sequence[bytes]]] = []
        """Those that came off the heap because their time has come."""
        self._runs: list[list[bytes]] = []
        self._sorted = 0

    def update(self, keys: Sequence[bytes], kept: Iterable[bytes], size_bytes: int) -> None:
        """Set keys; what is kept of them may come from an iterator."""
        self.data.update(zip(keys, kept, strict=True))
        self.size_bytes += size_bytes

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept of each key; None where this table knows nothing."""
        return list(map(self.data.get, keys))

    def expire_later(self, expires_ms: int, version: int, keys: Sequence[bytes]) -> None:
        """These keys, if they still have that version then, are due at that time."""
        heapq.heappush(self.expiring, (expires_ms, version, keys))

    def ripen(self, stamp_ms: int) -> None:
        """Move what is due at that time from the heap to `ripe`."""
        while self.expiring and self.expiring[0][0] <= stamp_ms:
            self.ripe.append(heapq.heappop(self.expiring))

    def take(self, low: bytes, high: bytes | None, count: int, reverse: bool) -> list[bytes]:
        """The first `count` keys of a range, low ≤ key < high, in order."""
        self._refresh()
        found: list[bytes] = []
        for run in self._runs:
            first = bisect_left(run, low)
            last = len(run) if high is None else bisect_left(run, high)
            if reverse:
                found += run[max(first, last - count) : last]
            else:
                found += run[first : min(last, first + count)]
        found.sort(reverse=reverse)
        return found[:count]

    def sort_some(self, count: int) -> bool:
        """Sort up to `count` keys that are in no run yet; False when there are none left.
        For a table that is not written to any more."""
        if self._sorted == len(self.data):
            return False
        self._add_run(list(islice(self.data, self._sorted, self._sorted + count)))
        return True

    def in_order(self, count: int) -> Iterator[list[bytes]]:
        """All keys in order, about `count` at a time. Every key must be in a run: `sort_some`."""
        assert self._sorted == len(self.data), "sort first"
        runs = list(self._runs)  # a scan may merge some meanwhile; the lists themselves stay
        samples = sorted(key for run in runs for key in run[::_SAMPLE_EVERY])
        splitters = samples[:: max(1, count // _SAMPLE_EVERY)][1:]
        starts = [0] * len(runs)
        for splitter in [*splitters, None]:
            piece: list[bytes] = []
            for number, run in enumerate(runs):
                start = starts[number]
                stop = len(run) if splitter is None else bisect_left(run, splitter, start)
                piece += run[start:stop]
                starts[number] = stop
            piece.sort()
            if piece:
                yield piece

    def _refresh(self) -> None:
        """Bring all keys into few runs, each less than half as long as the one before."""
        new = len(self.data) - self._sorted
        if new:
            self._add_run(list(islice(reversed(self.data), new)))
        runs = self._runs
        while len(runs) > 1 and 2 * len(runs[-1]) >= len(runs[-2]):
            merged = runs[-2] + runs[-1]
            merged.sort()  # two runs, each in order: a merge
            runs[-2:] = [merged]

    def _add_run(self, keys: list[bytes]) -> None:
        self._sorted += len(keys)
        keys.sort()
        self._runs.append(keys)
