"""Files give the rows that their node had: stopped, killed, backed up or restored."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shardnode.backup.restore import restore_backup
from shardnode.backup.store import FolderStore
from shardnode.backup.take import take_backup
from shardnode.client.cuts import CutReader
from shardnode.node.identity import lock_directory
from shardnode.pipeline.keys_scan import KeyPart
from shardnode.pipeline.keys_tree import TreePart
from shardnode.testing.node import NodeUnderTest
from shardnode.wire.errors import Corrupt, InvalidRequest, NotFound
from tests.pipeline.keys_kit import Frame, Row, fill, known

SIZE = 1_000
COUNT = 30_000


class World:
    """A node that has stopped, its backups, and what was in both."""

    def __init__(self, folder: Path) -> None:
        self.backup, self.second, self.restored = (folder / n for n in ("one", "two", "restored"))
        with NodeUnderTest(2, folder=folder) as node, node.client() as db:
            self.data = node.data
            db.put_many({b"small:%d" % number: b"x" for number in range(50)})
            reader = CutReader(node.address)
            take_backup(FolderStore(self.backup), reader)
            self.in_backup = known(db)
            fill(db, b"k:", COUNT, SIZE)
            take_backup(FolderStore(self.second), reader)
            db.delete_many([b"small:%d" % number for number in range(25)])
            db.put("{t}:ttl", "v", ttl=3_600)
            take_backup(FolderStore(self.second), reader)
            reader.finish()
            self.in_second = known(db)
            db.put_many({b"k:%08d" % number: b"last" for number in range(40)})
            self.at_the_end = known(db)
        restore_backup(FolderStore(self.second), self.restored)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("files"))


def rows(path: Path, **options: str) -> dict[bytes, Row]:
    return Frame({"path": str(path), **options}).rows()


def test_a_stopped_node_gives_everything_it_had(world: World) -> None:
    found = Frame({"path": str(world.data), "minPartitions": "9"})
    assert {type(part) for part in found.partitions} == {TreePart}
    assert len(found.partitions) >= 9
    assert found.rows() == world.at_the_end
    some = rows(world.data, start="k:00000100", end="k:00000200")
    assert some.keys() == {b"k:%08d" % number for number in range(100, 200)}


def test_backups_give_what_was_there_at_their_moment(world: World) -> None:
    assert rows(world.backup) == world.in_backup
    second = Frame({"path": str(world.second), "minPartitions": "8"})
    assert {type(part) for part in second.partitions} == {KeyPart}
    assert second.rows() == world.in_second


def test_a_restored_directory_gives_the_backup_without_a_start(world: World) -> None:
    assert rows(world.restored) == world.in_second


def test_a_directory_in_use_is_refused_with_what_to_do(world: World) -> None:
    fd = lock_directory(world.data)
    try:
        with pytest.raises(
            InvalidRequest, match="running on it; read that node with option connect"
        ):
            rows(world.data)
    finally:
        os.close(fd)


def test_a_directory_without_a_shard_is_refused(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.data, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "shard-1")
    with pytest.raises(NotFound, match="shard-1 are not there"):
        rows(tmp_path / "copy")
    with pytest.raises(NotFound, match="stopped node, or of backups"):
        rows(tmp_path)


def test_damage_is_said_and_not_read_over(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.data, tmp_path / "copy")
    (file,) = (tmp_path / "copy" / "shard-0" / "kv").glob("*/data.mdb")
    data = bytearray(file.read_bytes())
    for at in range(8 * 4096, len(data), 4096):
        data[at + 2048] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(Corrupt):
        rows(tmp_path / "copy")


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, dict[bytes, Row]]:
    """A directory as a crash leaves it: copied while its node runs, with no write under way."""
    with NodeUnderTest(2, folder=tmp_path) as node, node.client() as db:
        fill(db, b"k:", 5_000, SIZE)
        db.put("last", "one")
        expected = known(db)
        shutil.copytree(node.data, tmp_path / "copy")
    return tmp_path / "copy", expected


def test_after_a_crash_nothing_uncertain_is_read_and_a_warning_says_so(
    killed: tuple[Path, dict[bytes, Row]], caplog: pytest.LogCaptureFixture
) -> None:
    path, expected = killed
    found = rows(path)
    assert all(found[key] == expected[key] for key in found)
    missing = expected.keys() - found.keys()
    assert len(missing) < len(expected) // 2
    assert bool(missing) == any("not known to be agreed" in each.message for each in caplog.records)
