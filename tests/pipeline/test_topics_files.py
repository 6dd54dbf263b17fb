"""Topics of a stopped node's directory, without Spark: every message that was agreed, once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shardnode import Client
from shardnode.client.messages import OutgoingMessage
from shardnode.pipeline.options import parse
from shardnode.pipeline.schemas import whole_schema
from shardnode.pipeline.topics_files import TailPiece
from shardnode.pipeline.topics_scan import Piece, TopicReader
from shardnode.testing.node import NodeUnderTest
from shardnode.wire.errors import InvalidRequest, NotFound
from tests.pipeline.sending import as_sent

PARTITIONS = 3
Rows = list[Mapping[str, Any]]


def pieces_of(**given: str) -> tuple[list[Piece], Rows]:
    """The pieces of a frame, and its rows in the order of places."""
    options = parse({"topic": "files/all", **given})
    reader = TopicReader(options, whole_schema(options))
    pieces: list[Any] = as_sent(reader.partitions())
    rows = [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]
    return pieces, sorted(rows, key=place)


def place(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["partition"], row["offset"]


def fill(db: Client, rounds: int) -> None:
    topic = db.create_topic("files/all", partitions=PARTITIONS, exist_ok=True)
    for number in range(rounds):
        for partition in range(PARTITIONS):
            keyed = OutgoingMessage(b"k%d" % number, b"key", {"n": b"%d" % number})
            topic.append([keyed, b"x" * 500], partition=partition)
            topic.append([b"z" * 500] * 20, partition=partition, compression="zstd")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    with NodeUnderTest(2, folder=tmp_path_factory.mktemp("files")) as running:
        yield running


@pytest.fixture
def crashed(node: NodeUnderTest, tmp_path: Path) -> Callable[[], Path]:
    """The files as they are at one moment, which no process was told of."""

    def take() -> Path:
        pids = [node.pid(shard) for shard in range(node.shards)]
        assert None not in pids
        try:
            for pid in pids:
                os.kill(pid or 0, signal.SIGSTOP)
            return Path(shutil.copytree(node.data, tmp_path / "crashed"))
        finally:
            for pid in pids:
                os.kill(pid or 0, signal.SIGCONT)

    return take


def test_after_a_crash_the_logs_of_the_shards_tell_what_their_files_lack(
    node: NodeUnderTest, crashed: Callable[[], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with node.client() as db:
        fill(db, 50)
    node.stop()
    node.start()  # with files that reach up to here
    with node.client() as db:
        fill(db, 50)
        _, expected = pieces_of(connect=node.address)
    path = crashed()
    pieces, rows = pieces_of(path=str(path))
    assert any(isinstance(piece, TailPiece) for piece in pieces)
    for partition in range(PARTITIONS):
        own = [row for row in rows if row["partition"] == partition]
        everything = [row for row in expected if row["partition"] == partition]
        assert own == everything[: len(own)]
        assert len(own) >= len(everything) - 22  # the last entries, which are not known as agreed
    told = [record.message for record in caplog.records]
    assert told
    assert all("not known to be agreed, so they are left out" in each for each in told)


def test_a_directory_in_use_and_what_is_none_are_refused(
    node: NodeUnderTest, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match="found that one is running on it"):
        pieces_of(path=str(node.data))
    with pytest.raises(NotFound, match="expected the directory of a stopped node"):
        pieces_of(path=str(tmp_path))
    with pytest.raises(InvalidRequest, match="path is read from its files"):
        pieces_of(path=str(node.data), access="remote")


def test_a_node_that_was_stopped_has_every_message_in_its_files(
    node: NodeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    with node.client() as db:
        fill(db, 30)
    options = {"minPartitions": "8", "startingOffsets": '{"0": 5, "2": -1}', "endingOffsets": "-0s"}
    _, expected = pieces_of(connect=node.address)
    moment = expected[-1]["timestamp"].isoformat()
    _, recent = pieces_of(connect=node.address, startingOffsets=moment)
    _, some = pieces_of(connect=node.address, **options)
    node.stop()
    assert pieces_of(path=str(node.data))[1] == expected
    assert pieces_of(path=str(node.data), startingOffsets=moment)[1] == recent != expected
    pieces, rows = pieces_of(path=str(node.data), **options)
    assert rows == some
    assert len(pieces) >= 8
    assert not caplog.records
    with pytest.raises(NotFound, match="no topic files/none"):
        pieces_of(path=str(node.data), topic="files/none")
