"""What the tests of partition logs share: tiny logs, batches that tell which ones they are, and a
shard in miniature that applies entries, records marks and redoes after a crash."""

from __future__ import annotations

from collections.abc import Sequence

from shardnode.sim.disk import SimFiles
from shardnode.storage.files import Files
from shardnode.storage.partition_handles import Handles
from shardnode.storage.partition_log import NOTHING, Batch, Mark, PartitionLog, PartitionOptions
from tests.storage.kit import disk, tree

PLACE = "shard-0/partitions/orders"
TINY = PartitionOptions(
    segment_bytes=1500,
    segment_batches=7,
    index_every_bytes=256,
    indexes_max=1,
    batch_bytes_max=3000,
)
EVERYTHING = 1 << 30


def batch(log_index: int, offset: int, count: int = 1, size: int = 60) -> Batch:
    """The batch of one entry. Its partition index leaves gaps, and some share a stamp."""
    payload = (f"{log_index}@{offset}:".encode() * (size // 4 + 1))[:size]
    return Batch(log_index * 3, log_index, offset, count, log_index // 4 * 10, payload)


def batches(total: int, size: int = 60) -> list[Batch]:
    """The first batches of a partition; those with an odd log index were for another one."""
    found: list[Batch] = []
    offset = 0
    for number in range(total):
        each = batch(2 * number + 2, offset, number % 3 + 1, size)
        found.append(each)
        offset = each.end_offset
    return found


def open_log(files: Files, durable: Mark = NOTHING, open_max: int = 16) -> PartitionLog:
    return PartitionLog.open(files, PLACE, TINY, durable=durable, handles=Handles(files, open_max))


def filled(files: Files, given: Sequence[Batch], at_once: int = 4) -> PartitionLog:
    """A synced log of these batches."""
    log = open_log(files)
    for first in range(0, len(given), at_once):
        log.append(given[first : first + at_once])
    log.sync()
    return log


def contents(log: PartitionLog, bytes_max: int = EVERYTHING) -> list[Batch]:
    """All batches from the one that contains the first offset on."""
    found: list[Batch] = []
    offset = log.first_offset
    while more := log.read(offset, bytes_max=bytes_max):
        found += more
        offset = more[-1].end_offset
    return found


def paths(files: Files) -> list[str]:
    return [f"{PLACE}/{name}" for name in files.listdir(PLACE)] if files.exists(PLACE) else []


def image(files: Files) -> dict[str, bytes]:
    """Every file of the partition, with its content."""
    return tree(files, PLACE) if files.exists(PLACE) else {}


def reference(given: Sequence[Batch]) -> dict[str, bytes]:
    """The files of a replica to which nothing ever happened."""
    files = disk()
    if given:
        filled(files, given, at_once=len(given))
    return image(files)


Entry = Batch | int | None
"""Of the segmented log: a batch, a decision to trim at an offset, or nothing for this partition."""


class Shard:
    """Applies entries to one partition and keeps its marks, as a worker does with its engine.

    The engine returns after a crash to its last transaction or to the one before.
    """

    def __init__(self, files: SimFiles) -> None:
        self.files = files
        self.entries: list[Entry] = []  # entry n has log index n + 1; all of them are durable
        self.transactions: list[tuple[int, Mark]] = [(0, NOTHING)]
        # With few open files they are synced on the way, with many the next flush does it all.
        self._open_max = files.rng.choice((2, 16))
        self.log = open_log(files, open_max=self._open_max)

    def apply(self, first: int) -> None:
        """Apply the entries from this one on; what is next to each other goes in one append."""
        together: list[Batch] = []
        for entry in [*self.entries[first:], None]:
            if isinstance(entry, Batch):
                together.append(entry)
                continue
            if together:
                self.log.append(together)
                together = []
            if isinstance(entry, int):
                self.log.trim(entry)

    def record(self, mark: Mark, applied: int) -> None:
        self.transactions = [self.transactions[-1], (applied, mark)]

    def flush(self) -> None:
        applied = len(self.entries)
        self.record(self.log.sync(), applied)

    def release(self) -> None:
        """Only what the transaction before the last one can do without."""
        self.log.release(self.transactions[0][1])

    def restart(self) -> None:
        """Open what is there with what the engine has, and redo."""
        chosen = self.files.rng.choice(self.transactions)
        self.transactions = [chosen]
        applied, mark = chosen
        self.log = open_log(self.files, mark, self._open_max)
        assert self.log.mark == self.log.durable == mark
        self.apply(applied)
