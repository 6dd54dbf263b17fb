"""How Spark limits a micro-batch, for every version of it that we know.

One rule: `pyspark.sql.streaming.datasource` came with 4.2; before it there are no limits and no
trigger that stops at what is there, and everything else is as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardnode.pipeline.options import Options

__all__ = ["AvailableNow", "read_limit", "rows_max_of"]

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
except ImportError:

    class AvailableNow:  # type: ignore[no-redef]
        """Nobody asks for it."""


def read_limit(options: Options) -> Any:
    """What the options say, in Spark's words."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    if options.maxrowspertrigger:
        return ReadMaxRows(options.maxrowspertrigger)
    return ReadAllAvailable()


def rows_max_of(limit: Any) -> int | None:
    """The rows that a micro-batch may have; None: all there are."""
    found = getattr(limit, "max_rows", None)
    return None if found is None else int(found)
