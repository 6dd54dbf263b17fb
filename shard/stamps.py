"""The time that is written into the log: when a leader took a request, in milliseconds since 1970.

The one rule: stamps never go back, whatever the wall clock does and whoever leads. A leader reads
the wall clock once, when it is elected, and counts on from there with a clock that cannot be set.
"""

from __future__ import annotations

from collections.abc import Callable


class Stamps:
    """The stamps of one replica."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._term = 0
        self._offset = 0
        self._last = 0

    def stamp(self, term: int, now_ms: int, applied_stamp: int) -> int:
        """The stamp of now, for a leader of `term` that has applied `applied_stamp`."""
        if term != self._term:
            self._term = term
            self._offset = self._wall_ms() - now_ms
        self._last = max(self._last, applied_stamp, now_ms + self._offset)
        return self._last
