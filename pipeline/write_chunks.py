"""Rows that wait to be sent, and where they are cut.

One rule: the cuts follow from the rows and their order alone. However Spark splits them into record
batches, a task that is run again makes the same requests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

CHUNK_BYTES = 1 << 20
"""A shard writes it in a few milliseconds, so several tasks take turns smoothly."""

BUFFERED_BYTES_MAX = 64 << 20
"""Of one task that writes to many shards at once; then all buffers are sent as they are."""

Columns = list[list[Any]]


class Buffer:
    """Rows for one place, as parallel columns, in the order in which they came."""

    def __init__(self, rows_max: int, bytes_max: int = CHUNK_BYTES) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._columns: Columns = []
        self._sizes: list[int] = []
        self.bytes = 0

    def add(self, columns: Sequence[Sequence[Any]], sizes: Sequence[int]) -> None:
        """More rows; `sizes` is what counts for each against the limit of bytes."""
        if not self._columns:
            self._columns = [list(column) for column in columns]
        else:
            for mine, more in zip(self._columns, columns, strict=True):
                mine.extend(more)
        self._sizes.extend(sizes)
        self.bytes += sum(sizes)

    def full(self) -> list[Columns]:
        """The chunks that no further row fits into."""
        if len(self._sizes) < self._rows_max and self.bytes <= self._bytes_max:
            return []
        taken, end = [], 0
        for cut in full_cuts(self._sizes, self._rows_max, self._bytes_max):
            taken.append([column[cut] for column in self._columns])
            end = cut.stop
        self._columns = [column[end:] for column in self._columns]
        del self._sizes[:end]
        self.bytes = sum(self._sizes)
        return taken

    def rest(self) -> list[Columns]:
        """What is left, as at most one chunk."""
        rest = [self._columns] if self._sizes else []
        self._columns, self._sizes, self.bytes = [], [], 0
        return rest


def full_cuts(sizes: Sequence[int], rows_max: int, bytes_max: int) -> Iterator[slice]:
    """Runs of rows, as long as the limits allow; a row that is too large is one by itself. The last
    run is left out while it could be longer."""
    ends = list(accumulate(sizes, initial=0))
    start, count = 0, len(sizes)
    while start < count:
        end = min(start + rows_max, bisect_right(ends, ends[start] + bytes_max) - 1)
        end = max(end, start + 1)
        if end >= count and end - start < rows_max and ends[end] - ends[start] < bytes_max:
            return
        yield slice(start, end)
        start = end
