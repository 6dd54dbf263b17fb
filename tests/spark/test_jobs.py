"""Jobs as the command runs them, over a node, in the session that all tests of Spark share."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from shardnode import Client, OutgoingMessage
from shardnode.backup.store import FolderStore
from shardnode.backup.take import take_backup
from shardnode.client.cuts import CutReader
from shardnode.pipeline import jobs_verify
from shardnode.pipeline.jobs import Summary
from shardnode.pipeline.jobs_export import Export, export, read_back
from shardnode.pipeline.jobs_frames import options_of, pin
from shardnode.pipeline.jobs_import import Import, import_
from shardnode.pipeline.jobs_manifest import Manifest
from shardnode.pipeline.jobs_place import Place
from shardnode.pipeline.jobs_replicas import Replicas, open_replicas
from shardnode.pipeline.jobs_reshard import ReshardPlan, reshard_plan
from shardnode.pipeline.jobs_sizes import bucket_of, low_of
from shardnode.pipeline.jobs_stats import Stats, stats
from shardnode.pipeline.jobs_verify import Verify, verify
from shardnode.pipeline.options import Options
from shardnode.testing.cluster import Cluster
from shardnode.testing.node import NodeUnderTest
from shardnode.wire.errors import Corrupt, InvalidRequest, NotFound
from shardnode.wire.placement import initial_table, slot_of_key
from tests.cli.kit import COMMAND, environment
from tests.spark.conftest import SHORT_LIVED
from tests.spark.test_writes import messages_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = b"job:"
COUNT = 600


def key_of(number: int) -> bytes:
    """Text, tags, and bytes that are no text."""
    kinds = (b"%d", b"{tag%d}", b"\xff\x00%d")
    return PREFIX + kinds[number % 3] % number


@pytest.fixture
def source(node: NodeUnderTest) -> dict[str, str]:
    """The keys of these tests, as options of the data source."""
    return {"connect": node.address, "prefix": "job:"}


@pytest.fixture
def filled(db: Client) -> dict[bytes, bytes]:
    """Keys of all kinds, anew for each test."""
    values = {key_of(number): b"\x80" * (number % 97) for number in range(COUNT)}
    db.delete_many([entry.key for entry in db.scan(prefix=PREFIX, keys_only=True)])
    db.put_many(values)
    return values


def values_of(db: Client) -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in db.scan(prefix=PREFIX)}


def verdicts(summary: Summary) -> Counter[str]:
    """How many rows have which verdict, over all shards and comparisons."""
    found: Counter[str] = Counter()
    for each in summary.facts["comparisons"]:
        for shard in each["shards"]:
            for name in ("same", "newer", "expired", "gone", "missing", "different", "extra"):
                found[name] += shard[name]
    return +found


def test_what_was_exported_comes_back_after_everything_was_deleted(
    spark: SparkSession,
    db: Client,
    source: dict[str, str],
    filled: dict[bytes, bytes],
    tmp_path: Path,
) -> None:
    db.put(PREFIX + b"for-an-hour", b"", ttl=3_600)
    db.put(PREFIX + b"for-a-moment", b"gone soon", ttl=1.5)
    before = {entry.key: entry for entry in db.scan(prefix=PREFIX)}
    dest = tmp_path / "export"
    told = export(spark, Export(source, str(dest)))
    assert told.facts["rows"] == COUNT + 2
    assert told.facts["bytes"] == sum(len(e.key) + len(e.value) for e in before.values())
    manifest = Place(spark, str(dest)).manifest()
    table = pq.read_table(str(dest)).to_pylist()
    assert {row["key"]: row["version"] for row in table} == {
        k: e.version for k, e in before.items()
    }
    for shard, index in manifest.indexes.items():
        versions = [row["version"] for row in table if int(row["shard"]) == shard]
        assert max(versions) <= index
        assert len(versions) == manifest.by_shard()[shard][0]
    db.put(PREFIX + b"later", b"not in the export")
    db.delete_many([*before, PREFIX + b"later"])
    while time.time() < before[PREFIX + b"for-a-moment"].expires_at.timestamp():  # type: ignore[union-attr]
        time.sleep(0.05)
    target = {"connect": source["connect"]}
    back = import_(spark, Import(str(dest), target))
    assert (back.facts["written"], back.facts["expired"]) == (COUNT + 1, 1)
    assert values_of(db) == {**filled, PREFIX + b"for-an-hour": b""}
    entry = db.get_entry(PREFIX + b"for-an-hour")
    assert entry is not None
    assert entry.expires_at is not None
    ends = entry.expires_at - before[entry.key].expires_at  # type: ignore[operator]
    assert abs(ends.total_seconds()) < 5
    assert not verify(spark, Verify(target, str(dest), by="values")).differs


def test_the_manifest_tells_the_cut_of_the_rows_and_not_a_later_one(
    spark: SparkSession, db: Client, source: dict[str, str], filled: dict[bytes, bytes]
) -> None:
    pinned = pin(spark, options_of(source))
    version = db.put(key_of(0), b"later")
    assert version > pinned.indexes[initial_table(3).shard_of_key(key_of(0))]
    rows = pinned.frame.toArrow().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == filled
    assert all(row["version"] <= pinned.indexes[row["shard"]] for row in rows)


def test_an_export_with_a_file_or_a_row_missing_is_not_imported(
    spark: SparkSession,
    db: Client,
    source: dict[str, str],
    filled: dict[bytes, bytes],
    tmp_path: Path,
) -> None:
    dest = tmp_path / "export"
    export(spark, Export(source, str(dest)))
    with pytest.raises(InvalidRequest, match="give --overwrite to replace it"):
        export(spark, Export(source, str(dest)))
    export(spark, Export(source, str(dest), overwrite=True))
    target = {"connect": source["connect"]}
    (file, *_) = sorted(dest.glob("shard=1/*.parquet"))
    kept = file.read_bytes()
    checksum = file.with_name(f".{file.name}.crc")
    checksum.unlink()
    db.delete_many(list(filled))
    file.unlink()
    with pytest.raises(Corrupt, match="parquet is missing"):
        import_(spark, Import(str(dest), target))
    file.write_bytes(kept)
    rows = pq.read_table(file).slice(1)
    pq.write_table(rows, file)
    manifest = Place(spark, str(dest)).manifest()
    files = [
        f._replace(size=file.stat().st_size) if file.name in f.path else f for f in manifest.files
    ]
    (dest / "_manifest.json").unlink()
    with pytest.raises(NotFound, match="found none: it was interrupted"):
        import_(spark, Import(str(dest), target))
    Place(spark, str(dest)).publish(replace(manifest, files=files))
    with pytest.raises(
        Corrupt, match=f"expected its {rows.num_rows + 1} rows, found {rows.num_rows}"
    ):
        import_(spark, Import(str(dest), target))
    assert values_of(db) == {}, "nothing was written"
    import_(spark, Import(str(dest), target, manifest=False))
    assert len(values_of(db)) == COUNT - 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InvalidRequest, match=r"found 'letter\.txt'"):
        export(spark, Export(source, str(tmp_path / "mine"), overwrite=True))


def test_messages_come_back_once_however_often_they_are_imported(
    spark: SparkSession, node: NodeUnderTest, db: Client, tmp_path: Path
) -> None:
    topic = db.create_topic("jobs/from", partitions=3)
    for partition in range(2):
        sent = [
            OutgoingMessage(
                b"%d\xff" % n, b"k%d" % n if n % 2 else None, [("h", b"\x80"), ("h", b"")]
            )
            for n in range(40)
        ]
        topic.append(sent, partition=partition)
    dest = str(tmp_path / "export")
    export(spark, Export({"connect": node.address, "topic": "jobs/from"}, dest))
    manifest = Place(spark, dest).manifest()
    assert [*manifest.spans] == [(0, 0, 40), (1, 0, 40), (2, 0, 0)]
    target = {"connect": node.address, "topic": "jobs/to"}
    with pytest.raises(NotFound, match=r"a topic jobs/to, found none.*--partitions 3"):
        import_(spark, Import(dest, target))
    told = import_(spark, Import(dest, target, create=True))
    assert (told.facts["appended"], told.facts["repeatable"]) == (80, True)

    def contents(name: str) -> list[tuple[object, ...]]:
        return [
            (m.partition, m.offset, m.key, m.value, m.headers.pairs) for m in messages_of(db, name)
        ]

    assert contents("jobs/to") == contents("jobs/from")
    assert import_(spark, Import(dest, target)).facts["appended"] == 0
    assert contents("jobs/to") == contents("jobs/from")
    assert import_(spark, Import(dest, target, again=True)).facts["appended"] == 80


@pytest.mark.usefixtures("filled")
def test_stats_are_those_of_the_rows(
    spark: SparkSession,
    db: Client,
    source: dict[str, str],
    tmp_path: Path,
) -> None:
    db.put(PREFIX + b"ttl", b"x" * 5_000, ttl=600)
    rows = values_of(db)
    table = initial_table(3)
    told = stats(spark, Stats(source, str(tmp_path / "sizes.svg"))).facts
    for shard in told["shards"]:
        mine = {k: v for k, v in rows.items() if table.shard_of_key(k) == shard["id"]}
        sizes = sorted(map(len, mine.values()))
        assert shard["rows"] == len(mine)
        assert shard["slots_used"] == len({slot_of_key(key) for key in mine})
        assert shard["slots"] == table.owners.count(shard["id"])
        assert shard["keys"]["total"] == sum(map(len, mine))
        found = shard["values"]
        assert (found["min"], found["max"], found["total"]) == (sizes[0], sizes[-1], sum(sizes))
        assert found["p50"] in sizes[len(sizes) // 2 - 2 : len(sizes) // 2 + 3]
        expected = Counter(low_of(bucket_of(size)) for size in sizes)
        assert {each["from"]: each["count"] for each in found["histogram"]} == expected
    assert told["with_ttl"] == 1
    assert told["rows"] == COUNT + 1
    assert (tmp_path / "sizes.svg").read_text().startswith("<svg ")


def test_a_plan_counts_the_rows_that_move_as_placement_does(
    spark: SparkSession, source: dict[str, str], filled: dict[bytes, bytes], tmp_path: Path
) -> None:
    old, new = initial_table(3), initial_table(5)
    told = reshard_plan(spark, ReshardPlan(source, 5, str(tmp_path / "moved"))).facts
    expected = Counter((old.shard_of_key(k), new.shard_of_key(k)) for k in filled)
    sizes: Counter[tuple[int, int]] = Counter()
    for key, value in filled.items():
        sizes[old.shard_of_key(key), new.shard_of_key(key)] += len(key) + len(value)
    assert {(w["from"], w["to"]): w["rows"] for w in told["flows"] if w["rows"]} == expected
    assert {(w["from"], w["to"]): w["bytes"] for w in told["flows"] if w["rows"]} == sizes
    moved = {key for key in filled if old.shard_of_key(key) != new.shard_of_key(key)}
    assert told["moved"]["rows"] == len(moved)
    written = pq.read_table(str(tmp_path / "moved")).to_pylist()
    assert {row["key"] for row in written} == moved
    assert len(written) == len(moved)
    assert all(int(row["to"]) == new.shard_of_key(row["key"]) for row in written)


@pytest.mark.usefixtures("filled")
def test_verify_finds_what_a_backup_or_an_export_has_otherwise(
    spark: SparkSession,
    node: NodeUnderTest,
    db: Client,
    source: dict[str, str],
    tmp_path: Path,
) -> None:
    reader = CutReader(node.address)
    take_backup(FolderStore(tmp_path / "backup"), reader)
    reader.finish()
    dest = tmp_path / "export"
    export(spark, Export(source, str(dest)))
    changed, deleted, added = key_of(3), key_of(4), PREFIX + b"new"
    db.put(changed, b"since")
    db.delete(deleted)
    db.put(added, b"since")

    backup = verify(spark, Verify(source, str(tmp_path / "backup")))
    assert verdicts(backup) == {"same": COUNT}, "the log told what has happened since"
    assert not backup.differs
    values = verify(spark, Verify(source, str(tmp_path / "backup"), by="values"))
    assert verdicts(values) == {"same": COUNT - 2, "different": 1, "missing": 1, "extra": 1}
    assert values.differs
    sample = values.facts["comparisons"][0]["sample"]
    assert {each["verdict"] for each in sample} == {"different", "missing", "extra"}

    whole = {"connect": node.address}
    since = verify(spark, Verify(whole, str(dest)))
    assert verdicts(since) == {"same": COUNT - 2, "newer": 2, "gone": 1}
    assert since.differs
    assert not verify(spark, Verify(whole, str(dest), deleted_ok=True)).differs


def test_verify_finds_a_row_of_an_export_that_is_not_the_node_s(
    spark: SparkSession,
    node: NodeUnderTest,
    source: dict[str, str],
    filled: dict[bytes, bytes],
    tmp_path: Path,
) -> None:
    """The manifest fits the files: only the node knows better."""
    dest = tmp_path / "export"
    export(spark, Export(source, str(dest)))
    rows = spark.read.parquet(str(dest)).where("shard = 0").drop("shard")
    victim = min(k for k in filled if initial_table(3).shard_of_key(k) == 0)
    planted = rows.selectExpr(
        "key", f"if(key = X'{victim.hex()}', X'AA', value) value", "version", "expires_at", "slot"
    )
    table = planted.toArrow()
    shutil.rmtree(dest / "shard=0")
    (dest / "shard=0").mkdir()
    pq.write_table(table, dest / "shard=0" / "part-0.parquet")
    manifest = Place(spark, str(dest)).manifest()
    with pytest.raises(Corrupt, match="is missing"):
        verify(spark, Verify({"connect": node.address}, str(dest)))
    republish(spark, dest, manifest)
    told = verify(spark, Verify({"connect": node.address}, str(dest)))
    assert verdicts(told) == {"same": COUNT - 1, "different": 1}
    (sample,) = told.facts["comparisons"][0]["sample"]
    assert sample["verdict"] == "different"
    assert sample["shard"] == 0


def republish(spark: SparkSession, dest: Path, manifest: Manifest) -> None:
    """A manifest of the files as they are."""
    place = Place(spark, str(dest))
    (dest / "_manifest.json").unlink()
    place.publish(replace(manifest, files=read_back(spark, place, Options())))


def test_replicas_are_compared_at_one_index_and_a_planted_row_is_found(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(nodes=3, shards=2, proxied=False) as cluster, cluster.client() as db:
        db.put_many({b"r%d" % number: b"v" for number in range(300)})
        node = {"connect": ",".join(each.address for each in cluster.nodes.values())}
        told = verify(spark, Verify(node))
        assert verdicts(told) == {"same": 600}
        assert {each["right"] for each in told.facts["comparisons"]} == {"node 2", "node 3"}

        def planted(reader: CutReader, options: Options) -> Replicas:
            found = open_replicas(reader, options)
            shard = initial_table(2).shard_of_key(b"r7")
            keys = found[shard][3]
            changed = {**keys.changed, b"r7": b""}
            return {**found, shard: {**found[shard], 3: replace(keys, changed=changed)}}

        monkeypatch.setattr(jobs_verify, "open_replicas", planted)
        told = verify(spark, Verify(node))
        assert verdicts(told) == {"same": 599, "missing": 1}
        assert told.differs
        assert [each["differences"] for each in told.facts["comparisons"]] == [0, 1]
        assert told.facts["comparisons"][1]["sample"][0]["key"] == "r7"


def test_a_table_without_rows_is_exported_brought_back_and_measured(
    spark: SparkSession, source: dict[str, str], tmp_path: Path
) -> None:
    nothing = {**source, "prefix": "job-of-nobody:"}
    dest = str(tmp_path / "export")
    assert export(spark, Export(nothing, dest)).facts["rows"] == 0
    manifest = Place(spark, dest).manifest()
    assert sorted(manifest.indexes) == [0, 1, 2], "the cut of an empty shard is known"
    target = {"connect": source["connect"]}
    assert import_(spark, Import(dest, target)).facts["written"] == 0
    told = stats(spark, Stats(nothing, str(tmp_path / "empty.svg")))
    assert [shard["rows"] for shard in told.facts["shards"]] == [0, 0, 0]
    assert not verify(spark, Verify(target, dest)).differs
    with pytest.raises(InvalidRequest, match="no key can be between"):
        stats(spark, Stats({**source, "prefix": "job:", "end": "job"}))


def test_one_replica_has_nobody_to_be_compared_with(
    spark: SparkSession, source: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest, match="compare it with a backup"):
        verify(spark, Verify(source))


@pytest.mark.usefixtures("filled")
def test_the_command_runs_a_job_and_tells_it_in_json_and_in_a_file(
    node: NodeUnderTest, tmp_path: Path
) -> None:
    """A session of its own, as users have it."""
    summary = tmp_path / "summary.json"
    words = ["job", "run", "reshard-plan", "--to", "4", "--prefix", "job:", "--json"]
    words += ["--master", "local[1]", "--summary", str(summary), "--connect", node.address]
    for name, value in SHORT_LIVED.items():
        words += ["--conf", f"{name}={value}"]
    done = subprocess.run([*COMMAND, *words], capture_output=True, env=environment(), timeout=200)
    assert (done.returncode, done.stderr) == (0, b"")
    told = json.loads(done.stdout)
    assert told["job"] == "reshard-plan"
    assert told["total"]["rows"] == COUNT
    assert json.loads(summary.read_bytes()) == told
