"""Making the state of a shard again, from a snapshot and the log, and comparing it with LMDB's.

Checksums tell that what is stored was stored; this tells that it is right: that no key is missing,
and that the state hashes to what it hashed to when it was written. It takes as long as applying
everything did, and room in the temporary folder for a second copy.

The one rule: the state is made by the code of a worker, in a folder of its own; the directory is
only read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import Any

import msgpack

from shardnode.offline.rows import hexadecimal
from shardnode.offline.verify_shard import ShardFound
from shardnode.raft import Entry
from shardnode.shard.effects import Effects, open_effects
from shardnode.shard.streams_copy import STREAMS
from shardnode.storage.audit import Book
from shardnode.storage.engine_blobs import INDEX
from shardnode.storage.engine_offline import OfflineKeys
from shardnode.storage.engine_store import Item
from shardnode.storage.files import Files, join
from shardnode.storage.manifest import SnapshotMeta
from shardnode.storage.reader import Reader
from shardnode.storage.snapshots import SNAPSHOTS_DIRECTORY
from shardnode.storage.verify import checked_chunks

_PIECE_BYTES = 8 << 20
_EFFECTS = "effects"
_MEANS = (
    "the files are as they were written, but not what the log says: set the keys aside with"
    " `shardnode repair`, or let the shard fetch everything from its peers, and report this"
)


def replay_shard(files: Files, found: ShardFound, book: Book) -> None:
    """Compare the state of a shard with what its log makes; what differs goes into the book."""
    log, keys = found.log, found.keys
    if not keys.path or not keys.index or keys.damaged or log is None or log.damaged:
        book.note(found.name, "the state was not made again: log or keys are missing or damaged")
        return
    begin = log.timeline.anchor.index
    fitting = [meta for meta in found.snapshots if begin <= meta.index <= keys.index]
    if begin and not fitting:
        what = "the state was not made again: the log begins after everything that it could begin"
        book.note(found.name, f"{what} with")
        return
    with tempfile.TemporaryDirectory(prefix="sn-replay-") as folder:
        effects = open_effects(f"{folder}/{found.name}", "lmdb", {})
        try:
            _make(effects, files, found, fitting[-1] if fitting else None, book)
            for what in _differences(files, found, effects):
                book.damaged(keys.path, what, _MEANS)
        finally:
            effects.close()


def _make(
    effects: Effects, files: Files, found: ShardFound, meta: SnapshotMeta | None, book: Book
) -> None:
    """Restore the snapshot, if there is one, and apply the log up to the index of the keys."""
    assert found.log is not None
    membership = msgpack.unpackb(found.keys.blobs[_EFFECTS])[1]
    if meta is not None:
        path = _path_of(files, found.name, meta)
        parts = {part.name: part for part in meta.files}
        effects.restore(
            meta.index,
            meta.membership,
            list(parts),
            lambda name: checked_chunks(files, join(path, name), parts[name]),
        )
    reader = Reader(files, found.log.timeline)
    try:
        while effects.applied_index < found.keys.index:
            first = effects.applied_index + 1
            records = reader.records(first, found.keys.index, _PIECE_BYTES)
            effects.apply([Entry._make(record) for record in records])
            book.read(sum(len(record.payload) for record in records))
            if effects.wants_flush:
                effects.flush(membership)
    finally:
        reader.close()
    effects.flush(membership)


def _path_of(files: Files, shard: str, meta: SnapshotMeta) -> str:
    directory = join(shard, SNAPSHOTS_DIRECTORY)
    longer = f"{meta.index:020}.{meta.id:016x}"
    return join(directory, longer if files.exists(join(directory, longer)) else longer[:20])


# -- comparing ------------------------------------------------------------------------------------


def _differences(files: Files, found: ShardFound, effects: Effects) -> Iterator[str]:
    stored = found.keys.blobs
    index, _, partitions, digest, *_ = msgpack.unpackb(stored[_EFFECTS])
    if digest != effects.digest:
        expected = f"the state of index {index} should hash to {hexadecimal(effects.digest)}"
        yield f"{expected}, stored is {hexadecimal(digest)}"
    if dict(partitions) != dict(effects.partition_indexes):
        yield f"partitions should be at {dict(effects.partition_indexes)}, stored is {partitions}"
    for name in sorted(set(stored) - {INDEX, _EFFECTS, STREAMS}):
        if stored[name] != effects.engine.blob(name):
            yield f"the stored {name} are not those that the log makes"
    if _without_generation(stored.get(STREAMS, b"")) != _without_generation(
        effects.engine.blob(STREAMS)
    ):
        yield "the marks of partitions are not those that the log makes"
    keys = OfflineKeys(files, found.keys.path)
    try:
        made = chain.from_iterable(effects.engine.pin())
        yield from _first_difference(keys.items(), made)
    finally:
        keys.close()


def _without_generation(packed: bytes) -> Any:
    return msgpack.unpackb(packed)[1:] if packed else None


def _first_difference(stored: Iterable[Item], made: Iterable[Item]) -> Iterator[str]:
    """Both in order: where they first differ."""
    for is_stored, should_be in zip_longest(stored, made):
        if is_stored == should_be:
            continue
        if should_be is None or (is_stored is not None and is_stored[0] < should_be[0]):
            yield f"the key {is_stored[0]!r} is stored, the log makes no such key"
        elif is_stored is None or is_stored[0] > should_be[0]:
            yield f"the key {should_be[0]!r} is missing"
        else:
            yield f"the key {should_be[0]!r} has another value than the log makes"
        return
