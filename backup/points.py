"""To which moments a shard can be restored, and from what. Pure, but for a look into one chunk.

    base ─── chunk ─── chunk ─── chunk        every index on the way is a moment
               └ the first record that is stamped later than a time ends it

The one rule: a moment counts when everything up to it is there, and nothing that belongs to it can
be missing. A time is reached when a record that is stamped later follows, or when a cut says that
it has everything that was stamped by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shardnode.backup.chunks import stamp_of_record
from shardnode.backup.format import Base, Chunk, ShardCut
from shardnode.storage.records import ORIGIN, Anchor
from shardnode.storage.stretch import Proven
from shardnode.wire.errors import NotFound

ReadChunk = Callable[[Chunk], Iterator[Proven]]


@dataclass(frozen=True, slots=True)
class Point:
    """How to come to the state of one shard at an index."""

    shard: int
    index: int
    base: Base | None
    path: tuple[Chunk, ...]
    """The log behind the base; only the records up to the index count."""

    @property
    def start(self) -> Anchor:
        return self.base.position if self.base is not None else ORIGIN

    def begins_by(self, time_ms: int) -> bool:
        """Whether anything in it was stamped by then."""
        first = next((c.stamp_first_ms for c in self.path if c.stamp_first_ms), time_ms + 1)
        return self.base is not None or first <= time_ms

    @property
    def bytes(self) -> int:
        """About how much is to be read."""
        base = self.base.size if self.base is not None else 0
        return base + sum(chunk.size for chunk in self.path)


def point_of(cut: ShardCut) -> Point:
    """The moment of a backup itself."""
    return _found(cut.shard, [cut], cut.base, cut.index)


def point_at_index(shard: int, cuts: Sequence[ShardCut], index: int) -> Point:
    """The state at an index of the log, from whatever backups there are."""
    for base in _bases(cuts):
        if _index(base) <= index <= _end(cuts, base):
            return _found(shard, cuts, base, index)
    ranges = [f"{max(1, _index(base))} to {_end(cuts, base)}" for base in reversed(_bases(cuts))]
    raise NotFound(
        f"expected an index of shard {shard} from {' or from '.join(dict.fromkeys(ranges))}, found"
        f" {index}; the log of other moments is not in these backups"
    )


def point_at_time(shard: int, cuts: Sequence[ShardCut], time_ms: int, read: ReadChunk) -> Point:
    """The state with everything that was stamped by then, and nothing that was stamped later."""
    for base in _bases(cuts):
        if base is not None and base.stamp_ms > time_ms:
            continue
        index = _last_by(cuts, base, time_ms, read)
        if index is not None and index > 0:
            return _found(shard, cuts, base, index)
    raise NotFound(
        f"expected a time {_times(cuts)} for shard {shard}, found {shown(time_ms)}; what happened"
        " at other times is not in these backups"
    )


def shown(time_ms: int) -> str:
    """A time as people read it."""
    text = datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _times(cuts: Sequence[ShardCut]) -> str:
    """The times that can be reached, as one span for each run of log."""
    spans = []
    for base in reversed(_bases(cuts)):
        path = _path(cuts, base, _end(cuts, base))
        first = base.stamp_ms if base is not None else path[0].stamp_first_ms if path else 0
        spans.append(f"from {shown(first)} to {shown(_through(cuts, _end(cuts, base)))}")
    return " or ".join(dict.fromkeys(spans))


def _bases(cuts: Iterable[ShardCut]) -> list[Base | None]:
    """The latest first; None stands for the beginning of the log."""
    return sorted({cut.base for cut in cuts}, key=_index, reverse=True)


def _index(base: Base | None) -> int:
    return base.index if base is not None else 0


def _path(cuts: Iterable[ShardCut], base: Base | None, index: int) -> list[Chunk]:
    """The chunks from a base to an index, as far as they continue each other."""
    chunks = sorted({chunk for cut in cuts for chunk in cut.log}, key=lambda chunk: chunk.first)
    path: list[Chunk] = []
    at, place = _index(base), 0
    while at < index:
        best: Chunk | None = None
        while place < len(chunks) and chunks[place].first <= at + 1:
            if best is None or chunks[place].last > best.last:
                best = chunks[place]
            place += 1
        if best is None or best.last <= at:
            break
        path.append(best)
        at = best.last
    return path


def _end(cuts: Sequence[ShardCut], base: Base | None) -> int:
    path = _path(cuts, base, 1 << 64)
    return path[-1].last if path else _index(base)


def _through(cuts: Iterable[ShardCut], end: int) -> int:
    """Everything that was stamped by then is at or below `end`."""
    return max((cut.through_ms for cut in cuts if cut.index <= end), default=0)


def _last_by(
    cuts: Sequence[ShardCut], base: Base | None, time_ms: int, read: ReadChunk
) -> int | None:
    """The last index with nothing stamped later; None when there may be more of that time."""
    end = _end(cuts, base)
    index = _index(base)
    for chunk in _path(cuts, base, end):
        if chunk.stamp_last_ms <= time_ms:
            index = chunk.last
            continue
        for proven in read(chunk):
            if stamp_of_record(proven) > time_ms:
                break
            index = max(index, proven.record.index)
        return index
    return index if time_ms <= _through(cuts, end) else None


def _found(shard: int, cuts: Sequence[ShardCut], base: Base | None, index: int) -> Point:
    path = _path(cuts, base, index)
    if (path[-1].last if path else _index(base)) < index:
        raise NotFound(
            f"expected the log of shard {shard} up to index {index}, found it up to"
            f" {path[-1].last if path else _index(base)}: the manifest does not name the rest"
        )
    return Point(shard, index, base, tuple(path))
