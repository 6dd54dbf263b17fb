"""How sizes are distributed: counts by powers of two, and what a shard's rows amount to. Pure.

One rule: bucket 0 holds what is empty, and bucket b the sizes from 2^(b-1) to before 2^b; so a
bucket is the number of binary digits of a size, which the JVM counts as `length(bin(size))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardnode.pipeline.jobs import Bars, Section, Table, shown_bytes

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the keys, or of the values, of one shard."""

    total: int
    min: int
    p50: int
    p90: int
    p99: int
    max: int
    counts: Mapping[int, int]
    """Bucket → how many."""

    def to_json(self) -> dict[str, Any]:
        quantiles = {"p50": self.p50, "p90": self.p90, "p99": self.p99}
        histogram = [
            {"from": low_of(bucket), "below": high_of(bucket), "count": count}
            for bucket, count in sorted(self.counts.items())
        ]
        ends = {"total": self.total, "min": self.min, **quantiles, "max": self.max}
        return {**ends, "histogram": histogram}


@dataclass(frozen=True, slots=True)
class ShardSizes:
    """What the rows of one shard amount to."""

    shard: int
    rows: int
    with_ttl: int
    slots_used: int
    slots: int
    """That it owns."""
    keys: Sizes
    values: Sizes

    @property
    def bytes(self) -> int:
        return self.keys.total + self.values.total

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.shard,
            "rows": self.rows,
            "bytes": self.bytes,
            "with_ttl": self.with_ttl,
            "slots_used": self.slots_used,
            "slots": self.slots,
            "keys": self.keys.to_json(),
            "values": self.values.to_json(),
        }


NO_SIZES = Sizes(0, 0, 0, 0, 0, 0, {})


def bucket_of(size: int) -> int:
    """The bucket that a size is counted in."""
    return size.bit_length()


def low_of(bucket: int) -> int:
    """The smallest size of a bucket."""
    return 1 << bucket - 1 if bucket else 0


def high_of(bucket: int) -> int:
    """The first size behind it."""
    return 1 << bucket


def label_of(bucket: int) -> str:
    """A bucket in words."""
    if bucket < 2:
        return f"{low_of(bucket)} B"
    return f"{shown_bytes(low_of(bucket))} to {shown_bytes(high_of(bucket))}"


def together(histograms: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """All of them in one, without a gap between the first bucket and the last."""
    used = [bucket for each in histograms for bucket, count in each.items() if count]
    if not used:
        return {}
    buckets = range(min(used), max(used) + 1)
    return {bucket: sum(each.get(bucket, 0) for each in histograms) for bucket in buckets}


def skew_of(amounts: Sequence[int]) -> float:
    """How much larger the largest is than it would be if all were equal; 1.0: they are."""
    total = sum(amounts)
    return max(amounts) * len(amounts) / total if total else 1.0


def facts_of(shards: Sequence[ShardSizes]) -> dict[str, Any]:
    """All of it, for JSON."""
    return {
        "rows": sum(each.rows for each in shards),
        "bytes": sum(each.bytes for each in shards),
        "with_ttl": sum(each.with_ttl for each in shards),
        "skew_rows": round(skew_of([each.rows for each in shards]), 4),
        "skew_bytes": round(skew_of([each.bytes for each in shards]), 4),
        "shards": [each.to_json() for each in shards],
    }


def sections_of(shards: Sequence[ShardSizes], what: str) -> list[Section]:
    """… and for people. `what`: rows of what."""
    facts = facts_of(shards)
    return [
        f"{facts['rows']} {what}, {shown_bytes(facts['bytes'])} of keys and values in"
        f" {len(shards)} shards; the largest has {facts['skew_rows']:.2f} times the rows and"
        f" {facts['skew_bytes']:.2f} times the bytes of an equal share",
        _amounts(shards),
        _sizes("key", [(each.shard, each.rows, each.keys) for each in shards]),
        _sizes("value", [(each.shard, each.rows, each.values) for each in shards]),
        _bars("size of keys", [each.keys.counts for each in shards]),
        _bars("size of values", [each.values.counts for each in shards]),
    ]


def _amounts(shards: Sequence[ShardSizes]) -> Table:
    headings = ["shard", "rows", "keys and values", "with a time to live", "slots used", "of"]
    rows = [
        (s.shard, s.rows, shown_bytes(s.bytes), s.with_ttl, s.slots_used, s.slots) for s in shards
    ]
    return Table(headings, rows)


def _sizes(what: str, shards: Sequence[tuple[int, int, Sizes]]) -> Table:
    headings = ["shard", f"{what}s", "mean", "min", "p50", "p90", "p99", "max"]
    rows = [
        (shard, shown_bytes(s.total), _mean(s.total, count), s.min, s.p50, s.p90, s.p99, s.max)
        for shard, count, s in shards
    ]
    return Table(headings, rows)


def _mean(total: int, count: int) -> str:
    return f"{total / count if count else 0:.1f}"


def _bars(title: str, histograms: Sequence[Mapping[int, int]]) -> Bars:
    return Bars(title, [(label_of(b), count) for b, count in together(histograms).items()])
