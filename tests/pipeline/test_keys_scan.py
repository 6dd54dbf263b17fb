"""What a scan of keys gives is what the node held when the frame was loaded, however it is read."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardnode import Client
from shardnode.client.cuts import CutReader
from shardnode.pipeline.keys_scan import KeyPart
from shardnode.pipeline.keys_source import CutFile, LocalFile
from shardnode.testing.node import NodeUnderTest
from shardnode.wire.errors import InvalidRequest, NotFound, Unavailable
from tests.pipeline.keys_kit import Frame, fill, known

SHARDS = 3
SIZE = 1_000
COUNT = 30_000
"""Together more than the log that a frame reads without a snapshot."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    with NodeUnderTest(SHARDS, folder=tmp_path_factory.mktemp("scan")) as running:
        yield running


@pytest.fixture(scope="module")
def filled(node: NodeUnderTest) -> dict[bytes, bytes]:
    with node.client() as db:
        return fill(db, b"full:", COUNT, SIZE)


@pytest.fixture
def db(node: NodeUnderTest) -> Iterator[Client]:
    with node.client() as client:
        yield client


def frame(node: NodeUnderTest, *columns: str, **options: str) -> Frame:
    return Frame({"connect": node.address, **options}, columns)


def kinds(of: Frame) -> set[type]:
    return {type(part.source) for part in of.partitions if isinstance(part, KeyPart)}


def test_a_small_table_is_read_from_the_log_alone(node: NodeUnderTest, db: Client) -> None:
    db.put_many({b"small:1": b"a", b"small:{t}:2": b"", b"small:\xff\xfe": b"\x00"})
    db.put("small:ttl", "x", ttl=3_600)
    db.delete("small:1")
    db.put("small:{t}:2", "again")
    found = frame(node, prefix="small:")
    assert kinds(found) == {type(None)}
    assert found.rows() == known(db, b"small:")


@pytest.mark.parametrize(("access", "kind"), [("local", LocalFile), ("remote", CutFile)])
def test_a_scan_is_the_snapshot_and_what_was_written_behind_it(
    node: NodeUnderTest, db: Client, filled: dict[bytes, bytes], access: str, kind: type
) -> None:
    first = frame(node, access=access)
    assert kinds(first) == {kind}
    draw = random.Random(access)
    keys = draw.sample(sorted(filled), 900)
    db.put_many(dict.fromkeys(keys[:300], b"new"))
    db.delete_many(keys[300:600])
    db.put_many(dict.fromkeys((b"full:%s:%d" % (access.encode(), n) for n in range(300)), b"more"))
    with_ttl = keys[600:700]
    for key in with_ttl[:20]:
        db.put(key, b"soon", ttl=3_600)
    second = frame(node, access=access)
    assert kinds(second) == {kind}
    expected = known(db, b"full:")
    assert {k: r for k, r in second.rows().items() if k.startswith(b"full:")} == expected
    before = first.values()
    assert {key: before[key] for key in keys if key in filled} == {key: filled[key] for key in keys}
    assert first.values() == before, "two actions on one frame"
    for key in keys:  # for the other one
        db.put(key, filled[key])


def test_ranges_partitions_and_columns_are_as_asked_for(
    node: NodeUnderTest, filled: dict[bytes, bytes]
) -> None:
    wanted = {k for k in filled if b"full:00010000" <= k < b"full:00025000"}
    for access in ("local", "remote"):
        found = frame(
            node, "value", "key", start="full:00010000", end="full:00025000",
            maxRecordsPerPartition="1500", access=access, prefix="full:000",
        )  # fmt: skip
        by_part = [
            [row for batch in found.reader.read(part) for row in batch.to_pylist()]
            for part in found.partitions
        ]
        assert len(by_part) >= 10
        assert max(map(len, by_part)) <= 1_500
        assert {row["key"] for rows in by_part for row in rows} == wanted
        assert {tuple(row) for rows in by_part for row in rows} == {("value", "key")}
    assert len(frame(node, minPartitions="40").partitions) >= 40
    assert frame(node, start="x", end="a").rows() == {}
    assert frame(node, prefix="nothing:").rows() == {}


def test_a_frame_does_not_change_while_others_write(
    node: NodeUnderTest, filled: dict[bytes, bytes]
) -> None:
    done = threading.Event()

    def write() -> None:
        with node.client() as db:
            draw = random.Random(3)
            while not done.is_set():
                db.put_many({b"busy:%d" % draw.randrange(50_000): draw.randbytes(500)
                             for _ in range(200)})  # fmt: skip

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = frame(node, access="remote")
        first = found.rows()
        assert found.rows() == first
        assert filled.keys() <= first.keys()
    finally:
        done.set()
        writer.join()


def test_a_worker_that_dies_while_it_is_read_costs_no_row(
    node: NodeUnderTest, filled: dict[bytes, bytes]
) -> None:
    found = frame(node, access="remote", prefix="full:", minPartitions="12")
    expected = found.values()
    rows: dict[bytes, bytes] = {}
    for number, part in enumerate(found.partitions):
        batches = found.reader.read(part)
        batch = next(batches)
        if number in (2, 6, 10):
            node.kill(number % SHARDS)
        for each in (batch, *batches):
            rows |= {row["key"]: row["value"] for row in each.to_pylist()}
    node.wait_ready()
    assert rows == expected
    assert filled.keys() <= rows.keys()


def test_a_snapshot_that_nobody_holds_any_more_is_said_to_be_gone(
    node: NodeUnderTest, db: Client, filled: dict[bytes, bytes]
) -> None:
    fill(db, b"more:", COUNT, SIZE)  # so much that another snapshot is built, which nobody holds
    local, remote = frame(node, access="local"), frame(node, access="remote")
    reader = CutReader(node.address)
    for each in (local, remote):
        for part in each.partitions:
            assert isinstance(part, KeyPart)
            for pin in part.pins:
                reader.close(pin.as_cut())
    for seed in range(3):  # and others, until the old one is dropped
        fill(db, b"more:", COUNT, SIZE, seed)
        frame(node, access="local")
    reader.finish()
    assert filled
    for each in (local, remote):
        with pytest.raises((NotFound, Unavailable), match="load"):
            each.rows()


def test_local_access_to_files_that_are_not_here_is_refused(
    node: NodeUnderTest, filled: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert filled
    monkeypatch.setattr("shardnode.pipeline.keys_cut._is_same", lambda *_: False)
    with pytest.raises(InvalidRequest, match="access=remote"):
        frame(node, access="local")
    assert kinds(frame(node, access="auto")) == {CutFile}


def test_nobody_there_is_unavailable_within_the_timeout(tmp_path: Path) -> None:
    with NodeUnderTest(1, folder=tmp_path) as gone:
        address = gone.address
    with pytest.raises(Unavailable):
        Frame({"connect": address, "timeout": "0.5"})
