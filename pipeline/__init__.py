"""Spark: the data source `shardnode`, the jobs, and the search for a Java.

    session(**conf)      a SparkSession with Java and Python found
    register(spark)      the data source, where Spark does not find it by itself
    by_shard(df, …)      rows in one Spark partition per shard, placed inside the JVM

It reads a running node through the client, and a stopped one or a backup through its files. Its one
rule: it never opens a live store; what a frame reads is a cut that does not change.

    options              what a user may say, checked
    source               the door that Spark knocks at
    schemas, arrow       columns, and batches made of them
    keys_*               the key-value table: cuts, overlays, scans
    topics_*             topics: pages of batches as columns, in batch and in streams
    changes_*            what changed of keys, as a stream
    writes, write_*      rows to keys and topics, each once
    placement            slot and shard of a key as expressions of the JVM
    jobs, jobs_*         what `shardnode job run` does
    java, spark          finding what Spark needs

Importing this costs nothing: pyspark and pyarrow are loaded when they are first needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardnode.pipeline.placement import by_shard as by_shard
    from shardnode.pipeline.spark import register as register
    from shardnode.pipeline.spark import session as session

__all__ = ["by_shard", "register", "session"]


_HOMES = {"by_shard": "placement", "register": "spark", "session": "spark"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
