"""Parquet back into keys or a topic: an export, or any rows with a key and a value.

    keys       put, as every write of Spark's: each with its time to live, if that is not over
    messages   appended to the partition they came from, in their order; offsets and timestamps are
               those of the new topic

One rule: rows of an export are written only when all of them are there, as they were exported.

A second import of the same export puts the same values again. Messages it appends only where they
are missing: the import is named after the export and the topic, and every batch of it has a name
that follows from its rows. That is remembered for a day of everything, and for ever of the last
thousand batches of a partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from shardnode.client.sync import Client
from shardnode.client.topics import to_topic_name
from shardnode.pipeline.jobs import Say, Section, Summary, silent
from shardnode.pipeline.jobs_export import contents_of, options_of_manifest, read_rows
from shardnode.pipeline.jobs_manifest import Manifest, differences_of, problems_of
from shardnode.pipeline.jobs_place import Place
from shardnode.pipeline.options import check, parse
from shardnode.pipeline.placement import by_shard
from shardnode.pipeline.shards import Shards
from shardnode.pipeline.topics_shards import Topic, describe
from shardnode.wire.errors import Corrupt, InvalidRequest, NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from shardnode.pipeline.options import Options

OF_KEYS = ("key", "value", "ttl", "expires_at")
OF_TOPICS = ("key", "value", "headers", "partition")

PROBLEMS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Import:
    """What is to be imported."""

    source: str
    target: Mapping[str, str]
    """As options of the data source; a topic that is not named is called as it was."""
    manifest: bool = True
    """Whether the source is an export, which is checked; else it is any Parquet."""
    create: bool = False
    """Make the topic if it is not there."""
    again: bool = False
    """Append messages even if this export was imported before."""


def import_(spark: SparkSession, ask: Import, say: Say = silent) -> Summary:
    """Write it; raises `Corrupt` for an export that is not whole."""
    place = Place(spark, ask.source)
    manifest = None
    if ask.manifest:
        say("checking the export")
        manifest = place.manifest()
        rows = checked(spark, place, manifest)
    else:
        rows = _any_rows(spark, place)
    target = _target(ask, manifest)
    options = parse(target)
    check(target, "write")
    if options.topic is not None:
        return _to_topic(ask, rows, options, target, manifest, say)
    return _to_keys(ask, rows, options, target, say)


def checked(spark: SparkSession, place: Place, manifest: Manifest) -> DataFrame:
    """All rows of an export; raises `Corrupt` unless they are those of its manifest."""
    problems = problems_of(manifest, place.sizes())
    rows = read_rows(spark, place, options_of_manifest(manifest))
    if not problems and manifest.files:
        problems = differences_of(manifest, contents_of(rows))
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        shown = [*problems[:PROBLEMS_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        raise Corrupt(
            f"{place.url}: the export is not as it was written: {'; '.join(shown)}. Take another"
            " copy of it, or give --no-manifest to import what is there"
        )
    return rows


def _any_rows(spark: SparkSession, place: Place) -> DataFrame:
    if not place.names():
        raise NotFound(f"{place.url}: expected Parquet there, found nothing")
    return spark.read.parquet(place.url)


def _target(ask: Import, manifest: Manifest | None) -> dict[str, str]:
    target = dict(ask.target)
    if manifest is None:
        return target
    if manifest.topic is None and "topic" in target:
        raise InvalidRequest(
            f"{ask.source}: expected an export of a topic, found one of keys; leave out --topic, or"
            " give --no-manifest to make messages of their keys and values"
        )
    if manifest.topic is not None:
        target.setdefault("topic", manifest.topic)
    return target


# -- keys -----------------------------------------------------------------------------------------


def _to_keys(
    ask: Import, rows: DataFrame, options: Options, target: Mapping[str, str], say: Say
) -> Summary:
    wanted = _columns(rows, OF_KEYS, ("key", "value"))
    say("counting")
    total, expired = rows.count(), 0
    if "expires_at" in wanted.columns:
        over = f.col("expires_at") <= f.lit(datetime.now(UTC))
        expired = wanted.where(over).count()
        wanted = wanted.where(f.coalesce(~over, f.lit(True)))
    with Shards(options) as shards:
        table = shards.table()
    say("writing keys")
    if expired < total:
        placed = by_shard(wanted, table)
        placed.write.format("shardnode").options(**target).mode("append").save()
    facts = {
        "source": ask.source,
        "rows": total,
        "written": total - expired,
        "expired": expired,
        "shards": table.shards,
    }
    sections: list[Section] = [f"{total - expired} keys of {ask.source} were put"]
    if expired:
        sections.append(f"{expired} were left out, because their time to live is over")
    return Summary("import", facts, sections)


# -- topics ---------------------------------------------------------------------------------------


def _to_topic(
    ask: Import,
    rows: DataFrame,
    options: Options,
    target: dict[str, str],
    manifest: Manifest | None,
    say: Say,
) -> Summary:
    assert options.topic is not None, "there is a topic"
    topic = _topic(ask, options, manifest)
    wanted = _columns(rows, OF_TOPICS, ("value",))
    kept = "partition" in wanted.columns and _fits(rows, topic, manifest)
    if not kept:
        wanted = wanted.drop("partition")
    # Named rows have to come in the same order again, and messages keep theirs.
    is_named = manifest is not None and kept
    if is_named:
        assert manifest is not None, "it has a name of its own"
        wanted = _in_order(rows, manifest.partitions).select(*wanted.columns)
        if not ask.again:
            target["identity"] = f"{manifest.identity}/{topic.stream}.{topic.number}"
    total = rows.count()
    say("appending messages")
    before = _ends(options, topic)
    if total:
        wanted.write.format("shardnode").options(**target).mode("append").save()
    appended = _ends(options, topic) - before
    facts: dict[str, Any] = {
        "source": ask.source,
        "topic": topic.name,
        "partitions": topic.partitions,
        "rows": total,
        "appended": appended,
        "partitions_kept": kept,
        "repeatable": "identity" in target,
    }
    return Summary("import", facts, _of_topic(facts))


def _topic(ask: Import, options: Options, manifest: Manifest | None) -> Topic:
    assert options.topic is not None, "there is a topic"
    name = to_topic_name(options.topic)
    with Shards(options) as shards:
        try:
            return describe(shards, name)
        except NotFound as error:
            if not ask.create or manifest is None:
                count = manifest.partitions if manifest is not None else "N"
                raise NotFound(
                    f"expected a topic {name}, found none; `shardnode topic create {name}"
                    f" --partitions {count}`"
                    + (", or give --create" if manifest is not None else "")
                ) from error
    with Client(list(options.connect)) as db:
        db.create_topic(name, partitions=manifest.partitions, exist_ok=True)
    with Shards(options) as shards:
        return describe(shards, name)


def _fits(rows: DataFrame, topic: Topic, manifest: Manifest | None) -> bool:
    """Whether the topic has a partition for each one that is asked for."""
    if manifest is not None:
        return manifest.partitions <= topic.partitions
    last = rows.agg(f.max("partition")).first()
    return last is not None and (last[0] is None or last[0] < topic.partitions)


def _in_order(rows: DataFrame, partitions: int) -> DataFrame:
    """Each partition of the topic in one of Spark's, in the order of offsets."""
    if hasattr(rows, "repartitionById"):  # from Spark 4.1
        placed = rows.repartitionById(partitions, f.col("partition"))
    else:
        placed = rows.repartition(partitions, "partition")
    return placed.sortWithinPartitions("partition", "offset")


def _ends(options: Options, topic: Topic) -> int:
    """How many messages were ever appended to the topic."""
    from shardnode.pipeline.topics_shards import bounds

    with Shards(options) as shards:
        return sum(each.end for each in bounds(shards, topic))


def _of_topic(facts: Mapping[str, Any]) -> list[Section]:
    there = facts["rows"] - facts["appended"]
    sections: list[Section] = [
        f"{facts['appended']} messages of {facts['source']} were appended to {facts['topic']},"
        " with offsets and timestamps of now"
    ]
    if there > 0:
        sections.append(f"{there} were there already, of an import before")
    if not facts["partitions_kept"]:
        sections.append("their partitions are new ones, chosen by their keys")
    if not facts["repeatable"]:
        sections.append("another import of them would append them once more")
    return sections


def _columns(rows: DataFrame, known: tuple[str, ...], needed: tuple[str, ...]) -> DataFrame:
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        raise InvalidRequest(
            f"expected a column {missing[0]!r}, found {', '.join(rows.columns) or 'none'}; rename"
            " or make it with Spark, and import that"
        )
    return rows.select(*(name for name in known if name in rows.columns))
