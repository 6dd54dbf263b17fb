"""What the supervisor decides: when to start a child again, when to give up, who is ready. Pure.

    a death                        what follows
    -----------------------------  ------------------------------------------------------------
    the first, or after 30 s well  started again at once
    the next ones                  after 50 ms, 100 ms, 200 ms … at most 5 s
    the 8th within 60 s            parked: a person has to look (the router is never parked)

The one rule: no clock, process or pipe is touched here. Times come in as seconds of a monotonic
clock and decisions go out, so every rule above is tested without waiting for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pace:
    """How patient the supervisor is with a child that dies."""

    delay_s_min: float = 0.05
    delay_s_max: float = 5.0
    healthy_s: float = 30.0
    """Who lived this long is forgiven everything before."""
    deaths_max: int = 8
    window_s: float = 60.0


class Restarts:
    """The deaths of one child, and what follows from them."""

    def __init__(self, pace: Pace, *, may_park: bool = True) -> None:
        self._pace = pace
        self._may_park = may_park
        self._deaths: deque[float] = deque()
        self._streak = 0

    def after_death(self, now: float, lived_s: float) -> float | None:
        """Seconds to wait before the next start; None: park it."""
        pace = self._pace
        if lived_s >= pace.healthy_s:
            self._deaths.clear()
            self._streak = 0
        self._deaths.append(now)
        while self._deaths[0] < now - pace.window_s:
            self._deaths.popleft()
        if self._may_park and len(self._deaths) >= pace.deaths_max:
            return None
        self._streak += 1
        if self._streak == 1:
            return 0.0
        doublings = min(self._streak - 2, 32)
        return min(pace.delay_s_max, pace.delay_s_min * 2.0**doublings)


class Watch:
    """When a child was last heard of, and whether it still counts as alive."""

    START_S_MIN = 30.0
    """A child may be silent for this long before its first line: a cold disk has to load it."""

    LATE_S = 1.0
    """Four missed heartbeats: worth a line in the log, not yet a death."""

    def __init__(self, now: float, hang_s: float) -> None:
        self._hang_s = hang_s
        self._heard_at = now
        self._has_spoken = False

    def heard(self, now: float) -> None:
        self._heard_at = now
        self._has_spoken = True

    def forgive(self, gap_s: float, now: float) -> None:
        """The supervisor itself was stopped for so long: nobody could be heard."""
        self._heard_at = min(now, self._heard_at + gap_s)

    def silent_s(self, now: float) -> float:
        return max(0.0, now - self._heard_at)

    def is_late(self, now: float) -> bool:
        return self._has_spoken and self.silent_s(now) > self.LATE_S

    def is_hung(self, now: float) -> bool:
        patience = self._hang_s if self._has_spoken else max(self._hang_s, self.START_S_MIN)
        return self.silent_s(now) > patience


STATES = ("starting", "recovering", "serving", "fenced", "removed", "parked")
OUT = ("fenced", "parked")
ROLES = ("leader", "follower", "candidate", "learner")
INDEXES = (
    *("term", "commit_index", "applied_index", "durable_index", "truncation_index"),
    *("needed_index", "snapshot_index", "log_bytes"),
)

Row = dict[str, Any]
"""One shard of `status --json`."""


def shard_row(
    shard: int,
    line: Mapping[str, Any],
    *,
    pid: int | None,
    core: int | None,
    restarts: int,
    parked: bool,
) -> Row:
    """A shard's row from the last line of its worker. A worker that has not spoken since it was
    started has none, and is starting; whatever is missing or of a wrong type is as if not said."""
    state, role, leader = line.get("state"), line.get("role"), line.get("leader")
    digest, error, marks = line.get("digest"), line.get("error"), line.get("watermarks")
    numbers = {name: line.get(name) for name in INDEXES}
    return {
        "id": shard,
        "pid": pid,
        "core": core,
        "role": role if role in ROLES else "follower",
        "leader": leader if isinstance(leader, int) and leader > 0 else None,
        **{name: value if isinstance(value, int) else 0 for name, value in numbers.items()},
        "state": "parked" if parked else state if state in STATES else "starting",
        "restarts": restarts,
        "digest": digest if isinstance(digest, str) else "0" * 16,
        "error": error if isinstance(error, str) else "",
        "watermarks": marks if isinstance(marks, list) else [],
    }


def not_ready(rows: Sequence[Row], router: Mapping[str, Any]) -> tuple[str, ...]:
    """What is missing until the node is ready, in words; empty when it is. `router` is the
    router's last line: it names the workers that it has reached."""
    missing = []
    serves = router.get("state") == "serving"
    reached = router.get("reached", [])
    for row in rows:
        if row["state"] != "serving":
            missing.append(f"shard {row['id']} is {row['state']}")
        elif row["leader"] is None:
            missing.append(f"shard {row['id']} has no leader")
        elif serves and row["id"] not in reached:
            missing.append(f"shard {row['id']} is not reached by the router yet")
    if not serves:
        missing.append("the router is starting")
    return tuple(missing)


def out_of_service(rows: Sequence[Row]) -> tuple[str, ...]:
    """The shards that will not serve before somebody has looked, in the words of `not_ready`; but
    nothing if that is all of them. The others do not wait for these."""
    out = [f"shard {row['id']} is {row['state']}" for row in rows if row["state"] in OUT]
    return tuple(out) if len(out) < len(rows) else ()
