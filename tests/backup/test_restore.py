"""Data directories from backups: whose they are, what is refused, what an interruption leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardnode.backup import restore as module
from shardnode.backup.restore import RestoreOptions, plan, restore_backup
from shardnode.backup.store import FolderStore
from shardnode.node.identity import (
    DirectoryInUse,
    Identity,
    WrongDirectory,
    open_directory,
    read_identity,
)
from shardnode.node.restoring import RestoredDirectory
from shardnode.storage.errors import NoSpace
from shardnode.wire.errors import Corrupt, InvalidRequest, NotFound
from tests.backup.kit import CLUSTER, Source, check_equal, folder_store, restored, take


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("restore")


@pytest.fixture(scope="module")
def source(place: Path) -> Iterator[Source]:
    with Source(place / "source", 2) as source:
        for shard in source.shards:
            for key in shard.keys(10):
                shard.put({key: b"v" * 100})
            shard.counter.replica.flush()
        yield source


@pytest.fixture(scope="module")
def store(source: Source, place: Path) -> FolderStore:
    store = folder_store(place)
    take(source, store)
    return store


def test_a_restored_directory_is_another_cluster_s(store: FolderStore, tmp_path: Path) -> None:
    options = RestoreOptions(cluster="drill", node_id=7)
    made, opened = restored(store, tmp_path / "r", options)
    identity = read_identity(tmp_path / "r")
    assert identity is not None
    assert (identity.cluster, identity.node_id, identity.shards) == ("drill", 7, 2)
    assert identity.cluster_id not in (None, CLUSTER)
    assert identity.created.endswith("Z")
    assert made.identity.cluster_id == identity.cluster_id
    for shard, found in enumerate(opened):
        assert found.replica.raft.member == shard << 48 | 7
        assert found.replica.raft.membership.voters == (shard << 48 | 7,)
        found.close()
    again, _ = restored(store, tmp_path / "again")
    assert (again.identity.cluster, again.identity.node_id) == ("main", 1)
    assert again.identity.cluster_id != identity.cluster_id
    claim = Identity("drill", 7, 2)
    with open_directory(tmp_path / "r", claim) as directory:
        assert directory.identity == identity


def test_what_cannot_be_is_refused_before_anything_is_written(
    store: FolderStore, tmp_path: Path
) -> None:
    cases = [
        (RestoreOptions(shards=3), InvalidRequest, "resharding does not exist yet"),
        (RestoreOptions(to_index={2: 5}), InvalidRequest, "expected shards from 0 to 1, found 2"),
        (RestoreOptions(to_index={0: 5}, to_ms=5), InvalidRequest, "either indexes or a time"),
        (RestoreOptions(to_index={0: 5_000}), NotFound, "expected an index of shard 0 from 1 to"),
        (RestoreOptions(to_ms=5), NotFound, "something had been written"),
        (RestoreOptions(to_ms=1 << 44), NotFound, "expected a time from"),
        (RestoreOptions(backup="nonsense"), NotFound, "backups/nonsense.json"),
        (RestoreOptions(cluster="a/b"), InvalidRequest, "expected cluster as name"),
    ]
    for options, kind, what in cases:
        with pytest.raises(kind, match=what):
            restore_backup(store, tmp_path / "r", options)
        assert not (tmp_path / "r").exists()
    assert plan(store, RestoreOptions(shards=2))[0].shards == 2
    with pytest.raises(NotFound, match="no manifest of a complete one"):
        restore_backup(folder_store(tmp_path / "nothing"), tmp_path / "r")


def test_a_damaged_manifest_is_never_passed_over_in_silence(source: Source, tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    first, second = take(source, store).manifest, take(source, store).manifest
    path = tmp_path / "backup" / "backups" / f"{second.id}.json"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(Corrupt, match=second.id):
        plan(store, RestoreOptions())
    assert plan(store, RestoreOptions(backup=first.id))[0] == first


def test_only_an_empty_directory_is_used(store: FolderStore, tmp_path: Path) -> None:
    data = tmp_path / "r"
    data.mkdir()
    (data / "letter.txt").write_text("mine")
    with pytest.raises(WrongDirectory, match=r"found letter\.txt"):
        restore_backup(store, data)
    assert [*data.iterdir()] == [data / "letter.txt"]
    (data / "letter.txt").unlink()
    restore_backup(store, data)
    with pytest.raises(WrongDirectory, match=r"found node\.json"):
        restore_backup(store, data)


def test_nobody_starts_or_restores_where_a_restore_is_going_on(tmp_path: Path) -> None:
    claim = Identity("main", 1, 1, 5)
    with RestoredDirectory(tmp_path / "r"):
        with pytest.raises(WrongDirectory, match="a restore that is not complete"):
            open_directory(tmp_path / "r", claim)
        with pytest.raises(DirectoryInUse):
            RestoredDirectory(tmp_path / "r")
    with pytest.raises(WrongDirectory, match="a restore that is not complete"):
        open_directory(tmp_path / "r", claim)


def test_whatever_interrupts_it_nothing_counts_and_the_next_one_begins_anew(
    store: FolderStore, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "r"
    claim = Identity("main", 1, 2, 5)
    manifest = plan(store, RestoreOptions())[0]
    reads = len([*store.list("shard-")]) + 1
    sound = FolderStore.get
    for left in range(1, reads + 3):
        count = [left]

        def get(self: FolderStore, key: str, count: list[int] = count) -> bytes:
            count[0] -= key.startswith("shard-")
            if count[0] == 0:
                raise NoSpace("no space left")
            return sound(self, key)

        monkeypatch.setattr(FolderStore, "get", get)
        try:
            restore_backup(store, data)
        except NoSpace:
            monkeypatch.setattr(FolderStore, "get", sound)
            with pytest.raises(WrongDirectory, match="a restore that is not complete"):
                open_directory(data, claim)
            assert read_identity(data) is None
            continue
        break
    else:
        raise AssertionError("it never came to its end")
    assert left > 2
    monkeypatch.setattr(FolderStore, "get", sound)
    assert "restoring" not in os.listdir(data)
    _, opened = restored(store, tmp_path / "whole")
    check_equal(source, manifest, opened)
    for each in opened:
        each.close()


def test_a_large_log_is_written_in_batches(
    store: FolderStore, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 300)
    monkeypatch.setattr(module, "SYNC_BYTES", 700)
    manifest = plan(store, RestoreOptions())[0]
    _, opened = restored(store, tmp_path / "r")
    check_equal(source, manifest, opened)
    for each in opened:
        each.close()
