"""How fast a backup goes: no faster than asked, and never so slow that a shard gives it up.

The one rule: nobody sleeps longer than a moment without a sign of life to the shards.
"""

from __future__ import annotations

from collections.abc import Callable

BURST_S = 0.25
"""How much of what was not used may be made up for."""

NAP_S = 1.0


class Pace:
    """A rate in bytes a second; 0: as fast as it goes."""

    def __init__(
        self,
        bytes_per_s: int,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        alive: Callable[[], None],
    ) -> None:
        """`alive` is called whenever some time may have passed."""
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._alive = alive
        self._free_at = clock()

    def moved(self, size: int) -> None:
        """So much has come; wait until more may."""
        if self._bytes_per_s:
            now = self._clock()
            self._free_at = max(self._free_at, now - BURST_S) + size / self._bytes_per_s
            self.wait_until(self._free_at)
        self._alive()

    def wait(self, seconds: float) -> None:
        """Nothing to do for a while."""
        self.wait_until(self._clock() + seconds)

    def wait_until(self, when: float) -> None:
        while (left := when - self._clock()) > 0:
            self._sleep(min(left, NAP_S))
            self._alive()
