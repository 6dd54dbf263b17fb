"""`shardnode inspect`: what a directory, or one of its files, says.

    a directory                  what each shard holds, in a few rows
    … with --key                 what the key is now, and what the log says was asked of it
    … with --from, --to          the records of the log
    … with --partition           … of one partition; of a stream its batches, too
    a file                       all that is in it, as it lies there

The one rule: rows come as they are read, so the size of a file does not matter; where it is damaged
they end, and the error says where.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardnode.node.identity import IDENTITY
from shardnode.node.members import FILE as MEMBERS
from shardnode.offline.inspect_entries import key_rows, record_row
from shardnode.offline.inspect_log import ShardLog, segment_rows, sidecar_rows
from shardnode.offline.inspect_state import (
    blob_rows,
    key_row,
    keys_row,
    manifest_rows,
    read,
    superblock_row,
)
from shardnode.offline.inspect_streams import partition_rows, segment_file_rows
from shardnode.offline.places import find_place, held, root_of
from shardnode.offline.rows import Row
from shardnode.offline.verify_streams import marked_partitions
from shardnode.shard.streams_copy import STREAMS, is_stream_part
from shardnode.storage.audit_keys import DATA_FILE, newest_file
from shardnode.storage.engine_offline import OfflineKeys
from shardnode.storage.files import Files, ReadOnlyFiles, join
from shardnode.storage.keyfile import unpack_keys
from shardnode.storage.manifest import MANIFEST_NAME
from shardnode.storage.publish import read_chunks
from shardnode.storage.records import Record
from shardnode.storage.segment import sequence_of
from shardnode.storage.snapshots import PUBLISHED, SNAPSHOTS_DIRECTORY
from shardnode.storage.superblock import COPIES
from shardnode.wire.errors import InvalidRequest, NotFound

_PARTITION_FILE = re.compile(r"(?:stream-[0-9a-f]{16}-)?\d{10}-\d{20}\.seg")
_BLOB_BYTES_MAX = 1 << 30
_SMALL_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to leave in; None: all."""

    shard: int | None = None
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    key: bytes | None = None

    @property
    def is_range(self) -> bool:
        return (self.first, self.last, self.partition) != (None, None, None)

    def has(self, record: Record) -> bool:
        """Whether a record is asked for."""
        return self.has_index(record.index) and self.partition in (None, record.partition)

    def has_index(self, index: int) -> bool:
        return (self.first or 0) <= index and (self.last is None or index <= self.last)


def inspect(path: Path, wanted: Wanted) -> Iterator[Row]:
    """Rows about what is at a path; `NotFound` when it is nothing of ours."""
    path = Path(os.path.abspath(path))
    if not path.is_file():
        yield from _inspect_directory(path, wanted)
        return
    with held(root_of(path)):
        for row in _file_rows(ReadOnlyFiles(path.parent), path, wanted):
            yield {key: value for key, value in row.items() if value is not None}


# -- directories ----------------------------------------------------------------------------------


def _inspect_directory(path: Path, wanted: Wanted) -> Iterator[Row]:
    place = find_place(path)
    numbers = {name: place.shard_number(name) for name in place.shards}
    shards = [name for name in place.shards if wanted.shard in (None, numbers[name])]
    if wanted.shard is not None and not shards:
        known = ", ".join(map(str, numbers.values()))
        raise NotFound(f"{path}: expected one of its shards {known}, found {wanted.shard}")
    with held(place.root):
        files = ReadOnlyFiles(place.root)
        if place.is_whole and not (wanted.is_range or wanted.key is not None):
            for name in (IDENTITY, MEMBERS):
                if files.exists(name):
                    yield from _text_rows(files, name)
        for name in shards:
            for row in _shard_rows(files, name, wanted):
                about = {"row": row["row"], "shard": numbers[name], **row}
                yield {key: value for key, value in about.items() if value is not None}


def _shard_rows(files: Files, shard: str, wanted: Wanted) -> Iterator[Row]:
    if wanted.key is not None:
        yield from _history(files, shard, wanted, wanted.key)
    elif wanted.is_range:
        yield from _records(files, shard, wanted)
    else:
        yield from _overview(files, shard)


def _overview(files: Files, shard: str) -> Iterator[Row]:
    for name in COPIES:
        if files.exists(join(shard, name)):
            yield superblock_row(files, join(shard, name))
    yield from ShardLog(files, shard).rows()
    if path := newest_file(files, shard):
        yield from _of_keys(files, path, lambda keys: _keys_overview(keys, shard))
    directory = join(shard, SNAPSHOTS_DIRECTORY)
    for name in files.listdir(directory) if files.exists(directory) else []:
        if PUBLISHED.fullmatch(name):
            yield from manifest_rows(files, join(join(directory, name), MANIFEST_NAME))


def _keys_overview(keys: OfflineKeys, shard: str) -> Iterator[Row]:
    yield keys_row(keys)
    yield from blob_rows(keys.blobs(), shard)


def _of_keys(
    files: Files, path: str, rows: Callable[[OfflineKeys], Iterator[Row]]
) -> Iterator[Row]:
    keys = OfflineKeys(files, path)
    try:
        yield from rows(keys)
    finally:
        keys.close()


def _records(files: Files, shard: str, wanted: Wanted) -> Iterator[Row]:
    path = newest_file(files, shard)
    if wanted.partition is not None and path:
        yield from _of_keys(files, path, lambda keys: _batches(files, shard, wanted, keys))
    for record in ShardLog(files, shard).records(wanted.first, wanted.last):
        if wanted.has(record):
            yield record_row(record)


def _batches(files: Files, shard: str, wanted: Wanted, keys: OfflineKeys) -> Iterator[Row]:
    for marked in marked_partitions(keys.blob(STREAMS), shard):
        if marked.namespace == wanted.partition:
            yield from (r for r in partition_rows(files, marked) if wanted.has_index(r["index"]))


def _history(files: Files, shard: str, wanted: Wanted, key: bytes) -> Iterator[Row]:
    log = ShardLog(files, shard)
    for record in log.records(wanted.first, wanted.last):
        if wanted.has(record):
            yield from key_rows(record, key)
    if path := newest_file(files, shard):
        yield from _of_keys(files, path, lambda keys: _now(keys, key))


def _now(keys: OfflineKeys, key: bytes) -> Iterator[Row]:
    kept = keys.get(key)
    if kept is not None:
        yield {**key_row(key, kept), "as_of": keys.index}


# -- files ----------------------------------------------------------------------------------------


def _file_rows(files: Files, path: Path, wanted: Wanted) -> Iterator[Row]:
    name = path.name
    if name in COPIES:
        yield superblock_row(files, name)
    elif name in (IDENTITY, MEMBERS):
        yield from _text_rows(files, name)
    elif sequence_of(name) is not None:
        yield from _log_file_rows(files, name, wanted)
    elif name.endswith(".idx"):
        yield from sidecar_rows(files, name)
    elif _PARTITION_FILE.fullmatch(name):
        for row in segment_file_rows(files, name):
            if row["row"] != "batch" or wanted.has_index(row["index"]):
                yield row
    elif name == DATA_FILE:
        yield from _of_keys(files, name, lambda keys: _keys_file_rows(keys, wanted))
    elif name == MANIFEST_NAME:
        yield from manifest_rows(files, name)
    elif PUBLISHED.fullmatch(path.parent.name):
        yield from _part_rows(files, name, wanted)
    else:
        raise InvalidRequest(
            f"{path}: expected a file of a node's directory, found another; give one that"
            " `shardnode inspect` names for the directory"
        )


def _text_rows(files: Files, path: str) -> Iterator[Row]:
    try:
        values = json.loads(read(files, path, _SMALL_BYTES_MAX))
        yield {"row": path.removesuffix(".json"), **values}
    except (ValueError, TypeError) as error:
        yield {"row": path.removesuffix(".json"), "unreadable": str(error)}


def _log_file_rows(files: Files, path: str, wanted: Wanted) -> Iterator[Row]:
    for each in segment_rows(files, path):
        if isinstance(each, Record):
            if wanted.key is not None:
                yield from key_rows(each, wanted.key) if wanted.has(each) else ()
            elif wanted.has(each):
                yield record_row(each)
        elif not (wanted.is_range or wanted.key is not None):
            yield each


def _keys_file_rows(keys: OfflineKeys, wanted: Wanted) -> Iterator[Row]:
    if wanted.key is not None:
        yield from _now(keys, wanted.key)
        return
    yield keys_row(keys)
    yield from blob_rows(keys.blobs(), "")
    for key, kept in keys.items():
        yield key_row(key, kept)


def _part_rows(files: Files, name: str, wanted: Wanted) -> Iterator[Row]:
    """A file of a snapshot."""
    if name != "keys":
        assert not is_stream_part(name), "handled as a segment"
        yield from blob_rows(iter([(name, read(files, name, _BLOB_BYTES_MAX))]), "")
        return
    file = files.open(name)
    try:
        for items in unpack_keys(read_chunks(file)):
            for key, kept in items:
                if wanted.key in (None, key):
                    yield key_row(key, kept)
    finally:
        file.close()
