"""A topic of files: the directory of a stopped node.

    shard 0's state      what the topic is
    a partition's log    its messages, up to the mark that the state of its shard keeps
    the shard's log      what was agreed behind that state, applied in memory

A shard applies what is agreed before its files are synced, and after a crash the rest stands in its
log alone; so both are read. What is in that log and not known to be agreed is left out, with a
warning: a crash may have come between an answer and the watermark that tells of it.

One rule: nothing is written, and a directory on which a node runs is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardnode.backup.format import MARK
from shardnode.client.topics import to_topic_name
from shardnode.client.values import Bounds
from shardnode.pipeline.stopped import agreed_log, held, identity_of
from shardnode.pipeline.topics_losses import log
from shardnode.pipeline.topics_plan import split
from shardnode.pipeline.topics_rows import Stored
from shardnode.pipeline.topics_scan import Pages, Piece, name_of, resolve
from shardnode.shard.overlay_streams import Behind, streams_behind
from shardnode.shard.streams import directory_of
from shardnode.shard.topics import Topics
from shardnode.storage.audit_keys import newest_file
from shardnode.storage.engine_offline import OfflineKeys
from shardnode.storage.errors import StorageError
from shardnode.storage.files import ReadOnlyFiles
from shardnode.storage.partition_log import NOTHING, Batch, Mark, PartitionLog
from shardnode.wire.errors import Corrupt, InvalidRequest
from shardnode.wire.placement import pack_namespace

if TYPE_CHECKING:
    from shardnode.client.offsets import Start
    from shardnode.pipeline.options import Options

PAGE_BYTES = 4 << 20


@dataclass(frozen=True)
class FilePiece(Piece):
    """Messages in the log of a partition."""

    root: str
    directory: str
    mark: bytes

    @contextmanager
    def opened(self, options: Options) -> Iterator[Pages]:  # noqa: ARG002
        with held(self.root), _damage_named(self.root):
            files, mark = ReadOnlyFiles(self.root), Mark.decode(self.mark)
            with closing(PartitionLog.view(files, self.directory, mark)) as there:

                def pages(offset: int, end: int) -> Iterator[Iterator[Stored]]:
                    while offset < end:
                        found = there.read(offset, bytes_max=PAGE_BYTES)
                        offset = found[-1].end_offset
                        yield map(_stored, found)

                yield pages


@dataclass(frozen=True)
class TailPiece(Piece):
    """Messages that only the log of the shard had."""

    batches: tuple[Stored, ...]

    @contextmanager
    def opened(self, options: Options) -> Iterator[Pages]:  # noqa: ARG002
        yield lambda _, __: iter((iter(self.batches),))


class Place(NamedTuple):
    """Where one partition is."""

    shard: int
    directory: str
    behind: Behind


def plan_path(options: Options) -> Iterator[Piece]:
    """The pieces of a topic in a directory."""
    root, name = options.path, to_topic_name(name_of(options))
    assert root is not None, "there is a path"
    if os.path.exists(os.path.join(root, MARK)):
        raise InvalidRequest(
            f"{root}: expected the directory of a stopped node, found backups, of which Spark reads"
            " keys alone; for a topic, restore one (`shardnode restore`) and start its node once"
        )
    shards = identity_of(root).shards
    with held(root), _damage_named(root):
        files = ReadOnlyFiles(root)
        spaces: dict[int, Place] = {}
        topics = Topics()
        for shard in range(shards):
            blob, places = _shard(files, shard)
            spaces |= places
            topics = Topics.decode(blob) if not shard else topics
        topic = topics.describe(name)
        wanted = [pack_namespace(topic.stream, topic.topic, n) for n in range(topic.partitions)]
        for number in [number for number, space in enumerate(wanted) if space not in spaces]:
            log.warning("topic %s: no shard has made its partition %d yet", name, number)
        there = [spaces.get(space, _NOWHERE) for space in wanted]
        yield from _pieces(files, options, name, root, there)


def _pieces(
    files: ReadOnlyFiles, options: Options, name: str, root: str, places: Sequence[Place]
) -> Iterator[Piece]:
    def times(starts: Sequence[Start]) -> list[int]:
        pairs = zip(places, starts, strict=True)
        return [_find(files, place, start.value) for place, start in pairs]

    known = [Bounds(place.behind.first, place.behind.end) for place in places]
    spans = resolve(options, name, known, times)
    for number, start, end in split(spans, options.minpartitions, options.maxrecordsperpartition):
        shard, directory, behind = places[number]
        stored = behind.mark.end_offset
        if start < stored or start == end:
            until, mark = min(end, stored), behind.mark.encode()
            yield FilePiece(name, number, shard, start, until, root, directory, mark)
        if end > stored:
            start = max(start, stored)
            batches = [b for b in behind.batches if b.end_offset > start and b.offset < end]
            yield TailPiece(name, number, shard, start, end, tuple(map(_stored, batches)))


def _shard(files: ReadOnlyFiles, shard: int) -> tuple[bytes, dict[int, Place]]:
    """What a shard says of topics, and its partitions by namespace."""
    name = f"shard-{shard}"
    path = newest_file(files, name)
    if not path:
        raise InvalidRequest(
            f"{name}: expected the keys of a node that has run, found none; start the node once"
        )
    with closing(OfflineKeys(files, path)) as keys:
        agreed = agreed_log(files, shard, keys.index)
        records = agreed.records(keys.index, agreed.commit)
        generation, found = streams_behind(keys.index, keys.blob, records)
        return keys.blob("topics"), {
            space: Place(shard, directory_of(name, generation, space), behind)
            for space, behind in found.items()
        }


def _find(files: ReadOnlyFiles, place: Place, stamp_ms: int) -> int:
    """The first offset of a time or later."""
    behind = place.behind
    if stamp_ms <= behind.mark.stamp_ms:
        with closing(PartitionLog.view(files, place.directory, behind.mark)) as there:
            return max(there.find(stamp_ms), behind.first)
    later = (batch.offset for batch in behind.batches if batch.stamp_ms >= stamp_ms)
    return next(later, behind.end)


def _stored(batch: Batch) -> Stored:
    return Stored(batch.offset, batch.count, batch.stamp_ms, bytes(batch.payload))


@contextmanager
def _damage_named(root: str) -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise Corrupt(f"{root}: {error}; see `shardnode verify`") from error


_NOWHERE = Place(0, "", Behind(NOTHING, 0, 0, ()))
