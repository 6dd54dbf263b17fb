"""Failpoints do what their settings say, when they say it, and nothing at all without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardnode.storage import engine_lmdb
from shardnode.storage.engine import EngineOptions
from shardnode.storage.errors import BadFailpoint, DiskFailed, NoSpace, SyncFailed
from shardnode.storage.failpoints import FAILPOINTS, VARIABLE, kind_of, pass_point, working_files
from shardnode.storage.files import File, RealFiles


def armed(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> File:
    """A file of a log under these failpoints."""
    monkeypatch.setenv(VARIABLE, text)
    files = working_files(str(folder), "shard-0")
    files.mkdir("shard-0/log")
    return files.create("shard-0/log/a.seg")


def test_without_the_variable_files_are_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert type(working_files(str(tmp_path), "shard-0")) is RealFiles
    assert engine_lmdb.commit_hook is None
    pass_point("snapshot.build.before", "shard-0")


def test_another_shards_failpoints_leave_the_plain_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "shard1/log.sync.before=kill")
    assert type(working_files(str(tmp_path), "shard-0")) is RealFiles
    assert type(working_files(str(tmp_path), "shard-1")) is not RealFiles


def test_error_comes_at_its_time_as_the_error_of_this_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = armed(monkeypatch, tmp_path, "log.write.before=error@2; log.sync.after=error@1")
    file.pwritev([b"one"], 0)
    with pytest.raises(DiskFailed, match=r"shard-0/log/a.seg: could not write: Input/output error"):
        file.pwritev([b"two"], 3)
    file.pwritev([b"six"], 3)
    with pytest.raises(SyncFailed, match=r"failpoint log\.sync\.after"):
        file.datasync()
    file.datasync()
    assert file.pread(10, 0) == b"onesix"


def test_disk_is_full_for_as_long_as_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = armed(monkeypatch, tmp_path, "log.write.before=full@2+3")
    said = []
    for number in range(6):
        try:
            file.pwritev([b"x"], number)
            said.append("written")
        except NoSpace:
            said.append("full")
    assert said == ["written", "full", "full", "full", "written", "written"]


def test_torn_write_leaves_half_of_what_is_not_zeros(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = armed(monkeypatch, tmp_path, "log.write.torn=full@2")
    file.pwritev([b"before"], 0)
    with pytest.raises(NoSpace):
        file.pwritev([b"abcd", b"efgh", bytes(100)], 6)
    assert file.pread(200, 0) == b"beforeabcd"


def test_delay_takes_its_time_every_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = armed(monkeypatch, tmp_path, "log.sync.before=delay:20ms")
    begun = time.monotonic()
    file.datasync()
    file.datasync()
    assert time.monotonic() - begun >= 0.04


def test_commit_fails_as_lmdb_fails_and_the_flush_can_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine_lmdb, "commit_hook", None)  # and back to it afterwards
    monkeypatch.setenv(VARIABLE, "kv.commit.before=full@1; kv.commit.after=error@1")
    working_files(str(tmp_path), "shard-0")
    store = engine_lmdb.LmdbStore(str(tmp_path / "kv"), EngineOptions())
    store.begin()
    with pytest.raises(NoSpace):
        store.commit(1, {})
    store.begin()
    with pytest.raises(SyncFailed, match="the process must exit and recover"):
        store.commit(1, {})
    store.close()


def test_point_of_a_build_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "snapshot.build.after=error")
    pass_point("snapshot.build.before", "shard-0")
    with pytest.raises(DiskFailed):
        pass_point("snapshot.build.after", "shard-0")


@pytest.mark.parametrize(
    "text",
    [
        "log.sync.before",
        "log.sync.before=explode",
        "log.sync.before=kill@0",
        "log.sync.before=kill@",
        "log.sync.before=delay:5",
        "shard/log.sync.before=kill",
        "log.sync.before=kill,log.sync.after=kill",
    ],
)
def test_bad_setting_says_what_was_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(BadFailpoint, match=r"expected .*point=action.* found"):
        working_files(str(tmp_path), "shard-0")


def test_unknown_point_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "log.sink.before=kill")
    with pytest.raises(BadFailpoint, match=r"lists, found 'log\.sink\.before'"):
        working_files(str(tmp_path), "shard-0")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("shard-0/log/00000000000000000001.seg", "log"),
        ("shard-0/log", "log"),
        ("shard-3/superblock.a.tmp", "superblock"),
        ("shard-0/snapshots/building.tmp/keys", "snapshot"),
        ("shard-0/partitions/00000000/0000000100000000/0000000001-0.seg", "partition"),
        ("shard-0/quarantine/log", "other"),
        ("shard-0", "other"),
        ("", "other"),
    ],
)
def test_kind_of_file_is_told_by_its_place(path: str, kind: str) -> None:
    assert kind_of(path) == kind


KILLED = """
from shardnode.storage.failpoints import working_files
files = working_files("{root}", "shard-0")
files.mkdir("shard-0/snapshots")
for name in "abc":
    files.create("shard-0/snapshots/" + name)
    files.rename("shard-0/snapshots/" + name, "shard-0/snapshots/" + name.upper())
"""


@pytest.mark.parametrize(("moment", "left"), [("before", ["A", "b"]), ("after", ["A", "B"])])
def test_kill_ends_the_process_at_that_very_moment(
    tmp_path: Path, moment: str, left: list[str]
) -> None:
    point = f"snapshot.rename.{moment}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", KILLED.format(root=tmp_path)],
        env={**os.environ, VARIABLE: f"shard0/{point}=kill@2"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stderr.decode() == f"failpoint {point}=kill at 2\n"
    assert sorted(os.listdir(tmp_path / "shard-0/snapshots")) == left


def test_all_points_are_listed_with_a_line_each() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shardnode.storage.failpoints"],
        capture_output=True,
        check=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(FAILPOINTS)
    assert all(len(line.split()) > 3 for line in lines)
