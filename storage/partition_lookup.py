"""Owns where in a segment a reader begins: the sparse indexes in memory, and where reads ended.

An index comes into being while its segment is written. After a restart that of a sealed segment is
read from its footer, and that of the last one is made by a walk over headers, but only when the
segment is sealed, or somebody reads below the place where the log was opened.

The one rule: memory is bounded. The index of the last segment stays; of sealed ones a few do.
"""

from __future__ import annotations

from shardnode.storage.errors import PartitionDamaged
from shardnode.storage.partition_handles import Handles
from shardnode.storage.partition_options import PartitionOptions
from shardnode.storage.partition_records import Cursor, SparseIndex
from shardnode.storage.partition_scan import walk
from shardnode.storage.partition_segment import Segment, complete_index, load_footer

_CURSORS_MAX = 64
"""Readers that go on where they stopped; each further one is led by the index."""


class Lookup:
    """Finds offsets and stamps in the segments of one log."""

    def __init__(self, handles: Handles, options: PartitionOptions) -> None:
        self._handles = handles
        self._options = options
        self._indexed: dict[int, Segment] = {}  # sealed ones, by number, lately used last
        self._cursors: dict[tuple[int, int], Cursor] = {}  # by segment number and offset

    def index(self, segment: Segment) -> SparseIndex:
        """The index of a segment from its first batch on, read or made when it is not there."""
        if not segment.is_indexed:
            file = self._handles.read(segment.path)
            if segment.is_sealed:
                load_footer(segment, file)
                self.keep(segment)
            else:
                complete_index(segment, file, self._options.index_every_bytes)
        elif segment.header.number in self._indexed:
            self.keep(segment)  # used last
        return segment.index

    def locate(self, segment: Segment, offset: int) -> tuple[Cursor, int]:
        """Where to begin to look for `offset`, and about how many bytes before it that may be."""
        known = self._cursors.get((segment.header.number, offset))
        if known is not None:
            return known, 0
        index = segment.index
        slot = index.slot_of(offset)
        if slot < 0 and not segment.is_indexed:
            index = self.index(segment)
            slot = index.slot_of(offset)
        if slot < 0:
            detail = f"the index of this segment begins above offset {offset}"
            raise PartitionDamaged(detail, path=segment.path, offset=0)
        cursor = index.cursor(slot)
        return cursor, 0 if cursor.offset == offset else self._options.index_every_bytes

    def find(self, segment: Segment, stamp_ms: int, end: int) -> int:
        """The first offset in a segment whose batch has this stamp or a later one, or its end. Its
        file is written up to the position `end`, which is 0 when that is all of it."""
        index = self.index(segment)
        slot = index.slot_before(stamp_ms)
        if slot < 0:
            return segment.header.base_offset
        file = self._handles.read(segment.path)
        end = end or segment.end.position
        for cursor, header in walk(file, segment.path, index.cursor(slot), end):
            if header.stamp_ms >= stamp_ms:
                return cursor.offset
        return segment.end.offset

    def remember(self, segment: Segment, cursor: Cursor) -> None:
        """A read ended here; who reads on needs no index."""
        key = (segment.header.number, cursor.offset)
        self._cursors.pop(key, None)
        self._cursors[key] = cursor
        if len(self._cursors) > _CURSORS_MAX:
            del self._cursors[next(iter(self._cursors))]

    def keep(self, segment: Segment) -> None:
        """Keep the index of a sealed segment for a while, at the price of another one's."""
        self._indexed.pop(segment.header.number, None)
        self._indexed[segment.header.number] = segment
        while len(self._indexed) > self._options.indexes_max:
            _drop_index(self._indexed.pop(next(iter(self._indexed))))

    def forget(self, segment: Segment) -> None:
        """This segment is no more."""
        self._indexed.pop(segment.header.number, None)

    def rest(self) -> None:
        """Give back the memory that can be filled again."""
        for segment in self._indexed.values():
            _drop_index(segment)
        self._indexed.clear()


def _drop_index(segment: Segment) -> None:
    segment.index, segment.is_indexed = SparseIndex(), False
