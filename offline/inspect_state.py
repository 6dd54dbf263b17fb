"""The state of a shard as people read it: superblock, keys, what is kept beside them, snapshots.

The one rule: what has a checksum is shown only with it; the rest of a file that is damaged is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack

from shardnode.offline.inspect_streams import partition_row
from shardnode.offline.rows import Row, hexadecimal, partition_name, time_of
from shardnode.offline.verify_streams import marked_partitions
from shardnode.raft import Membership
from shardnode.storage.engine_offline import OfflineKeys
from shardnode.storage.engine_values import split_header, value_of
from shardnode.storage.errors import Corrupt
from shardnode.storage.files import Files
from shardnode.storage.manifest import MANIFEST_BYTES_MAX, SnapshotMeta
from shardnode.storage.superblock import SUPERBLOCK_BYTES, decode_superblock
from shardnode.wire.placement import PlacementTable, split_member_id


def superblock_row(files: Files, path: str) -> Row:
    """One copy."""
    try:
        sequence, state = decode_superblock(read(files, path, SUPERBLOCK_BYTES + 1))
    except Corrupt as error:
        raise Corrupt(error.detail, path=path, offset=0) from None
    return {
        "row": "superblock",
        "file": path,
        "sequence": sequence,
        "cluster": hexadecimal(state.cluster),
        "member": member_name(state.member),
        "term": state.term,
        "vote": member_name(state.vote) if state.vote else None,
        "commit": state.commit,
        "snapshot_index": state.snapshot_index,
        "recovering": state.recovering,
    }


def member_name(member: int) -> str:
    """`node 3`, of whichever shard."""
    return f"node {split_member_id(member)[1]}"


def read(files: Files, path: str, size_max: int) -> bytes:
    """The beginning of a file."""
    file = files.open(path)
    try:
        return file.pread(size_max, 0)
    finally:
        file.close()


# -- keys -----------------------------------------------------------------------------------------


def keys_row(keys: OfflineKeys) -> Row:
    """What a file of keys says of itself."""
    return {
        "row": "keys",
        "file": keys.path,
        "index": keys.index,
        "keys": keys.count,
        "pages": keys.meta.last_page + 1,
        "page_bytes": keys.meta.page_bytes,
        "transaction": keys.meta.transaction,
    }


def key_row(key: bytes, kept: bytes) -> Row:
    """One key as it is now."""
    version, expires_ms = split_header(kept)
    row: Row = {"row": "key", "key": key, "version": version, "value": value_of(kept)}
    return row | ({"expires_at": time_of(expires_ms)} if expires_ms else {})


def blob_rows(blobs: Iterator[tuple[str, bytes]], shard: str) -> Iterator[Row]:
    """What is kept beside the keys."""
    for name, blob in blobs:
        if name == "index":
            continue
        yield {"row": "stored", "name": name, "bytes": len(blob)}
        if blob:
            try:
                yield from _BLOBS.get(name, _nothing)(blob, shard)
            except (ValueError, TypeError, KeyError, IndexError) as error:
                yield {"row": "stored", "name": name, "unreadable": str(error)}


def _nothing(_: bytes, __: str) -> Iterator[Row]:
    return iter(())


def _effects(blob: bytes, _: str) -> Iterator[Row]:
    index, membership, partitions, digest, *stamp = msgpack.unpackb(blob)
    row: Row = {"row": "effects", "index": index, "digest": hexadecimal(digest)}
    row["stamp"] = time_of(max(stamp, default=0))
    if membership:
        row["voters"] = [member_name(member) for member in Membership.decode(membership).voters]
    yield row
    for partition, number in partitions:
        yield {"row": "applied", "partition": partition_name(partition), "number": number}


def _sessions(blob: bytes, _: str) -> Iterator[Row]:
    open_ones, ended = msgpack.unpackb(blob)
    for client, (seen_ms, ttl_ms), acked_below, replies in open_ones:
        row: Row = {"row": "session", "client": client.hex(), "last_heard": time_of(seen_ms)}
        row |= {"ttl_ms": ttl_ms, "acked_below": acked_below}
        yield row | {"replies": [sequence for sequence, _ in replies]}
    for client, stamp_ms in ended:
        yield {"row": "session", "client": client.hex(), "ended": time_of(stamp_ms)}


def _leases(blob: bytes, _: str) -> Iterator[Row]:
    for client, keys in msgpack.unpackb(blob):
        yield {"row": "lease", "client": client.hex(), "keys": keys}


def _topics(blob: bytes, _: str) -> Iterator[Row]:
    version, streams, _, rows = msgpack.unpackb(blob)
    yield {"row": "topics", "version": version, "streams": dict(streams)}
    for name, stream, number, partitions, *rest in rows:
        row: Row = {"row": "topic", "name": name, "stream": stream, "number": number}
        yield row | {"partitions": partitions, "settings": rest}


def _control(blob: bytes, _: str) -> Iterator[Row]:
    packed, members, version = msgpack.unpackb(blob, strict_map_key=False)
    table = PlacementTable.decode(packed)
    row: Row = {"row": "control", "epoch": table.epoch, "version": version}
    yield row | {"members": {str(node): endpoint for node, endpoint in members.items()}}


def _streams(blob: bytes, shard: str) -> Iterator[Row]:
    for marked in marked_partitions(blob, shard):
        yield partition_row(marked)


def _groups(blob: bytes, _: str) -> Iterator[Row]:
    (_, _, groups), offsets = msgpack.unpackb(blob)
    for name, _ in groups:
        yield {"row": "group", "group": name}
    for group, kept in offsets:
        for namespace, offset, generation in kept:
            row: Row = {"row": "offset", "group": group, "partition": partition_name(namespace)}
            yield row | {"offset": offset, "generation": generation}


_BLOBS: Mapping[str, Callable[[bytes, str], Iterator[Row]]] = {
    "control": _control,
    "effects": _effects,
    "groups": _groups,
    "leases": _leases,
    "sessions": _sessions,
    "streams": _streams,
    "topics": _topics,
}


# -- snapshots ------------------------------------------------------------------------------------


def manifest_rows(files: Files, path: str) -> Iterator[Row]:
    """A snapshot, and the files that it lists."""
    meta = SnapshotMeta.decode(read(files, path, MANIFEST_BYTES_MAX + 1), path)
    members: Any = None
    if meta.membership:
        members = [member_name(member) for member in Membership.decode(meta.membership).voters]
    yield {
        "row": "snapshot",
        "file": path,
        "index": meta.index,
        "term": meta.term,
        "chain": hexadecimal(meta.chain),
        "id": hexadecimal(meta.id),
        "voters": members,
        "bytes": meta.size,
    }
    for each in meta.files:
        row: Row = {"row": "part", "name": each.name, "bytes": each.size}
        yield row | {"checksum": hexadecimal(each.checksum)}
