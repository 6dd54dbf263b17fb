"""What the storage tests share: tiny logs, a model of the chain, and crashes at every operation."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

import xxhash

from shardnode.sim.disk import SimCrash, SimFiles
from shardnode.storage.log import LogOptions, SegmentedLog
from shardnode.storage.records import Anchor, Record

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


def chain_of(previous: int, each: Sequence[tuple[int, int, int, int, bytes]]) -> int:
    """The chain as the format defines it, worked out without the code under test."""
    for index, term, partition, partition_index, payload in each:
        head = struct.pack("<IQQQQ", len(payload), index, term, partition, partition_index)
        previous = xxhash.xxh3_64_intdigest(head + payload, seed=previous)
    return previous


def open_log(files: SimFiles, durable_mark: int = 0, salvage: bool = False) -> SegmentedLog:
    return SegmentedLog.open(files, SHARD, TINY, durable_mark=durable_mark, salvage=salvage)


def filled(files: SimFiles, last: int, batch: int = 3) -> SegmentedLog:
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


def segments(files: SimFiles) -> list[str]:
    return [f"{SHARD}/log/{n}" for n in files.listdir(f"{SHARD}/log") if n.endswith(".seg")]


def position(log: SegmentedLog, index: int) -> Anchor:
    return Anchor(index, log.term(index), log.chain(index))


def read_all(files: SimFiles, path: str) -> bytes:
    file = files.open(path)
    return file.pread(file.size(), 0)


def overwrite(files: SimFiles, path: str, offset: int, data: bytes) -> None:
    """Change bytes on the disk behind everybody's back."""
    file = files.open(path)
    file.pwritev([data], offset)
    file.datasync()


def crash_at_every_operation(
    build: Callable[[SimFiles], None],
    act: Callable[[SimFiles], None],
    check: Callable[[SimFiles, bool], None],
    seeds: int = 5,
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
