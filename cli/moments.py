"""Moments and amounts as people type them: a time, how long ago, a size.

The one rule: a time without its zone is refused, because two people would read two times.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click


class Moment(click.ParamType[datetime]):
    """RFC 3339, or how long ago."""

    name = "RFC3339|-10m"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        from shardnode.node.config_units import BadValue, parse_duration_ms

        text = str(value)
        try:
            if text.startswith("-"):
                return datetime.now(UTC) - timedelta(milliseconds=parse_duration_ms(text[1:]))
            moment = datetime.fromisoformat(text)
        except (BadValue, ValueError, OverflowError):
            self.fail(f"expected a time such as 2030-01-01T12:00:00Z, or -10m, found {text}")
        if moment.tzinfo is None:
            self.fail(f"expected a time with its zone, such as {text}Z, found {text}", param, ctx)
        return moment


ANY = "max"


class Rate(click.ParamType[int]):
    """Bytes a second; 0 when there is no limit."""

    name = f"SIZE|{ANY}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int) or value == ANY:
            return 0 if value == ANY else int(value)
        from shardnode.node.config_units import BadValue, parse_size

        try:
            size = parse_size(str(value))
        except BadValue as error:
            self.fail(str(error), param, ctx)
        if size <= 0:
            self.fail(f"expected more than nothing, found {value}", param, ctx)
        return size
