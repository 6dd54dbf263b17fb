"""Owns the settings of the log of a stream partition.

The one rule: what shapes the files (`segment_bytes`, `segment_batches`, `index_every_bytes`) is the
same on every replica and never changes while there is data, or their files differ. A log that was
written with other settings still opens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """How the log of one partition lays out its files and what it keeps in memory."""

    segment_bytes: int = 64 << 20
    """Retention and copies to followers go by whole segments; a larger batch has its own one."""

    segment_batches: int = 1 << 15
    """Bounds the walk over the headers of the last segment that may be due once after a restart, at
    1.5 us each to 50 ms."""

    index_every_bytes: int = 64 << 10
    """Width of a window of the sparse index. The first batch that begins in one has an entry, so a
    lookup reads this much too much at most, and a full segment needs 32 KiB of memory."""

    batch_bytes_max: int = 32 << 20
    """Of one payload. As much as a batch of the segmented log may hold."""

    read_bytes_max: int = 16 << 20
    """What one read takes into memory at most, whatever it asks for, save that one batch fits."""

    indexes_max: int = 4
    """Sealed segments whose index stays in memory, for readers that go back and forth."""

    def __post_init__(self) -> None:
        assert min(self.segment_bytes, self.segment_batches, self.index_every_bytes) > 0
        assert 0 < self.batch_bytes_max < 1 << 32, "a length has 32 bits on the disk"
        assert min(self.read_bytes_max, self.indexes_max) > 0
