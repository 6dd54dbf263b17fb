"""Snapshots: there or not there, never in between; and what is damaged is kept and named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shardnode.sim.disk import SimFiles
from shardnode.storage.errors import NoSpace, SnapshotCorrupt, StorageError, SyncFailed
from shardnode.storage.files import RealFiles, join
from shardnode.storage.publish import publish_file
from shardnode.storage.snapshots import SnapshotStore
from tests.storage.kit import (
    NEW_FILES,
    OLD_FILES,
    SHARD,
    crash_at_every_operation,
    disk,
    overwrite,
    read_all,
    snapshot_contents,
    write_snapshot,
)

FOLDER = f"{SHARD}/snapshots"


def with_old(files: SimFiles) -> None:
    write_snapshot(SnapshotStore(files, SHARD), 10, OLD_FILES)


def test_what_is_written_is_read_back_after_a_restart() -> None:
    files = disk()
    meta = write_snapshot(SnapshotStore(files, SHARD), 10, NEW_FILES, term=3, chain=99)
    files.crash()
    store = SnapshotStore(files, SHARD)
    assert store.latest() == meta
    assert (meta.index, meta.term, meta.chain, meta.membership) == (10, 3, 99, b"members")
    assert snapshot_contents(store, meta) == NEW_FILES
    store.verify(meta)
    stream = b"".join(NEW_FILES.values())
    assert meta.size == len(stream)
    for offset, size in [(0, 10), (2395, 20), (2400, 5), (0, 10_000), (meta.size - 1, 9)]:
        assert store.read_stream(meta, offset, size) == stream[offset : offset + size]
    assert store.read(meta, "keys", 2396, 50) == b"keys"


def test_a_write_that_loses_power_leaves_the_old_snapshot_or_both() -> None:
    def check(files: SimFiles, completed: bool) -> None:
        store = SnapshotStore(files, SHARD)
        found = [(meta.index, snapshot_contents(store, meta)) for meta in store.list()]
        old, new = (10, OLD_FILES), (20, NEW_FILES)
        assert found == [old, new] if completed else found in ([old], [old, new])
        assert store.damaged == []
        names = {f"{meta.index:020}" for meta in store.list()}
        assert set(files.listdir(FOLDER)) == names, "leftovers are swept"

    crash_at_every_operation(
        with_old,
        lambda files: write_snapshot(SnapshotStore(files, SHARD), 20, NEW_FILES),
        check,
    )


def test_a_removal_that_loses_power_leaves_it_whole_or_gone() -> None:
    def build(files: SimFiles) -> None:
        with_old(files)
        write_snapshot(SnapshotStore(files, SHARD), 20, NEW_FILES)

    def check(files: SimFiles, completed: bool) -> None:
        store = SnapshotStore(files, SHARD)
        found = [snapshot_contents(store, meta) for meta in store.list()]
        assert found == [NEW_FILES] if completed else found in ([NEW_FILES], [OLD_FILES, NEW_FILES])
        assert store.damaged == []

    crash_at_every_operation(build, lambda files: SnapshotStore(files, SHARD).drop_below(20), check)


def test_a_published_file_that_loses_power_has_the_old_content_or_the_new() -> None:
    def check(files: SimFiles, completed: bool) -> None:
        found = read_all(files, "a")
        assert found == b"new" * 500 if completed else found in (b"old", b"new" * 500)

    crash_at_every_operation(
        lambda files: publish_file(files, "a", b"old"),
        lambda files: publish_file(files, "a", b"new" * 500),
        check,
    )


def test_a_full_disk_leaves_nothing_of_the_new_snapshot_behind() -> None:
    """Failure 9: at whichever write the space ends, the old snapshot serves on."""
    operation = failures = 0
    while True:
        files = disk(operation)
        with_old(files)
        store = SnapshotStore(files, SHARD)
        files.fail_after(operation, "enospc")
        try:
            write_snapshot(store, 20, NEW_FILES)
            break
        except NoSpace:
            failures += 1
        assert [meta.index for meta in store.list()] == [10]
        assert files.listdir(FOLDER) == [f"{10:020}"]
        assert snapshot_contents(store, write_snapshot(store, 20, NEW_FILES)) == NEW_FILES
        operation += 1
    assert failures > 4


def test_a_failed_fsync_publishes_nothing() -> None:
    """Failure 8, at whichever fsync: the snapshot shows only when every one of them succeeded."""
    operation = failures = 0
    while True:
        files = disk(operation)
        with_old(files)
        store = SnapshotStore(files, SHARD)
        files.fail_after(operation, "fsync")
        try:
            write_snapshot(store, 20, NEW_FILES)
            break
        except SyncFailed:
            failures += 1
        assert [meta.index for meta in store.list()] == [10]
        files.crash()
        again = SnapshotStore(files, SHARD)
        assert [meta.index for meta in again.list()] in ([10], [10, 20])
        assert again.damaged == []
        operation += 1
    assert failures > 4


def test_a_snapshot_found_at_open_is_durable_from_then_on() -> None:
    """Failure 14: the process died between the rename and the fsync of the directory."""
    for seed in range(20):
        files = disk(seed)
        store = SnapshotStore(files, SHARD)
        operation = 0
        while not files.exists(f"{FOLDER}/{20:020}"):
            files.fail_after(operation, "fsync")
            with pytest.raises(SyncFailed):
                write_snapshot(store, 20, NEW_FILES)
            operation += 1
        (meta,) = SnapshotStore(files, SHARD).list()
        files.crash()
        assert SnapshotStore(files, SHARD).list() == [meta]


def test_a_failing_source_of_content_publishes_nothing() -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise ValueError("the state machine failed")

    files = disk()
    with_old(files)
    store = SnapshotStore(files, SHARD)
    with pytest.raises(ValueError, match="state machine"):
        store.write(20, 1, 0, b"", {"keys": broken()})
    assert [meta.index for meta in SnapshotStore(files, SHARD).list()] == [10]
    assert files.listdir(FOLDER) == [f"{10:020}"]


@pytest.mark.parametrize("name", ["manifest", "progress", "../x", "a/b", "", "a.tmp", ".hidden"])
def test_a_file_cannot_have_a_name_of_ours_or_leave_the_folder(name: str) -> None:
    store = SnapshotStore(disk(), SHARD)
    with pytest.raises(ValueError, match="may not be the name"):
        store.write(1, 1, 0, b"", {name: [b"x"]})
    assert store.list() == []


@pytest.mark.parametrize("name", ["manifest", "keys"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_snapshot_is_named_and_never_deleted(name: str, damage: str) -> None:
    """Failure 6: it is not an orphan. The one before it serves."""
    files = disk()
    with_old(files)
    write_snapshot(SnapshotStore(files, SHARD), 20, NEW_FILES)
    folder = f"{FOLDER}/{20:020}"
    if damage == "flip":
        files.flip_bit(f"{folder}/{name}")
    elif damage == "cut":
        file = files.open(f"{folder}/{name}")
        file.truncate(file.size() - 1)
        file.datasync()
    else:
        files.remove(f"{folder}/{name}")
        files.sync_dir(folder)
    left = {each: read_all(files, f"{folder}/{each}") for each in files.listdir(folder)}
    store = SnapshotStore(files, SHARD)
    if (name, damage) == ("keys", "flip"):  # only a reader of all bytes can see it
        latest = store.latest()
        assert latest is not None
        with pytest.raises(SnapshotCorrupt, match="expected checksum") as refused:
            snapshot_contents(store, latest)
        assert refused.value.path == f"{folder}/keys"
        with pytest.raises(SnapshotCorrupt):
            store.verify(latest)
    assert [meta.index for meta in store.list()] == [10]
    assert [each.path for each in store.damaged] == [folder]
    assert folder in store.damaged[0].detail
    store.drop_below(100)
    SnapshotStore(files, SHARD)
    assert {each: read_all(files, f"{folder}/{each}") for each in files.listdir(folder)} == left


def test_a_new_snapshot_of_a_damaged_index_stands_beside_it() -> None:
    files = disk()
    with_old(files)
    overwrite(files, f"{FOLDER}/{10:020}/manifest", 0, b"#")
    store = SnapshotStore(files, SHARD)
    meta = write_snapshot(store, 10, NEW_FILES)
    files.crash()
    store = SnapshotStore(files, SHARD)
    assert store.list() == [meta]
    assert snapshot_contents(store, meta) == NEW_FILES
    assert [each.path for each in store.damaged] == [f"{FOLDER}/{10:020}"]


def test_the_same_snapshot_twice_is_one() -> None:
    files = disk()
    store = SnapshotStore(files, SHARD)
    assert write_snapshot(store, 10, OLD_FILES) == write_snapshot(store, 10, OLD_FILES)
    assert len(store.list()) == 1
    other = write_snapshot(store, 10, NEW_FILES)
    assert other in store.list()
    assert [snapshot_contents(store, meta) for meta in store.list()] == [OLD_FILES, NEW_FILES]


def test_a_manifest_under_the_name_of_another_index_is_damage() -> None:
    files = disk()
    with_old(files)
    files.rename(f"{FOLDER}/{10:020}", f"{FOLDER}/{11:020}")
    store = SnapshotStore(files, SHARD)
    assert store.list() == []
    assert "the manifest is for index 10" in store.damaged[0].detail


def test_who_holds_a_snapshot_may_read_it_until_it_is_released() -> None:
    store = SnapshotStore(disk(), SHARD)
    old = write_snapshot(store, 10, OLD_FILES)
    new = write_snapshot(store, 20, NEW_FILES)
    store.hold(old)
    store.hold(old)
    store.drop_below(20)
    assert snapshot_contents(store, old) == OLD_FILES
    store.release(old)
    store.drop_below(20)
    assert store.list() == [old, new]
    store.release(old)
    store.drop_below(20)
    assert store.list() == [new]


def test_what_a_killed_workers_builder_left_is_swept_while_it_still_writes(tmp_path: Path) -> None:
    """It has files open there, and goes on; the next worker starts, and builds elsewhere."""
    files = RealFiles(str(tmp_path))
    files.mkdir("shard")
    old = SnapshotStore(files, "shard").building
    files.mkdir(old)
    orphan = files.create(join(old, "keys"))

    class Meddling(RealFiles):
        """The orphan makes another file the moment its directory is being emptied."""

        def remove_tree(self, path: str) -> None:
            with suppress(StorageError):
                self.create(join(old, "one-more")).close()
            super().remove_tree(path)

    store = SnapshotStore(Meddling(str(tmp_path)), "shard")
    orphan.pwritev([b"late"], 0)
    orphan.close()
    assert files.listdir("shard/snapshots") == []
    assert store.building != old
