"""Where to read from, as callers say it.

    42               that offset
    "earliest"       the first message that is still there
    "latest"         behind the last message: what comes from now on
    "last"           the last message itself
    a datetime       the first message of that time or later; it must know its time zone
    "2026-01-31T…Z"  the same, as RFC 3339
    "-10m"           the same, so long ago: ms, s, m, h or d

One rule: whatever is not an offset is looked up by the shard of the partition, by its own clock.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from shardnode.wire.errors import InvalidRequest
from shardnode.wire.fields import U64_MAX
from shardnode.wire.kinds import OffsetPoint

Offset = int | str | datetime

_POINTS = {
    "earliest": OffsetPoint.EARLIEST,
    "latest": OffsetPoint.LATEST,
    "last": OffsetPoint.LAST,
}
_AGO = re.compile(r"-(\d{1,15})(ms|[smhd])", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class Start(NamedTuple):
    """Where to read from: an offset, or what a shard finds one by."""

    point: OffsetPoint | None
    value: int
    """The offset if there is no point; the milliseconds since 1970 UTC of a time."""


def to_start(at: Offset, what: str = "offset") -> Start:
    """What a caller said; raises `TypeError` or `InvalidRequest`."""
    if isinstance(at, datetime):
        return _at_time(at)
    if isinstance(at, bool) or not isinstance(at, int | str):
        raise TypeError(
            f"expected {what} as an int, a text or a datetime, found {type(at).__name__}"
        )
    if isinstance(at, int) or (at.isascii() and at.isdigit()):
        offset = int(at)
        if not 0 <= offset <= U64_MAX:
            raise InvalidRequest(f"expected {what} as a number from 0 up, found {at}")
        return Start(None, offset)
    if at in _POINTS:
        return Start(_POINTS[at], 0)
    ago = _AGO.fullmatch(at)
    if ago:
        ago_ms = int(ago[1]) * _UNITS_MS[ago[2]]
        return Start(OffsetPoint.TIMESTAMP, max(0, int(time.time() * 1000) - ago_ms))
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise InvalidRequest(
            f"expected {what} as a number, earliest, latest, last, a time such as"
            f" 2026-01-31T12:00:00Z, or how long ago such as -10m; found {at!r}"
        ) from None
    return _at_time(moment)


def _at_time(moment: datetime) -> Start:
    if moment.tzinfo is None:
        raise InvalidRequest(
            f"expected a time that knows its zone, found {moment.isoformat()}; add Z or tzinfo=UTC"
        )
    since = -((_EPOCH - moment) // _MS)  # rounded up: nothing before that time is wanted
    return Start(OffsetPoint.TIMESTAMP, max(0, since))
