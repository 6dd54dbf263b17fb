"""Where to read from, in all the ways to say it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from shardnode.client.offsets import Start, to_start
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import OffsetPoint

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000
TIMESTAMP = OffsetPoint.TIMESTAMP


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (0, Start(None, 0)),
        (42, Start(None, 42)),
        ("42", Start(None, 42)),
        ("earliest", Start(OffsetPoint.EARLIEST, 0)),
        ("latest", Start(OffsetPoint.LATEST, 0)),
        ("last", Start(OffsetPoint.LAST, 0)),
        (NOON, Start(TIMESTAMP, NOON_MS)),
        (NOON.astimezone(timezone(timedelta(hours=2))), Start(TIMESTAMP, NOON_MS)),
        (NOON + timedelta(microseconds=1), Start(TIMESTAMP, NOON_MS + 1)),
        (datetime(1900, 1, 1, tzinfo=UTC), Start(TIMESTAMP, 0)),
        ("2026-01-31T12:00:00Z", Start(TIMESTAMP, NOON_MS)),
        ("2026-01-31T13:00:00.5+01:00", Start(TIMESTAMP, NOON_MS + 500)),
        ("-99999999d", Start(TIMESTAMP, 0)),
    ],
)
def test_offsets_points_and_times_are_understood(said: Any, meant: Start) -> None:
    assert to_start(said) == meant


@pytest.mark.parametrize(("unit", "ms"), [("ms", 1), ("s", 1e3), ("m", 6e4), ("h", 3.6e6)])
def test_so_long_ago_counts_from_now(unit: str, ms: float) -> None:
    before = int(time.time() * 1000)
    found = to_start(f"-10{unit}")
    after = int(time.time() * 1000)
    assert found.point is TIMESTAMP
    assert before <= found.value + 10 * ms <= after


@pytest.mark.parametrize(
    "said",
    [
        *(-1, 2**64, "-1", "99999999999999999999999", datetime(2026, 1, 31)),
        *("", "first", "-10", "-m", "10m", "-1.5h", "٤", "2026-01-31T12:00:00"),
    ],
)
def test_what_means_nothing_is_refused(said: Any) -> None:
    with pytest.raises(InvalidRequest):
        to_start(said)


@pytest.mark.parametrize("said", [None, 1.5, True, b"earliest"])
def test_wrong_types_are_told(said: Any) -> None:
    with pytest.raises(TypeError):
        to_start(said)
