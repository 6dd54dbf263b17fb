"""Keys or a topic as Parquet: `shard=N/` for each shard, every column, and the cut in a manifest.

    1. the cut is pinned, and its rows are written by the tasks that read them
    2. what was written is read again and compared with what was read from the shards
    3. the manifest is published

One rule: where there is a manifest, all rows of its cut are there, and were read back once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as f

from shardnode.client.topics import to_topic_name
from shardnode.pipeline.jobs import Say, Section, Summary, Table, shown_bytes, silent
from shardnode.pipeline.jobs_frames import Owner, Pinned, options_of, owner_of, pin, schema_of
from shardnode.pipeline.jobs_manifest import Contents, FileEntry, Manifest
from shardnode.pipeline.jobs_place import Place
from shardnode.pipeline.options import parse
from shardnode.pipeline.schemas import ddl_of
from shardnode.wire.errors import Corrupt

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from shardnode.pipeline.options import Options

SETTINGS = {
    # Whole microseconds that every reader knows.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows of one task are all of one shard, so they need not be sorted by it before.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
}


@dataclass(frozen=True, slots=True)
class Export:
    """What is to be exported."""

    source: Mapping[str, str]
    """As options of the data source."""
    dest: str
    overwrite: bool = False


def export(spark: SparkSession, ask: Export, say: Say = silent) -> Summary:
    """Write it; raises `InvalidRequest` for a destination that is not empty."""
    options = options_of(ask.source)
    place = Place(spark, ask.dest)
    place.make_ready(overwrite=ask.overwrite)
    say("opening the cut")
    began = now()
    owner, pinned = owner_of(options), pin(spark, options)
    manifest = _described(options, owner, pinned, began)
    say("writing rows")
    read = _write(spark, pinned.frame, place)
    say("reading them back")
    files = read_back(spark, place, options)
    manifest = replace(manifest, ended=now(), files=files)
    wrote = (manifest.rows, _xor(files))
    if wrote != read:
        raise Corrupt(
            f"{ask.dest}: expected the {read[0]} rows that were read, found {wrote[0]} in the"
            " files, or others; look at the disk, and export again with --overwrite"
        )
    place.publish(manifest)
    return summary_of(manifest, ask.dest)


def _write(spark: SparkSession, frame: DataFrame, place: Place) -> tuple[int, int]:
    """(rows, digest) of what was read."""
    seen = Observation()
    watched = frame.observe(
        seen, f.count(f.lit(1)).alias("rows"), f.bit_xor(row_digest(frame)).alias("digest")
    )
    with settings(spark, SETTINGS):
        watched.write.partitionBy("shard").mode("append").parquet(place.url)
    found: Mapping[str, Any] = seen.get
    return found["rows"], found["digest"] or 0


def row_digest(frame: DataFrame) -> Column:
    """64 bits of all columns of a row but its shard, which a directory tells."""
    return f.xxhash64(*(name for name in sorted(frame.columns) if name != "shard"))


def read_rows(spark: SparkSession, place: Place, options: Options) -> DataFrame:
    """The rows of an export, with all their columns; none where there are no files."""
    schema = schema_of(options)
    if not place.sizes():
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(place.url)


def contents_of(rows: DataFrame) -> dict[str, Contents]:
    """What is in each file, by its path."""
    from_files = rows.withColumn("_file", f.col("_metadata.file_name"))
    found = (
        from_files.groupBy("shard", "_file")
        .agg(
            f.count(f.lit(1)).alias("rows"),
            f.sum(_length("key") + _length("value")).alias("bytes"),
            f.bit_xor(row_digest(rows)).alias("digest"),
        )
        .collect()
    )
    return {
        f"shard={row['shard']}/{row['_file']}": Contents(row["rows"], row["bytes"], row["digest"])
        for row in found
    }


def _length(name: str) -> Column:
    return f.coalesce(f.octet_length(name), f.lit(0)).cast("bigint")


def read_back(spark: SparkSession, place: Place, options: Options) -> tuple[FileEntry, ...]:
    """All files of rows, and what is in them."""
    sizes = place.sizes()
    read = contents_of(read_rows(spark, place, options)) if sizes else {}
    nothing = Contents(0, 0, 0)
    return tuple(FileEntry(path, sizes[path], read.get(path, nothing)) for path in sorted(sizes))


def _xor(files: tuple[FileEntry, ...]) -> int:
    digest = 0
    for each in files:
        digest ^= each.contents.digest
    return digest


def _described(options: Options, owner: Owner, pinned: Pinned, began: str) -> Manifest:
    return Manifest(
        topic=None if options.topic is None else to_topic_name(options.topic),
        partitions=len(pinned.spans),
        cluster=owner.cluster,
        cluster_id=owner.cluster_id,
        shards=owner.table.shards,
        epoch=owner.table.epoch,
        source=options.path or ", ".join(options.connect),
        began=began,
        ended=began,
        columns=ddl_of(options),
        indexes=pinned.indexes,
        spans=tuple((span.partition, span.start, span.end) for span in pinned.spans),
        prefix=options.prefix,
        start=options.start,
        end=options.end,
    )


def options_of_manifest(manifest: Manifest) -> Options:
    """What its rows are, as options."""
    return parse({} if manifest.topic is None else {"topic": manifest.topic})


def summary_of(manifest: Manifest, dest: str) -> Summary:
    """What was exported."""
    by_shard = manifest.by_shard()
    shards = [
        {"id": shard, "rows": rows, "bytes": size, "index": manifest.indexes.get(shard)}
        for shard, (rows, size) in by_shard.items()
    ]
    spans = [{"partition": p, "start": start, "end": end} for p, start, end in manifest.spans]
    file_bytes = sum(each.size for each in manifest.files)
    facts = {
        "destination": dest,
        "topic": manifest.topic,
        "cluster": manifest.cluster,
        "rows": manifest.rows,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "file_bytes": file_bytes,
        "shards": shards,
        "partitions": spans,
    }
    what = "keys" if manifest.topic is None else f"messages of {manifest.topic}"
    sections: list[Section] = [
        f"{manifest.rows} {what} of cluster {manifest.cluster} are in {dest}:"
        f" {len(manifest.files)} files, {shown_bytes(file_bytes)} for"
        f" {shown_bytes(manifest.bytes)} of keys and values",
    ]
    if manifest.topic is None:
        rows = [
            (shard, manifest.indexes.get(shard), rows, shown_bytes(size))
            for shard, (rows, size) in by_shard.items()
        ]
        sections.append(Table(["shard", "log index", "rows", "keys and values"], rows))
    else:
        sections.append(Table(["partition", "from", "to before"], manifest.spans))
    return Summary("export", facts, sections)


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for a while."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def now() -> str:
    """A time as people and programs read it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
