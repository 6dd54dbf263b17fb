"""Offsets of changes: a log index for each shard, and how far a micro-batch goes. Pure.

An offset {"0": 17} means that everything of shard 0 up to log index 17 has been read. An entry of
the log changes many keys at once and is never cut in two, so a range of indexes is always the same
rows.

One rule: nothing is asked here.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardnode.pipeline.options import EARLIEST, LATEST, Offsets
from shardnode.wire.errors import InvalidRequest


def starts_of(said: Offsets | None, shards: int) -> list[int]:
    """For each shard an index, or `EARLIEST` or `LATEST`, which is the default."""
    if said is None or said in ("earliest", "latest"):
        return [EARLIEST if said == "earliest" else LATEST] * shards
    if isinstance(said, str):
        raise InvalidRequest(
            "option startingOffsets: changes are kept by log index and not by time; expected"
            f' earliest, latest or JSON of shards and indexes such as {{"0": 17}}, found {said!r}'
        )
    unknown = sorted(shard for shard in said if shard >= shards)
    if unknown:
        raise InvalidRequest(
            f"option startingOffsets: expected shards from 0 to {shards - 1}, found"
            f" {', '.join(map(str, unknown))}"
        )
    return [said.get(shard, LATEST) for shard in range(shards)]


def reach(indexes: Sequence[int], rows_max: int, end: int) -> int:
    """How far a micro-batch may go whose rows have these log indexes, in order: to `end`, or to the
    last entry that fits whole; and one entry at least, however many rows it has."""
    if len(indexes) <= rows_max:
        return end
    beyond = indexes[rows_max]
    return beyond if indexes[0] == beyond else beyond - 1
