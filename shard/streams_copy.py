"""The files of stream partitions in a snapshot, and back.

    streams                             settings, marks and producers of every partition
    stream-<namespace>-<segment>        a segment, as far as the mark goes

The one rule: replicas' segments are equal byte for byte, so a snapshot has the same files on all of
them; which generation of the directory a replica has them in is its own business. What comes in is
verified, every byte of it, before anything refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgpack

from shardnode.shard.streams import Streams, directory_of
from shardnode.storage.errors import PartitionDamaged, SnapshotCorrupt
from shardnode.storage.files import Files, join
from shardnode.storage.partition_log import Mark, PartitionLog
from shardnode.storage.partition_open import look
from shardnode.storage.publish import write_file

STREAMS = "streams"
_PREFIX = "stream-"
_PIECE_BYTES = 1 << 20


def stream_parts(
    files: Files, shard: str, blob: Callable[[str], bytes]
) -> Mapping[str, Iterable[bytes]]:
    """The parts of a snapshot of what an engine has committed in the directory of a shard."""
    packed = blob(STREAMS)
    if not packed:
        return {STREAMS: [b""]}
    generation, version, rows = msgpack.unpackb(packed)
    parts: dict[str, Iterable[bytes]] = {STREAMS: [bytes(msgpack.packb([0, version, rows]))]}
    for namespace, _, encoded, _ in rows:
        mark = Mark.decode(encoded)
        segments = look(files, directory_of(shard, generation, namespace), mark).segments
        for segment in segments:
            size = segment.size if segment is not segments[-1] else mark.position
            parts[f"{_PREFIX}{namespace:016x}-{segment.name}"] = _read(files, segment.path, size)
    return parts


def is_stream_part(name: str) -> bool:
    """Whether a file of a snapshot is a segment of a partition."""
    return name.startswith(_PREFIX)


def take_in(
    streams: Streams,
    packed: bytes,
    names: Sequence[str],
    part: Callable[[str], Iterable[bytes]],
) -> bytes:
    """Write the segments of a snapshot, durably, as a generation that nothing refers to yet; the
    blob that does."""
    if not packed:
        return b""
    _, version, rows = msgpack.unpackb(packed)
    generation = streams.next_generation()
    files, shard = streams.files, streams.shard
    for namespace, _, encoded, _ in rows:
        directory = directory_of(shard, generation, namespace)
        prefix = f"{_PREFIX}{namespace:016x}-"
        segments = [name for name in names if name.startswith(prefix)]
        if segments:
            files.mkdir(directory)
        for name in segments:
            write_file(files, join(directory, name.removeprefix(prefix)), part(name))
        if segments:
            files.sync_dir(directory)
        _verify(files, directory, Mark.decode(encoded))
    streams.sync_generation(generation)
    return bytes(msgpack.packb([generation, version, rows]))


def _verify(files: Files, directory: str, mark: Mark) -> None:
    try:
        log = PartitionLog.open(files, directory, durable=mark)
        for _ in log.verify():
            pass
        log.close()
    except PartitionDamaged as error:
        raise SnapshotCorrupt(f"a partition in the snapshot is damaged: {error}") from error


def _read(files: Files, path: str, size: int) -> Iterator[bytes]:
    file = files.open(path)
    try:
        for offset in range(0, size, _PIECE_BYTES):
            yield file.pread(min(_PIECE_BYTES, size - offset), offset)
    finally:
        file.close()
