"""What the log costs: appends against a bare vectored write, and how fast a log is verified.

    .venv/bin/python bench/storage.py [--dir D] [--rounds N] [--gib G]

Appends: batches of 64 records of 4 KiB, one fdatasync each, against the same bytes with nothing
but `os.writev` and `os.fdatasync` on a preallocated file. Both take turns in short rounds, so a
busy machine slows both, and the median of the rounds' ratios is what counts. The total, with
every roll and every stall of the disk in it, is printed beside it.

Opening: a log of 1 GiB is written, closed and opened again, which checks every batch. It is read
from the page cache: what is measured is the checking, not the disk. The cold figure, after the
cache was told to let go, is the disk's and has no target.

Ends with status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from shardnode.storage import LogOptions, RealFiles, Record, SegmentedLog

ROOT = Path(__file__).resolve().parents[1]
APPEND_RATIO_TARGET = 0.8
OPEN_GIB_PER_S_TARGET = 0.5

BATCH_RECORDS = 64
RECORD_BYTES = 4 << 10
BATCH_BYTES = BATCH_RECORDS * RECORD_BYTES
ROUND_BATCHES = 8
PAYLOADS = [bytes([number]) * RECORD_BYTES for number in range(BATCH_RECORDS)]


def batch(first: int) -> list[Record]:
    return [Record(first + n, 1, 7, first + n, payload) for n, payload in enumerate(PAYLOADS)]


class BareFile:
    """The least that a durable append can cost here."""

    def __init__(self, path: Path, size: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.posix_fallocate(self._fd, 0, size)
        os.fsync(self._fd)

    def append_round(self) -> float:
        begin = perf_counter()
        for _ in range(ROUND_BATCHES):
            os.writev(self._fd, PAYLOADS)
            os.fdatasync(self._fd)
        return perf_counter() - begin

    def close(self) -> None:
        os.close(self._fd)


def log_round(log: SegmentedLog) -> float:
    first = log.last_index + 1
    batches = [batch(first + number * BATCH_RECORDS) for number in range(ROUND_BATCHES)]
    begin = perf_counter()
    for records in batches:
        log.append_batch(records)
        log.sync()
    return perf_counter() - begin


def measure_appends(directory: Path, rounds: int) -> bool:
    log = SegmentedLog.open(RealFiles(directory), "append")
    bare = BareFile(directory / "bare", (rounds + 1) * ROUND_BATCHES * BATCH_BYTES)
    bare.append_round()  # both begin with warm code and a file that is in use
    log_round(log)
    bare_times, log_times = [], []
    for number in range(rounds):
        if number % 2:
            log_times.append(log_round(log))
            bare_times.append(bare.append_round())
        else:
            bare_times.append(bare.append_round())
            log_times.append(log_round(log))
    bare.close()
    log.close()
    for name, times in (("bare writev", bare_times), ("log append", log_times)):
        rate = ROUND_BATCHES / statistics.median(times)
        mib = rate * BATCH_BYTES / (1 << 20)
        print(f"{name:12} {rate:8.0f} batches/s  {mib:8.0f} MiB/s  (median)")
    ratio = statistics.median(b / own for b, own in zip(bare_times, log_times, strict=True))
    total = sum(bare_times) / sum(log_times)
    note = f"median of {rounds} rounds, {total:.2f} in total"
    return verdict("append ratio", ratio, APPEND_RATIO_TARGET, note)


def measure_open(directory: Path, gib: float) -> bool:
    files = RealFiles(directory)
    log = SegmentedLog.open(files, "open")
    begin = perf_counter()
    written = 0
    while written < gib * (1 << 30):
        log.append_batch(batch(log.last_index + 1))
        written += BATCH_BYTES
    log.sync()
    last = log.last_index
    log.close()
    print(f"{'write':12} {written / (1 << 30) / (perf_counter() - begin):8.2f} GiB/s, synced")
    warm = max(time_open(files, last, written) for _ in range(3))
    let_go_of_the_cache(directory / "open" / "log")
    print(f"{'open, cold':12} {time_open(files, last, written):8.2f} GiB/s")
    return verdict("open, warm", warm, OPEN_GIB_PER_S_TARGET, "GiB/s, best of 3")


def time_open(files: RealFiles, last: int, written: int) -> float:
    begin = perf_counter()
    log = SegmentedLog.open(files, "open", LogOptions(), durable_mark=last)
    took = perf_counter() - begin
    assert log.last_index == last
    log.close()
    return written / (1 << 30) / took


def let_go_of_the_cache(folder: Path) -> None:
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def verdict(what: str, found: float, target: float, note: str) -> bool:
    word = "ok" if found >= target else "MISSED"
    print(f"{what:12} {found:8.2f} ({note}; target {target}: {word})")
    return found >= target


@contextmanager
def folder_in(parent: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bench-storage-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def main() -> int:
    parser = argparse.ArgumentParser(description="What the log costs.")
    parser.add_argument("--dir", type=Path, default=ROOT, help="on the file system to measure")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--gib", type=float, default=1.0)
    given = parser.parse_args()
    with folder_in(given.dir) as folder:
        appends = measure_appends(folder, given.rounds)
        opens = measure_open(folder, given.gib)
    return 0 if appends and opens else 1


if __name__ == "__main__":
    sys.exit(main())
