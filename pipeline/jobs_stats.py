"""How large keys and values are in each shard, and how rows are spread over shards and slots.

One rule: the frame is read once, and everything is counted in the JVM; no Python runs for a row.
Quantiles are Spark's approximate ones, off by one in ten thousand of the rows at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from shardnode.pipeline.jobs import Say, Summary, silent
from shardnode.pipeline.jobs_frames import Owner, options_of, owner_of, pin
from shardnode.pipeline.jobs_sizes import (
    NO_SIZES,
    QUANTILES,
    ShardSizes,
    Sizes,
    facts_of,
    sections_of,
)
from shardnode.pipeline.jobs_svg import picture
from shardnode.wire import limits
from shardnode.wire.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

ACCURACY = 10_000
COLUMNS = ("key", "value", "expires_at", "shard", "slot")

_BUCKETS = {
    "k": range(limits.key_bytes_max.bit_length() + 1),
    "v": range(limits.value_bytes_max.bit_length() + 1),
}


@dataclass(frozen=True, slots=True)
class Stats:
    """What is to be looked at."""

    source: Mapping[str, str]
    """As options of the data source."""
    picture: str | None = None
    """A file for the picture."""


def stats(spark: SparkSession, ask: Stats, say: Say = silent) -> Summary:
    """Count."""
    options = options_of(ask.source)
    if options.topic is not None:
        raise InvalidRequest("topic: stats are of keys; see `shardnode topic describe`")
    say("opening the cut")
    owner, pinned = owner_of(options), pin(spark, options, COLUMNS)
    say("counting")
    found = {row["shard"]: row for row in counted(pinned.frame).collect()}
    shards = [_shard(shard, found.get(shard), owner) for shard in pinned.indexes]
    indexes = {str(shard): index for shard, index in pinned.indexes.items()}
    facts = {"cluster": owner.cluster, "indexes": indexes, **facts_of(shards)}
    sections = sections_of(shards, f"keys of cluster {owner.cluster}")
    if ask.picture is not None:
        title = f"cluster {owner.cluster}: {facts['rows']} keys in {len(shards)} shards"
        Path(ask.picture).write_text(picture(shards, title))
        facts["picture"] = ask.picture
        sections.append(f"the picture is in {ask.picture}")
    return Summary("stats", facts, sections)


def counted(frame: DataFrame) -> DataFrame:
    """One row for each shard that has any."""
    sized = frame.select(
        "shard",
        "slot",
        f.col("expires_at").isNotNull().alias("has_ttl"),
        f.octet_length("key").cast("bigint").alias("k"),
        f.octet_length("value").cast("bigint").alias("v"),
    )
    each = [column for name in _BUCKETS for column in _of_sizes(name)]
    return sized.groupBy("shard").agg(
        f.count(f.lit(1)).alias("rows"),
        f.count_if(f.col("has_ttl")).alias("with_ttl"),
        f.size(f.collect_set("slot")).alias("slots_used"),
        *each,
    )


def _of_sizes(name: str) -> list[Column]:
    size = f.col(name)
    digits = f.when(size == 0, 0).otherwise(f.length(f.bin(size)))
    return [
        f.sum(size).alias(f"{name}_total"),
        f.min(size).alias(f"{name}_min"),
        f.max(size).alias(f"{name}_max"),
        f.percentile_approx(size, list(QUANTILES), ACCURACY).alias(f"{name}_quantiles"),
        f.array(*(f.count_if(digits == bucket) for bucket in _BUCKETS[name])).alias(
            f"{name}_buckets"
        ),
    ]


def _shard(shard: int, row: Row | None, owner: Owner) -> ShardSizes:
    owned = owner.table.owners.count(shard)
    if row is None:
        return ShardSizes(shard, 0, 0, 0, owned, NO_SIZES, NO_SIZES)
    sizes = [_sizes(row.asDict(), name) for name in _BUCKETS]
    return ShardSizes(shard, row["rows"], row["with_ttl"], row["slots_used"], owned, *sizes)


def _sizes(row: Mapping[str, Any], name: str) -> Sizes:
    p50, p90, p99 = row[f"{name}_quantiles"]
    counts = {bucket: count for bucket, count in enumerate(row[f"{name}_buckets"]) if count}
    return Sizes(
        row[f"{name}_total"], row[f"{name}_min"], p50, p90, p99, row[f"{name}_max"], counts
    )
