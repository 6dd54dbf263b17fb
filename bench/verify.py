"""How fast `shardnode verify` reads: every byte of two shards checked, LMDB's pages included.

    .venv/bin/python bench/verify.py [--dir D] [--gib G]

Two shards are written as a node would write them: batches of 1,000 random keys of 16 bytes with
values of 100 bytes, a tenth with 4 KiB, and batches for a stream partition; each with a log, LMDB,
partition logs and a snapshot. Then the directory is verified from the page cache: what is measured
is the checking, not the disk. The cold figures, after the cache was told to let go, are the disk's:
that of verify beside one of nothing but reading. Bytes of LMDB that mean nothing are not counted.

Ends with status 1 when the target is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time

import msgpack

from shardnode.node.identity import IDENTITY, Identity, encode_identity
from shardnode.offline.verify import verify
from shardnode.raft import Entry
from shardnode.shard.effects import open_effects
from shardnode.shard.entries import PARTITIONS_SET, encode_entry
from shardnode.storage import RealFiles, SegmentedLog, SnapshotStore, Superblock, SuperblockState
from shardnode.storage.audit import Book
from shardnode.storage.audit_keys import audit_keys
from shardnode.storage.files import ReadOnlyFiles
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import CONTROL_PARTITION, KEY_VALUE_PARTITION
from shardnode.wire.requests import PutMany
from shardnode.wire.streams import Append

ROOT = Path(__file__).resolve().parents[1]
GIB_PER_S_TARGET = 0.3
BATCH_KEYS = 1_000
NAMESPACE = 7
LOG_KEPT = 0.25
"""Of what was written: the rest of the log was cut."""


def entries(rng: random.Random, count: int) -> Iterator[Entry]:
    """Keys, large values and a batch of a stream, in turn."""
    numbers = {KEY_VALUE_PARTITION: 0, CONTROL_PARTITION: 0, NAMESPACE: 0}
    for index in range(1, count + 1):
        if index == 1:
            partition, kind = CONTROL_PARTITION, PARTITIONS_SET
            body = bytes(msgpack.packb([1, [[NAMESPACE, {"retention_ms": 0}]], True]))
        elif index % 4 == 0:
            partition, kind = NAMESPACE, int(Kind.APPEND)
            body = Append(NAMESPACE, 100, rng.randbytes(100_000)).encode()
        else:
            partition, kind = KEY_VALUE_PARTITION, int(Kind.PUT_MANY)
            large = index % 4 == 1
            keys = [rng.randbytes(16) for _ in range(BATCH_KEYS // (10 if large else 1))]
            values = [rng.randbytes(4_096 if large else 100)] * len(keys)
            body = PutMany(keys, values).encode()
        numbers[partition] += 1
        payload = encode_entry(index, kind, body)
        yield Entry(index, 1, partition, numbers[partition], payload)


def write_shard(data: Path, shard: int, count: int) -> None:
    """As a worker does, without consensus."""
    name, files = f"shard-{shard}", RealFiles(data)
    superblock = Superblock.load(files, name)
    superblock.store(SuperblockState(1, shard + 1, 1, 1, 0, 0, False))
    log = SegmentedLog.open(files, name)
    effects = open_effects(str(data / name), "lmdb", {})
    for entry in entries(random.Random(shard), count):
        log.append_batch([entry], entry.index - 1)
        effects.apply([entry])
        if effects.wants_flush:
            effects.flush(b"")
    log.sync()
    effects.flush(b"")
    snapshots = SnapshotStore(files, name)
    snapshots.write(count, 1, log.chain(count), b"", effects.snapshot())
    log.truncate_front(int(count * (1 - LOG_KEPT)))
    superblock.store(SuperblockState(1, shard + 1, 1, 1, count, count, False))
    effects.close()
    log.close()


def let_go_of_the_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def measure(data: Path) -> tuple[float, float, float]:
    """GiB that were read, and how many a second by the clock and by the processor's."""
    begun, used = perf_counter(), process_time()
    verdict = verify(data)
    seconds, used = perf_counter() - begun, process_time() - used
    assert verdict.is_sound, [str(finding) for finding in verdict.damage]
    gib = verdict.bytes_read / (1 << 30)
    return gib, gib / seconds, gib / used


def measure_reading(data: Path) -> float:
    """GiB a second of nothing but reading, from the disk."""
    let_go_of_the_cache(data)
    size, begun = 0, perf_counter()
    for path in sorted(data.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while piece := file.read(4 << 20):
                    size += len(piece)
    return size / (1 << 30) / (perf_counter() - begun)


def measure_keys(data: Path) -> float:
    """GiB a second of LMDB alone."""
    book, begun = Book(), perf_counter()
    for shard in (0, 1):
        audit_keys(ReadOnlyFiles(data), f"shard-{shard}", book)
    return book.bytes_read / (1 << 30) / (perf_counter() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast verify reads.")
    parser.add_argument("--dir", type=Path, default=ROOT, help="on the disk to measure")
    parser.add_argument("--gib", type=float, default=1.0, help="about how much there is to read")
    options = parser.parse_args()
    data = Path(tempfile.mkdtemp(prefix="bench-verify-", dir=options.dir))
    try:
        for shard in (0, 1):
            write_shard(data, shard, int(options.gib * 630))
        (data / IDENTITY).write_bytes(encode_identity(Identity("bench", 1, 2, 1)))
        return report(data)
    finally:
        shutil.rmtree(data)


def report(data: Path) -> int:
    runs = [measure(data) for _ in range(3)]
    keys = max(measure_keys(data) for _ in range(3))
    reading = measure_reading(data)
    let_go_of_the_cache(data)
    cold = measure(data)
    gib, best, _ = max(runs, key=lambda run: run[1])
    parts: dict[str, int] = {}
    for path in data.rglob("*"):
        if path.is_file():
            part = path.relative_to(data).parts[1 if path.parent != data else 0]
            parts[part] = parts.get(part, 0) + path.stat().st_blocks * 512
    for part, size in sorted(parts.items()):
        print(f"{part:12} {size / (1 << 30):8.2f} GiB on the disk")
    print(f"{'read':12} {gib:8.2f} GiB that mean something")
    print(f"{'LMDB alone':12} {keys:8.2f} GiB/s")
    print(f"{'cold':12} {cold[1]:8.2f} GiB/s, nothing but reading {reading:.2f}")
    print(f"{'one core':12} {max(run[2] for run in runs):8.2f} GiB in a second of the processor")
    word = "ok" if best >= GIB_PER_S_TARGET else "MISSED"
    print(f"{'warm':12} {best:8.2f} GiB/s, best of 3 (target {GIB_PER_S_TARGET}: {word})")
    return int(best < GIB_PER_S_TARGET)


if __name__ == "__main__":
    sys.exit(main())
