"""A snapshot on its way in: in pieces, interrupted at any of them, and whole or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardnode.sim.disk import SimFiles
from shardnode.storage import receiver as receiver_module
from shardnode.storage.errors import ChunkRefused, NoSpace, SnapshotCorrupt
from shardnode.storage.manifest import SnapshotFile, SnapshotMeta
from shardnode.storage.receiver import Receiver
from shardnode.storage.snapshots import SnapshotStore
from tests.storage.kit import (
    NEW_FILES,
    OLD_FILES,
    SHARD,
    crash_at_every_operation,
    disk,
    overwrite,
    snapshot_contents,
    tree,
    write_snapshot,
)

FOLDER = f"{SHARD}/snapshots"
STREAM = b"".join(NEW_FILES.values())
CHUNK = 500
SYNC_EVERY = 1200  # bytes; a few chunks, so that some are durable and some are not


@pytest.fixture(autouse=True)
def _sync_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_module, "SYNC_EVERY_BYTES", SYNC_EVERY)


def offered(contents: dict[str, bytes] = NEW_FILES, index: int = 20) -> SnapshotMeta:
    """What a peer offers: the manifest of a snapshot on another disk."""
    return write_snapshot(SnapshotStore(disk(99), "peer"), index, contents)


META = offered()
PARTIAL = f"{FOLDER}/{META.id:016x}.partial"


def pump(receiver: Receiver, stop: int = len(STREAM)) -> None:
    """Pull chunks from where the receiver is, as a replica does, up to `stop`."""
    while receiver.offset < stop:
        offset = receiver.offset
        receiver.write(offset, STREAM[offset : min(offset + CHUNK, stop)])


def receive(files: SimFiles) -> SnapshotMeta:
    receiver = SnapshotStore(files, SHARD).receive(META)
    pump(receiver)
    return receiver.finish()


def arrived(files: SimFiles) -> bool:
    """Whether the snapshot is published; when it is, it is all there."""
    store = SnapshotStore(files, SHARD)
    assert store.damaged == []
    if META not in store.list():
        return False
    assert snapshot_contents(store, META) == NEW_FILES
    return True


def test_a_snapshot_in_chunks_is_the_peers_snapshot() -> None:
    for size in (1, 7, 500, 2400, 2401, len(STREAM), 10_000):
        files = disk()
        store = SnapshotStore(files, SHARD)
        receiver = store.receive(META)
        for offset in range(0, len(STREAM), size):
            assert receiver.offset == offset
            receiver.write(offset, STREAM[offset : offset + size])
        assert not store.list(), "nothing shows before it is whole"
        assert receiver.finish() == META == store.latest()
        files.crash()
        assert arrived(files)
        assert files.listdir(FOLDER) == [f"{20:020}"]


@pytest.mark.parametrize("stop", range(0, len(STREAM) + 1, CHUNK // 2))
def test_a_download_closed_at_any_chunk_goes_on_there(stop: int) -> None:
    files = disk(stop)
    receiver = SnapshotStore(files, SHARD).receive(META)
    pump(receiver, stop)
    receiver.close()
    files.crash()
    receiver = SnapshotStore(files, SHARD).receive(META)
    assert receiver.offset == stop
    pump(receiver)
    assert receiver.finish() == META
    assert arrived(files)


@pytest.mark.parametrize("stop", range(0, len(STREAM) + 1, CHUNK // 2))
def test_a_download_that_loses_power_at_any_chunk_goes_on_from_what_was_durable(stop: int) -> None:
    for seed in range(5):
        files = disk(seed)
        receiver = SnapshotStore(files, SHARD).receive(META)
        pump(receiver, stop)
        files.crash()
        receiver = SnapshotStore(files, SHARD).receive(META)
        assert stop - SYNC_EVERY - CHUNK < receiver.offset <= stop
        pump(receiver)
        assert receiver.finish() == META
        assert arrived(files)


def test_a_download_that_loses_power_at_any_operation_ends_whole() -> None:
    def check(files: SimFiles, completed: bool) -> None:
        assert arrived(files) or not completed
        assert receive(files) == META
        files.crash()
        assert arrived(files)
        assert files.listdir(FOLDER) == [f"{20:020}"]

    crash_at_every_operation(lambda _: None, receive, check)


def test_a_killed_process_costs_no_more_than_what_was_not_synced() -> None:
    files = disk()
    receiver = SnapshotStore(files, SHARD).receive(META)
    pump(receiver, 2 * SYNC_EVERY)
    before = receiver.offset
    receiver = SnapshotStore(files, SHARD).receive(META)
    assert before - SYNC_EVERY < receiver.offset <= before


def test_a_chunk_that_leaves_a_gap_is_refused_and_says_where_to_go_on() -> None:
    receiver = SnapshotStore(disk(), SHARD).receive(META)
    receiver.write(0, STREAM[:100])
    for offset in (101, 2400, len(STREAM)):
        with pytest.raises(ChunkRefused, match="continues at byte 100") as refused:
            receiver.write(offset, b"x")
        assert refused.value.expected == 100
    pump(receiver)
    assert receiver.finish() == META


def test_a_chunk_past_the_end_is_refused() -> None:
    receiver = SnapshotStore(disk(), SHARD).receive(META)
    for offset, data in [(0, STREAM + b"x"), (1, STREAM)]:
        with pytest.raises(ChunkRefused):
            receiver.write(offset, data)
        assert receiver.offset == 0
    pump(receiver)
    with pytest.raises(ChunkRefused, match=f"bytes up to {len(STREAM) + 1} of {len(STREAM)}"):
        receiver.write(len(STREAM), b"x")
    assert receiver.finish() == META


def test_chunks_that_come_again_change_nothing() -> None:
    """A peer that repeats itself, even with other bytes, does not reach what was taken."""
    files = disk()
    receiver = SnapshotStore(files, SHARD).receive(META)
    pump(receiver, 1000)
    receiver.write(0, STREAM[:500])
    receiver.write(0, b"?" * 1000)
    receiver.write(900, b"?" * 100 + STREAM[1000:1300])
    receiver.write(1300, b"")
    assert receiver.offset == 1300
    pump(receiver)
    assert receiver.finish() == META
    assert arrived(files)


@pytest.mark.parametrize("missing", [1, 500, len(STREAM)])
def test_finishing_too_early_is_refused_and_the_download_goes_on(missing: int) -> None:
    files = disk()
    receiver = SnapshotStore(files, SHARD).receive(META)
    pump(receiver, len(STREAM) - missing)
    with pytest.raises(ChunkRefused, match="asked to finish"):
        receiver.finish()
    pump(receiver)
    assert receiver.finish() == META
    assert arrived(files)


@pytest.mark.parametrize("place", [0, 2399, 2400, len(STREAM) - 1])
def test_a_wrong_checksum_publishes_nothing_and_begins_anew(place: int) -> None:
    """Nobody can tell which chunk was wrong, so all of it is fetched again."""
    files = disk()
    store = SnapshotStore(files, SHARD)
    write_snapshot(store, 10, OLD_FILES)
    receiver = store.receive(META)
    wrong = bytearray(STREAM)
    wrong[place] ^= 4
    receiver.write(0, bytes(wrong))
    with pytest.raises(SnapshotCorrupt, match="expected checksum") as refused:
        receiver.finish()
    assert refused.value.path.startswith(PARTIAL)
    assert [meta.index for meta in store.list()] == [10]
    assert store.damaged == []
    assert not files.exists(PARTIAL)
    receiver = store.receive(META)
    assert receiver.offset == 0
    pump(receiver)
    assert receiver.finish() == META


@pytest.mark.parametrize("name", ["keys", "sessions", "manifest"])
def test_a_bit_that_flips_on_the_disk_meanwhile_is_found(name: str) -> None:
    """Also in the manifest: published with it, the snapshot would be useless after a restart."""
    files = disk()
    receiver = SnapshotStore(files, SHARD).receive(META)
    pump(receiver)
    files.flip_bit(f"{PARTIAL}/{name}")
    with pytest.raises(SnapshotCorrupt) as refused:
        receiver.finish()
    assert refused.value.path == f"{PARTIAL}/{name}"
    assert not arrived(files)


@pytest.mark.parametrize("name", ["progress", "manifest", "keys"])
def test_what_is_left_of_a_spoiled_download_is_not_built_upon(name: str) -> None:
    """A lost file, an unsound progress or manifest: the download begins anew."""
    files = disk()
    receiver = SnapshotStore(files, SHARD).receive(META)
    pump(receiver, 1500)
    receiver.close()
    if name == "keys":
        files.remove(f"{PARTIAL}/keys")
    else:
        files.flip_bit(f"{PARTIAL}/{name}")
    receiver = SnapshotStore(files, SHARD).receive(META)
    assert receiver.offset == 0
    pump(receiver)
    assert receiver.finish() == META
    assert arrived(files)


@pytest.mark.parametrize("data", [b"", b"\xff" * 15, b"\xff" * 16, b"\xff" * 1000])
def test_garbage_for_progress_begins_anew(data: bytes) -> None:
    files = disk()
    receiver = SnapshotStore(files, SHARD).receive(META)
    pump(receiver, 1500)
    receiver.close()
    files.remove(f"{PARTIAL}/progress")
    files.create(f"{PARTIAL}/progress").pwritev([data], 0)
    assert SnapshotStore(files, SHARD).receive(META).offset == 0


def test_another_snapshot_replaces_the_one_on_its_way() -> None:
    """Failure 23, the storage part: two in a row; what was received of the first is dropped."""
    files = disk()
    store = SnapshotStore(files, SHARD)
    pump(store.receive(META), 1500)
    newer = offered(OLD_FILES, index=30)
    receiver = store.receive(newer)
    assert receiver.offset == 0
    receiver.write(0, b"".join(OLD_FILES.values()))
    assert receiver.finish() == newer
    assert files.listdir(FOLDER) == [f"{30:020}"]


def test_an_outdated_download_is_swept_at_the_next_start() -> None:
    files = disk()
    store = SnapshotStore(files, SHARD)
    store.receive(META).close()
    SnapshotStore(files, SHARD)
    assert files.exists(PARTIAL), "it may still be wanted"
    write_snapshot(store, 21, OLD_FILES)
    SnapshotStore(files, SHARD)
    assert not files.exists(PARTIAL)


def test_a_snapshot_that_is_here_already_is_complete_at_once() -> None:
    files = disk()
    receive(files)
    before = tree(files, SHARD)
    receiver = SnapshotStore(files, SHARD).receive(META)
    assert receiver.offset == META.size
    assert receiver.finish() == META
    assert tree(files, SHARD) == before


def test_one_that_is_here_but_unsound_is_not_passed_off_as_received() -> None:
    """Failure 6: it is found out, kept and named, and a fresh download stands beside it."""
    files = disk()
    receive(files)
    store = SnapshotStore(files, SHARD)
    overwrite(files, f"{FOLDER}/{20:020}/keys", 5, b"?")
    with pytest.raises(SnapshotCorrupt):
        store.receive(META).finish()
    assert [each.path for each in store.damaged] == [f"{FOLDER}/{20:020}"]
    receiver = store.receive(META)
    pump(receiver)
    assert receiver.finish() == META
    assert snapshot_contents(store, META) == NEW_FILES


def test_a_full_disk_interrupts_a_download_and_does_not_spoil_it() -> None:
    """Failure 9: at whichever operation; the receiver goes on from its offset."""
    operation = failures = 0
    while True:
        files = disk(operation)
        store = SnapshotStore(files, SHARD)
        files.fail_after(operation, "enospc")
        try:
            assert receive(files) == META
        except NoSpace:
            failures += 1
            receiver = store.receive(META)
            pump(receiver)
            assert receiver.finish() == META
        else:
            break
        assert arrived(files)
        operation += 1
    assert failures > 10


@pytest.mark.parametrize("name", ["../../superblock.a", "manifest", "a/b", "progress"])
def test_a_peer_cannot_choose_where_its_bytes_go(name: str) -> None:
    files = disk()
    store = SnapshotStore(files, SHARD)
    hostile = replace(META, files=(SnapshotFile(name, 10, 0),))
    with pytest.raises(SnapshotCorrupt, match="may not be the name"):
        store.receive(hostile)
    assert files.listdir(FOLDER) == []


def test_a_snapshot_without_bytes_can_be_received() -> None:
    meta = offered({"empty": b""}, index=5)
    store = SnapshotStore(disk(), SHARD)
    assert store.receive(meta).finish() == meta
    assert snapshot_contents(store, meta) == {"empty": b""}
