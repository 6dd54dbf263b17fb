"""What the storage tests share: tiny logs, a model of the chain, and crashes at every operation."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

import xxhash

from shardnode.sim.disk import SimCrash, SimFiles
from shardnode.storage.errors import Corrupt, DiskFailed
from shardnode.storage.files import Files, join, parent_of
from shardnode.storage.log import LogOptions, SegmentedLog
from shardnode.storage.publish import make_dir, publish_file
from shardnode.storage.records import Anchor, Record
from shardnode.storage.scan import Batch, scan
from shardnode.storage.segment import SEGMENT_HEADER_BYTES, decode_segment_header
from shardnode.storage.snapshots import SnapshotMeta, SnapshotStore

OLD_FILES = {"keys": b"old keys" * 20, "sessions": b""}
NEW_FILES = {"keys": b"new keys" * 300, "empty": b"", "sessions": b"new sessions" * 90}
TINY = LogOptions(segment_bytes=1500, index_every_bytes=200, zero_ahead_bytes=256)
SHARD = "shard-0"


def disk(seed: int = 0) -> SimFiles:
    return SimFiles(random.Random(seed))


def record(index: int, term: int = 1, size: int = 40) -> Record:
    """A record whose payload tells which one it is."""
    payload = (f"{index}/{term}:".encode() * (size // 4 + 1))[:size]
    return Record(index, term, 1 << 63 | 7, index * 3, payload)


def run(first: int, last: int, term: int = 1, size: int = 40) -> list[Record]:
    return [record(index, term, size) for index in range(first, last + 1)]


def payload_size(index: int) -> int:
    """Sizes all over the place, up to more than a tiny segment, but known from the index."""
    return index * 7919 % 1800


def chain_of(previous: int, each: Sequence[tuple[int, int, int, int, bytes]]) -> int:
    """The chain as the format defines it, worked out without the code under test."""
    for index, term, partition, partition_index, payload in each:
        head = struct.pack("<IQQQQ", len(payload), index, term, partition, partition_index)
        previous = xxhash.xxh3_64_intdigest(head + payload, seed=previous)
    return previous


def open_log(files: Files, durable_mark: int = 0, salvage: bool = False) -> SegmentedLog:
    return SegmentedLog.open(files, SHARD, TINY, durable_mark=durable_mark, salvage=salvage)


def filled(files: Files, last: int, batch: int = 3) -> SegmentedLog:
    """A log of `last` records in synced batches, over several segments when there are enough."""
    log = open_log(files)
    for first in range(1, last + 1, batch):
        log.append_batch(run(first, min(first + batch - 1, last)))
        log.sync()
    return log


def contents(log: SegmentedLog) -> list[Record]:
    if log.last_index < log.first_index:
        return []
    return log.read(log.first_index, log.last_index)


def write_snapshot(
    store: SnapshotStore, index: int, contents: dict[str, bytes], term: int = 1, chain: int = 7
) -> SnapshotMeta:
    chunked = {name: [data[:100], data[100:]] for name, data in contents.items()}
    return store.write(index, term, chain, b"members", chunked)


def snapshot_contents(store: SnapshotStore, meta: SnapshotMeta) -> dict[str, bytes]:
    """What a snapshot holds, read back with every checksum verified."""
    return {file.name: b"".join(store.read_file(meta, file.name)) for file in meta.files}


def segments(files: Files) -> list[str]:
    return [f"{SHARD}/log/{n}" for n in files.listdir(f"{SHARD}/log") if n.endswith(".seg")]


def position(log: SegmentedLog, index: int) -> Anchor:
    return Anchor(index, log.term(index), log.chain(index))


def read_all(files: Files, path: str) -> bytes:
    file = files.open(path)
    return file.pread(file.size(), 0)


def tree(files: Files, path: str) -> dict[str, bytes]:
    """Every file below a directory, with its content."""
    found: dict[str, bytes] = {}
    for name in files.listdir(path):
        below = join(path, name)
        try:
            found[below] = read_all(files, below)
        except DiskFailed:
            found |= tree(files, below)
    return found


def disk_with(image: dict[str, bytes], seed: int = 0) -> SimFiles:
    """A disk that holds exactly these files, all of them durable."""
    files = disk(seed)
    for path, data in image.items():
        make_dir(files, parent_of(path))
        publish_file(files, path, data)
    return files


def batches_in(files: Files, path: str) -> list[Batch]:
    """The batches of one segment, up to its end or the first unsound one."""
    file = files.open(path)
    salt = decode_segment_header(file.pread(SEGMENT_HEADER_BYTES, 0)).salt
    found: list[Batch] = []
    with suppress(Corrupt):
        found.extend(scan(file, path, salt, SEGMENT_HEADER_BYTES, file.size()))
    return found


def put(files: Files, path: str, data: bytes) -> None:
    """Make a file hold exactly these bytes."""
    file = files.open(path)
    file.truncate(0)
    file.pwritev([data], 0)
    file.datasync()


def overwrite(files: Files, path: str, offset: int, data: bytes) -> None:
    """Change bytes on the disk behind everybody's back."""
    file = files.open(path)
    file.pwritev([data], offset)
    file.datasync()


def crash_at_every_operation(
    build: Callable[[SimFiles], object],
    act: Callable[[SimFiles], object],
    check: Callable[[SimFiles, bool], None],
    seeds: int = 10,
) -> None:
    """Run `act` on what `build` made, with the power lost at its first, second … operation, and
    `check` what is left each time; the flag says whether `act` came to its end."""
    for seed in range(seeds):
        completed = False
        operation = 0
        while not completed:
            files = disk(seed * 1000 + operation)
            build(files)
            files.fail_after(operation, "crash")
            try:
                act(files)
                completed = True
            except SimCrash:
                pass
            files.crash()
            check(files, completed)
            operation += 1
        assert operation > 1, "the action changed nothing"
