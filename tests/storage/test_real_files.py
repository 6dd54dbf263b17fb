"""The operating system's files: the same promises as on the simulated disk, and real kills."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from shardnode.storage import files as files_module
from shardnode.storage.errors import Compacted, DiskFailed, LogDamaged, NoSpace, SyncFailed
from shardnode.storage.files import Buffer, Files, RealFile, RealFiles
from shardnode.storage.options import Opened
from shardnode.storage.publish import publish_dir, publish_file, write_file
from shardnode.storage.recovery import recover
from tests.storage.kit import (
    NEW_FILES,
    OLD_FILES,
    SHARD,
    TINY,
    batches_in,
    contents,
    disk,
    open_log,
    overwrite,
    payload_size,
    position,
    read_all,
    record,
    run,
    segments,
    snapshot_contents,
    tree,
    write_snapshot,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["real", "simulated"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return RealFiles(tmp_path / "root") if request.param == "real" else disk()


def test_a_file_is_read_and_written_by_position(files: Files) -> None:
    file = files.create("a")
    assert (file.size(), file.pread(10, 0)) == (0, b"")
    file.pwritev([b"one", memoryview(b"two"), b"", b"three"], 2)
    assert file.pread(100, 0) == b"\0\0onetwothree"
    assert (file.pread(3, 5), file.pread(5, 12), file.pread(5, 99)) == (b"two", b"e", b"")
    file.allocate(20)
    assert (file.size(), file.pread(100, 12)) == (20, b"e" + bytes(7))
    file.allocate(5)
    assert file.size() == 20, "reserving less changes nothing"
    file.truncate(4)
    file.truncate(6)
    assert file.pread(100, 0) == b"\0\0on\0\0", "what was cut does not come back"
    file.datasync()
    file.close()
    file.close()
    assert read_all(files, "a") == b"\0\0on\0\0"


def test_names_are_made_listed_moved_and_removed(files: Files) -> None:
    files.mkdir("d/e")
    files.mkdir("d/e")
    for name in ("b", "a"):
        files.create(f"d/{name}").pwritev([name.encode()], 0)
    assert files.listdir("d") == ["a", "b", "e"]
    assert (files.listdir(""), files.listdir("d/e")) == (["d"], [])
    assert files.exists("d/a")
    assert files.exists("d/e")
    assert not files.exists("d/x")
    files.rename("d/a", "d/b")
    assert (files.listdir("d"), read_all(files, "d/b")) == (["b", "e"], b"a")
    files.rename("d", "f")
    files.sync_dir("f")
    files.sync_dir("")
    files.remove("f/b")
    assert files.listdir("f") == ["e"]
    files.remove_tree("f")
    assert files.listdir("") == []
    assert len({files.token() for _ in range(20)}) == 20


def test_what_cannot_be_done_is_a_typed_error_that_names_the_file(files: Files) -> None:
    files.mkdir("d")
    files.create("d/a")
    for act in (
        lambda: files.create("d/a"),
        lambda: files.open("d/x"),
        lambda: files.open("d"),
        lambda: files.remove("d/x"),
        lambda: files.rename("d/x", "d/y"),
        lambda: files.listdir("d/x"),
        lambda: files.mkdir("d/a"),
        lambda: files.remove_tree("d/x"),
    ):
        with pytest.raises(DiskFailed, match=r"^d(/[ax])?:"):
            act()
    assert files.listdir("d") == ["a"]


def test_publishing_replaces_a_file_and_names_a_directory(files: Files) -> None:
    publish_file(files, "a", b"old")
    publish_file(files, "a", b"new")
    files.mkdir("d.tmp")
    write_file(files, "d.tmp/x", [b"left", b"over"])
    write_file(files, "d.tmp/x", [b"con", b"tent"])
    publish_dir(files, "d.tmp", "d")
    assert files.listdir("") == ["a", "d"]
    assert (read_all(files, "a"), read_all(files, "d/x")) == (b"new", b"content")


def test_a_shard_lives_the_same_life_on_every_disk(files: Files) -> None:
    """Boot, append, override, roll, snapshot, truncate, damage, salvage, install: one story."""
    shard = recover(files, SHARD, cluster=1, member=2, options=TINY)
    assert shard.first_boot
    for first in range(1, 40, 3):
        shard.log.append_batch(run(first, first + 2))
        shard.log.sync()
    shard.log.append_batch(run(36, 45, term=2, size=100), commit=20)
    shard.log.sync()
    assert len(segments(files)) > 3
    covered = position(shard.log, 20)
    write_snapshot(shard.snapshots, 20, OLD_FILES, covered.term, covered.chain)
    shard.log.truncate_front(20)
    assert shard.superblock.state is not None
    shard.superblock.store(replace(shard.superblock.state, term=2, vote=2, commit=30))
    first_kept = shard.log.first_index
    shard.log.close()

    shard = recover(files, SHARD, cluster=1, member=2, options=TINY)
    assert (shard.log.recovery.kind, shard.commit) == (Opened.CLEAN, 30)
    assert 10 < shard.log.first_index == first_kept <= 21
    assert contents(shard.log) == [*run(first_kept, 35), *run(36, 45, term=2, size=100)]
    with pytest.raises(Compacted):
        shard.log.read(first_kept - 1, 30)
    assert shard.snapshot is not None
    assert snapshot_contents(shard.snapshots, shard.snapshot) == OLD_FILES
    shard.log.close()

    path = segments(files)[-2]
    bad = batches_in(files, path)[-1]
    overwrite(files, path, bad.offset + 120, b"?")
    before = tree(files, SHARD)
    with pytest.raises(LogDamaged):
        recover(files, SHARD, cluster=1, member=2, options=TINY)
    assert tree(files, SHARD) == before
    shard = recover(files, SHARD, cluster=1, member=2, options=TINY, salvage=True)
    assert shard.log.recovery.kind is Opened.SALVAGED
    assert shard.log.last_index == bad.header.first - 1
    assert len(files.listdir(f"{SHARD}/quarantine")) == 2

    peer = disk(5)
    sender = recover(peer, SHARD, cluster=1, member=3, options=TINY).snapshots
    meta = write_snapshot(sender, 90, NEW_FILES, term=4, chain=11)
    receiver = shard.snapshots.receive(meta)
    while receiver.offset < meta.size:
        receiver.write(receiver.offset, sender.read_stream(meta, receiver.offset, 700))
    receiver.finish()
    shard.log.close()
    shard = recover(files, SHARD, cluster=1, member=2, options=TINY)
    assert (shard.snapshot, shard.log_was_reset) == (meta, True)
    assert (shard.log.anchor.index, shard.commit, contents(shard.log)) == (90, 90, [])
    shard.log.append_batch([record(91, term=4)])
    shard.log.sync()
    shard.log.close()
    assert contents(open_log(files)) == [record(91, term=4)]


def test_a_killed_process_loses_nothing_that_it_called_durable(tmp_path: Path) -> None:
    """SIGKILL at five moments, each time going on where the last life ended."""
    rng = random.Random(7)
    last = 0
    for _ in range(5):
        acknowledged = append_until_killed(tmp_path, lines=rng.randrange(1, 40))
        assert acknowledged > last
        log = open_log(RealFiles(tmp_path), durable_mark=acknowledged)
        assert log.last_index >= acknowledged
        expected = [record(n, size=payload_size(n)) for n in range(1, log.last_index + 1)]
        assert contents(log) == expected
        last = log.last_index
        log.close()
    assert len(segments(RealFiles(tmp_path))) > 5


def append_until_killed(directory: Path, lines: int) -> int:
    """Let `appender.py` run until it has said so many lines; the last index that it said."""
    command = [sys.executable, "-m", "tests.storage.appender", str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            said = [process.stdout.readline() for _ in range(lines)]
        finally:
            process.kill()
        said += process.stdout.readlines()
    whole = [line for line in said if line.endswith(b"\n")]
    assert len(whole) >= lines, "the process died before it was killed"
    return int(whole[-1])


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than it was given, in the middle of any buffer."""
    write = os.pwritev
    sizes = random.Random(3)

    def short(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return write(fd, [b"".join(buffers)[: sizes.randrange(1, 9)]], offset)

    buffers = [bytes([n]) * (n % 5) for n in range(200)]
    monkeypatch.setattr(files_module, "_IOV_MAX", 16)
    monkeypatch.setattr(os, "pwritev", short)
    RealFiles(tmp_path).create("a").pwritev(buffers, 3)
    assert (tmp_path / "a").read_bytes() == bytes(3) + b"".join(buffers)


def test_a_write_that_makes_no_progress_is_an_error_and_not_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(DiskFailed, match="wrote nothing"):
        RealFiles(tmp_path).create("a").pwritev([b"x"], 0)


def test_more_buffers_than_the_system_takes_at_once_are_written(tmp_path: Path) -> None:
    buffers = [str(n).encode() for n in range(5000)]
    RealFiles(tmp_path).create("a").pwritev(buffers, 0)
    assert (tmp_path / "a").read_bytes() == b"".join(buffers)


DEVICES = Path(os.devnull).parent


@pytest.mark.skipif(not (DEVICES / "full").exists(), reason="this system has no full device")
def test_a_full_device_is_no_space() -> None:
    """Failure 9, from the operating system itself."""
    device = RealFiles(DEVICES).open("full")
    with pytest.raises(NoSpace, match="full: no space left to write"):
        device.pwritev([b"x"], 0)
    device.close()


def test_an_fsync_that_the_system_refuses_is_sync_failed() -> None:
    """Failure 8, from the operating system itself: a pipe cannot be synced."""
    reading, writing = os.pipe()
    file = RealFile(writing, "pipe")
    with pytest.raises(SyncFailed, match="pipe: fsync failed"):
        file.datasync()
    file.close()
    os.close(reading)


def test_a_name_that_cannot_be_looked_up_does_not_pass_for_absent(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DiskFailed, match="could not look up"):
        RealFiles(tmp_path).exists("a/b")


@pytest.mark.parametrize("path", ["../x", "a/../../x", os.path.abspath("x")])
def test_a_path_cannot_leave_the_root(path: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        RealFiles(tmp_path).open(path)


def test_direct_writes_leave_the_same_bytes_as_others(tmp_path: Path) -> None:
    """Whatever block they begin and end in, and however the buffers are cut."""
    rng = random.Random(5)
    files = RealFiles(tmp_path)
    model = bytearray()
    file = files.create("direct")
    for _ in range(30):
        offset = rng.choice([len(model), rng.randrange(len(model) + 1)])
        size = rng.choice([10, 4096, (1 << 20) - 1, 1 << 20, rng.randrange(1 << 20, 4 << 20)])
        data = rng.randbytes(size)
        cuts = sorted(rng.randrange(size + 1) for _ in range(5))
        pieces = [data[a:b] for a, b in pairwise([0, *cuts, size])]
        file.pwritev_direct([memoryview(each) for each in pieces], offset)
        model[offset : offset + size] = data
        assert file.pread(len(model) + 1, 0) == model
    file.datasync()
    file.close()
