"""What every load of a cluster under test shares: a thread, a record of operations, waiting.

The one rule: an operation is recorded before its request leaves, and ended by what its caller was
told, so that a judge knows what was certain, and when.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol, Self


class Recorded(Protocol):
    """What is asked of an operation here."""

    shard: int
    status: str
    returned_ns: int | None

    @property
    def is_write(self) -> bool:
        """Whether it changes something."""


class BaseLoad:
    """Runs in a thread of its own between `start` and `stop`."""

    def __init__(self, shards: Sequence[int]) -> None:
        self.shards = list(shards)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._error: BaseException | None = None

    @property
    def recorded(self) -> Sequence[Recorded]:
        """What was recorded so far; it grows."""
        raise NotImplementedError

    async def work(self) -> None:
        """Load until `stopping`."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Keep the history, for whoever looks for a mistake."""
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No new operations; wait for those under way."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.join()

    def longest_gap_s(self, begin_ns: int, end_ns: int | None = None) -> dict[int, float]:
        """Shard → the longest time without an acknowledged write."""
        until_ns = time.monotonic_ns() if end_ns is None else end_ns
        recorded = list(self.recorded)
        return {shard: longest_gap_s(recorded, shard, begin_ns, until_ns) for shard in self.shards}

    def wait_acknowledged(self, count: int = 1, timeout: float = 30.0) -> None:
        """Until so many more writes of every shard were acknowledged."""
        begin, deadline = len(self.recorded), time.monotonic() + timeout
        while True:
            fresh = [o for o in self.recorded[begin:] if o.is_write and o.status == "ok"]
            missing = [s for s in self.shards if sum(o.shard == s for o in fresh) < count]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"shards {missing} acknowledged too little within {timeout} s")
            time.sleep(0.02)

    def _run(self) -> None:
        try:
            asyncio.run(self.work())
        except BaseException as error:  # the main thread raises it from `stop`
            self._error = error


def longest_gap_s(operations: Sequence[Recorded], shard: int, begin_ns: int, end_ns: int) -> float:
    """The longest time between two moments in which a write of a shard was acknowledged."""
    moments = [
        operation.returned_ns
        for operation in operations
        if operation.shard == shard
        and operation.is_write
        and operation.status == "ok"
        and operation.returned_ns is not None
        and begin_ns <= operation.returned_ns <= end_ns
    ]
    marks = [begin_ns, *sorted(moments), end_ns]
    return max(after - before for before, after in pairwise(marks)) / 1e9
