"""What makes a partition log durable, and the open files that all logs share."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from shardnode.storage.errors import NoSpace, SyncFailed
from shardnode.storage.files import Buffer, RealFile, RealFiles
from shardnode.storage.partition_handles import Handles
from shardnode.storage.partition_log import NOTHING, PartitionLog
from tests.storage.kit import disk
from tests.storage.partition_kit import EVERYTHING, TINY, batches, contents, filled, open_log


def test_after_a_failed_sync_everything_is_refused() -> None:
    files = disk()
    log = open_log(files)
    log.append(batches(5))
    files.fail_after(0, "fsync")
    with pytest.raises(SyncFailed):
        log.sync()
    for act in (log.sync, lambda: log.append(batches(1)), lambda: log.read(0, bytes_max=1)):
        with pytest.raises(SyncFailed, match="earlier failure"):
            act()
    assert log.durable == NOTHING


def test_a_sync_may_run_in_another_thread_while_the_log_goes_on(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    given = batches(60)
    log = open_log(files)
    log.append(given[:20])
    work = log.begin_sync()
    assert work
    thread = threading.Thread(target=work.run)
    thread.start()
    for each in given[20:40]:
        log.append([each])
        assert log.read(each.offset, bytes_max=1) == [each]
    thread.join()
    mark = log.end_sync(work)
    assert (mark.end_offset, log.durable) == (given[20].offset, mark)
    assert log.begin_sync(), "what came meanwhile is not durable yet"


def test_a_sync_covers_what_was_there_when_it_began() -> None:
    for seed in range(50):
        files = disk(seed)
        given = batches(40)
        log = open_log(files)
        log.append(given[:20])
        work = log.begin_sync()
        log.append(given[20:])
        work.run()
        mark = log.end_sync(work)
        files.crash()
        again = open_log(files, mark)
        assert contents(again) == given[:20]
        again.append(given[20:])
        mark = again.sync()
        files.crash()
        assert contents(open_log(files, mark)) == given


def test_what_is_written_while_a_sync_runs_is_covered_by_the_next() -> None:
    for seed in range(30):
        files = disk(seed)
        given = batches(6)
        log = open_log(files)
        log.append(given[:3])
        work = log.begin_sync()
        work.run()
        log.append(given[3:])
        assert log.end_sync(work).end_offset == given[3].offset
        mark = log.sync()
        files.crash()
        assert contents(check_all(open_log(files, mark))) == given


def check_all(log: PartitionLog) -> PartitionLog:
    for _ in log.verify():
        pass
    return log


def test_a_sync_with_nothing_to_do_touches_no_file() -> None:
    files = disk()
    log = filled(files, batches(20))
    log.trim(5)
    before = files.operations
    assert log.sync().first_offset == 5
    log.rest()
    assert contents(log)
    log.sync()
    assert files.operations == before


def test_the_first_sync_covers_directories_that_another_partition_made() -> None:
    """Both are below one directory, whose own name only the other's sync would make durable."""
    for seed in range(20):
        files = disk(seed)
        one = PartitionLog.open(files, "shard-0/partitions/one", TINY)
        two = PartitionLog.open(files, "shard-0/partitions/two", TINY)
        one.append(batches(3))
        two.append(batches(3))
        mark = two.sync()
        files.crash()
        again = PartitionLog.open(files, "shard-0/partitions/two", TINY, durable=mark)
        assert contents(again) == batches(3)


def test_open_files_are_few_however_many_logs_there_are(tmp_path: Path) -> None:
    files = RealFiles(tmp_path)
    handles = Handles(files, open_max=8)
    logs = [
        PartitionLog.open(files, f"shard-0/partitions/{n}", TINY, handles=handles)
        for n in range(50)
    ]
    given = batches(20)
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for first in range(0, 20, 5):
        for log in logs:
            log.append(given[first : first + 5])
            log.sync()
            assert log.read(given[first].offset, bytes_max=1) == given[first : first + 1]
            assert len(handles) <= 8
    for log in logs:
        assert contents(log) == given
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 8
    for log in logs:
        log.rest()
    assert len(handles) == 0
    assert contents(logs[7]) == given, "it wakes by itself"
    assert len(handles) > 0
    logs[7].close()
    assert len(handles) == 0


def test_a_file_whose_write_failed_is_closed_like_any_other(tmp_path: Path) -> None:
    class Full(RealFiles):
        def open(self, path: str) -> RealFile:
            return FullFile(os.open(tmp_path / path, os.O_RDWR), path)

    class FullFile(RealFile):
        def pwritev_direct(self, buffers: Sequence[Buffer], offset: int) -> None:  # noqa: ARG002
            raise NoSpace(f"no space left at {offset}")

    log = filled(RealFiles(tmp_path), batches(4))
    given = batches(6)
    log = open_log(Full(tmp_path), log.durable)
    log.append(given[4:])
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for _ in range(3):
        with pytest.raises(NoSpace):
            log.sync()
    assert not before or len(os.listdir("/proc/self/fd")) == before
    assert log.read(given[4].offset, bytes_max=EVERYTHING) == given[4:]
