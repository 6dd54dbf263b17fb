"""Which rows would move if the table were made anew for another number of shards. Nothing moves.

The new table is the contiguous one of `wire.placement`: slot s of 16,384 belongs to shard
s * N >> 14. The shard of a row is the one it is in now.

One rule: rows are counted one by one, in the JVM, from the slots that their keys have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as f

from shardnode.pipeline.jobs import Say, Section, Summary, Table, shown_bytes, silent
from shardnode.pipeline.jobs_frames import options_of, owner_of, pin
from shardnode.pipeline.jobs_place import Place
from shardnode.pipeline.jobs_sizes import skew_of
from shardnode.wire import limits
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.placement import PlacementTable, initial_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "shard", "slot")


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """What is to be counted."""

    source: Mapping[str, str]
    """As options of the data source."""
    to: int
    """The number of shards there would be."""
    rows: str | None = None
    """Where the keys that would move are written, as Parquet."""


class Flow(NamedTuple):
    """What one shard would give to another one, or keep."""

    source: int
    target: int
    slots: int
    rows: int
    bytes: int

    @property
    def moves(self) -> bool:
        return self.source != self.target

    def to_json(self) -> dict[str, Any]:
        counts = {"slots": self.slots, "rows": self.rows, "bytes": self.bytes}
        return {"from": self.source, "to": self.target, **counts}


def reshard_plan(spark: SparkSession, ask: ReshardPlan, say: Say = silent) -> Summary:
    """Count, and write the keys if that was asked for."""
    if not 1 <= ask.to <= limits.shards_max:
        raise InvalidRequest(f"expected 1 to {limits.shards_max} shards, found {ask.to}")
    options = options_of(ask.source)
    if options.topic is not None:
        raise InvalidRequest("topic: a plan is of keys; partitions of topics move as a whole")
    place = Place(spark, ask.rows) if ask.rows is not None else None
    if place is not None and place.names():
        raise InvalidRequest(
            f"{ask.rows}: expected a folder that is absent or empty, found"
            f" {place.names()[0]!r} there; write to another one"
        )
    say("opening the cut")
    owner, pinned = owner_of(options), pin(spark, options, COLUMNS)
    say("counting")
    placed = with_target(pinned.frame, ask.to)
    flows = flows_of(owner.table, ask.to, counted(placed))
    if place is not None:
        say("writing keys")
        moved = placed.where(f.col("from") != f.col("to")).select("key", "slot", "from", "to")
        moved.write.partitionBy("from", "to").mode("append").parquet(place.url)
    return summary_of(flows, owner.table.shards, ask, pinned.indexes)


def with_target(frame: DataFrame, shards: int) -> DataFrame:
    """Columns `from` and `to` beside those of the rows."""
    target = f.shiftright(f.col("slot") * f.lit(shards), limits.slot_bits)
    return frame.withColumns({"from": f.col("shard"), "to": target.cast("int")})


def counted(placed: DataFrame) -> dict[tuple[int, int], tuple[int, int]]:
    """(from, to) → (rows, bytes)."""
    size = (f.octet_length("key") + f.octet_length("value")).cast("bigint")
    found = placed.groupBy("from", "to").agg(
        f.count(f.lit(1)).alias("rows"), f.sum(size).alias("bytes")
    )
    return {(r["from"], r["to"]): (r["rows"], r["bytes"]) for r in found.collect()}


def flows_of(
    table: PlacementTable, shards: int, counts: Mapping[tuple[int, int], tuple[int, int]]
) -> list[Flow]:
    """All pairs between which slots move, or stay; in order."""
    slots = Counter(zip(table.owners, initial_table(shards).owners, strict=True))
    pairs = sorted({*slots, *counts})
    return [Flow(*pair, slots[pair], *counts.get(pair, (0, 0))) for pair in pairs]


def summary_of(
    flows: Sequence[Flow], shards: int, ask: ReshardPlan, indexes: Mapping[int, int]
) -> Summary:
    """What would move."""
    moved = [flow for flow in flows if flow.moves]
    after = [_total(flow for flow in flows if flow.target == n) for n in range(ask.to)]
    facts = {
        "shards": shards,
        "to": ask.to,
        "indexes": {str(shard): index for shard, index in indexes.items()},
        "moved": _plain(_total(moved)),
        "total": _plain(_total(flows)),
        "skew_rows": round(skew_of([rows for _, rows, _ in after]), 4),
        "flows": [flow.to_json() for flow in flows],
    }
    slots, rows, size = _total(moved)
    _, all_rows, all_bytes = _total(flows)
    share = 100 * rows / all_rows if all_rows else 0.0
    headings = ["from", "to", "slots", "rows", "keys and values"]
    lines = [(w.source, w.target, w.slots, w.rows, shown_bytes(w.bytes)) for w in moved]
    sections: list[Section] = [
        f"from {shards} to {ask.to} shards: {rows} of {all_rows} rows would move ({share:.1f} %),"
        f" {shown_bytes(size)} of {shown_bytes(all_bytes)}, with {slots} of {limits.slots} slots",
        Table(headings, lines),
        Table(
            ["shard then", "slots", "rows", "keys and values"],
            [(n, s, r, shown_bytes(b)) for n, (s, r, b) in enumerate(after)],
        ),
    ]
    if ask.rows is not None:
        facts["rows"] = ask.rows
        sections.append(f"the keys that would move are in {ask.rows}")
    return Summary("reshard-plan", facts, sections)


def _total(flows: Iterable[Flow]) -> tuple[int, int, int]:
    """(slots, rows, bytes)."""
    found = list(flows)
    return (
        sum(flow.slots for flow in found),
        sum(flow.rows for flow in found),
        sum(flow.bytes for flow in found),
    )


def _plain(total: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("slots", "rows", "bytes"), total, strict=True))
