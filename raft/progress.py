"""What a leader knows of one member, and how fast it may send to it.

The one rule: `match` is proven by the member's own reply and only grows; `next` is a guess.

    state      | sends                          | leaves by
    -----------+--------------------------------+----------------------------------------------
    PROBE      | one append, then waits         | an accepted append → REPLICATE
    REPLICATE  | a window of appends, optimistic| a refusal, or silence → PROBE
    SNAPSHOT   | offers, until it is installed  | an accepted match at or above the snapshot
"""

from __future__ import annotations

from collections import deque
from enum import Enum


class Mode(Enum):
    """How the leader talks to one member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One member in the eyes of its leader."""

    __slots__ = (
        "acked_stamp",
        "contact_ms",
        "inflight",
        "match",
        "mode",
        "next",
        "probe_sent",
        "progress_ms",
        "recovery",
        "snapshot_index",
    )

    def __init__(self, next_index: int, now_ms: int) -> None:
        self.mode = Mode.PROBE
        self.match = 0
        self.next = next_index
        self.probe_sent = False
        self.inflight: deque[int] = deque()
        """Last index of each append under way, oldest first."""
        self.snapshot_index = 0
        self.contact_ms = now_ms
        """When the member was last heard of: check-quorum counts these."""
        self.progress_ms = now_ms
        """When something was last sent or acknowledged: silence after it means a loss."""
        self.acked_stamp = 0
        """The highest stamp it echoed: rounds and leases count these."""
        self.recovery = 0

    @property
    def held(self) -> int:
        """What the member has, or will have when it has installed what it was offered."""
        return self.snapshot_index if self.mode is Mode.SNAPSHOT else self.match

    def probe(self, now_ms: int) -> None:
        """Send one append and wait: the end of what the two logs share is not known."""
        self.mode = Mode.PROBE
        self.next = self.match + 1
        self.probe_sent = False
        self.inflight.clear()
        self.progress_ms = now_ms

    def replicate(self) -> None:
        """The logs agree through `match`: stream what follows."""
        self.mode = Mode.REPLICATE
        self.next = max(self.next, self.match + 1)
        self.probe_sent = False

    def await_snapshot(self, index: int, now_ms: int) -> None:
        """The log does not reach back to this member any more."""
        self.mode = Mode.SNAPSHOT
        self.snapshot_index = index
        self.inflight.clear()
        self.probe_sent = False
        self.progress_ms = now_ms

    def may_send(self, inflight_max: int) -> bool:
        """Whether one more append may leave now."""
        if self.mode is Mode.REPLICATE:
            return len(self.inflight) < inflight_max
        return self.mode is Mode.PROBE and not self.probe_sent

    def sent(self, last_index: int, now_ms: int) -> None:
        """An append ending at `last_index` has left."""
        if self.mode is Mode.PROBE:
            self.probe_sent = True
        else:
            self.next = last_index + 1
            self.inflight.append(last_index)
        self.progress_ms = now_ms

    def accepted(self, match: int, now_ms: int) -> bool:
        """The member holds everything through `match`. True when that is news."""
        while self.inflight and self.inflight[0] <= match:
            self.inflight.popleft()
        news = match > self.match
        if news:
            self.match = match
            self.progress_ms = now_ms
        self.next = max(self.next, match + 1)
        if self.mode is Mode.PROBE or (
            self.mode is Mode.SNAPSHOT and self.match >= self.snapshot_index
        ):
            self.next = self.match + 1
            self.replicate()
        return news

    def refused(self, rejected: int, hint: int, now_ms: int) -> bool:
        """The entry before an append did not match. False when the refusal is an old one."""
        if self.mode is Mode.REPLICATE:
            if rejected <= self.match:
                return False
            self.probe(now_ms)
            return True
        if self.mode is Mode.SNAPSHOT or rejected != self.next - 1:
            return False
        self.next = max(min(rejected, hint + 1), self.match + 1)
        self.probe_sent = False
        return True

    def restart(self, next_index: int, now_ms: int) -> None:
        """The member says that it lost entries it had acknowledged: believe nothing of it."""
        self.match = 0
        self.probe(now_ms)
        self.next = next_index
