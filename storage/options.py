"""Owns the settings of a log and the account of how it was opened.

The one rule: limits bind the writer only. A log that was written under larger ones still opens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shardnode.storage.records import BATCH_BYTES_LIMIT


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a segmented log lays out its files. Every default may be changed between two starts."""

    segment_bytes: int = 64 << 20
    """Also what is redone at most per shard after a crash: at 0.5 GiB/s it is verified in 125 ms,
    and a roll (two fsyncs) every 64 MiB costs nothing."""

    index_every_bytes: int = 64 << 10
    """Distance of entries in the sparse index: a lookup reads this much at most, and a full
    segment needs 16 KiB of memory."""

    max_record_bytes: int = 16 << 20
    """One client request is one record; larger ones would hold up the others for too long."""

    max_batch_bytes: int = 32 << 20
    """One batch is one write and one fsync; half a segment keeps the rest of a rolled one small."""

    zero_ahead_bytes: int = 1 << 20
    """How far zeros are written ahead of small batches, in the same write as one of them. Over
    bytes that were written before, an fsync has no block map to update: 90 us instead of 145 us
    for 4 KiB here. 0 turns it off."""

    spare_segments: int = 4
    """Segments that were cut in front and are kept to be written over: 100 KB and its fsync cost 17
    us of a core so, and 45 us in a file that grows. A log that has outgrown what is kept for
    members that lag (256 MiB) is cut to what its effects need, so four of them become free at a
    time, and the log grows into them again: the disk holds no more than it did before the cut. 0
    turns it off."""

    def __post_init__(self) -> None:
        assert 0 < self.max_record_bytes <= self.max_batch_bytes <= BATCH_BYTES_LIMIT
        assert min(self.segment_bytes, self.index_every_bytes) > 0
        assert min(self.zero_ahead_bytes, self.spare_segments) >= 0


class Opened(StrEnum):
    """What `open` found."""

    CREATED = "created"  # nothing: this is a new log
    CLEAN = "clean"
    TORN = "torn"  # the last write was not complete, and has been cut
    SALVAGED = "salvaged"  # durable records were lost, and the caller had asked to go on


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What `open` found and did. All but the kind is empty when there was nothing to do."""

    kind: Opened
    path: str = ""
    offset: int = 0  # where the intact part ends
    bytes_cut: int = 0  # 0 too where nobody knows: bytes of an earlier life followed
    first_lost_index: int = 0
    detail: str = ""
    quarantined: tuple[str, ...] = ()  # files set aside by a salvage
