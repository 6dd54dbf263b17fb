"""What the log behind the stored state of a shard does to its stream partitions, for readers
outside of the shard.

The one rule: the state machine of a partition decides, from the same entries and the same sessions,
as in `overlay`. Only what is appended and trimmed is made; the files stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgpack

from shardnode.raft import RAFT_PARTITION, Entry
from shardnode.shard.entries import PARTITIONS_SET, Command, decode_entry
from shardnode.shard.once import run_once
from shardnode.shard.overlay import keyvalue_without_keys
from shardnode.shard.stream import Last, Stream, run
from shardnode.storage.partition_log import NOTHING, Batch, Mark
from shardnode.storage.records import Record
from shardnode.wire.errors import ShardnodeError
from shardnode.wire.frames import NO_CLIENT
from shardnode.wire.placement import CONTROL_PARTITION, KEY_VALUE_PARTITION


class Behind(NamedTuple):
    """One partition."""

    mark: Mark
    """Where its files stand."""
    first: int
    end: int
    batches: Sequence[Batch]
    """What came behind the files."""


def streams_behind(
    index: int, blob: Callable[[str], bytes], records: Iterable[Record]
) -> tuple[int, dict[int, Behind]]:
    """The generation of the files, and the partitions of a shard by namespace. The blobs are the
    state at `index`, which the records continue."""
    packed = blob("streams")
    generation, version, rows = msgpack.unpackb(packed) if packed else (0, 0, [])
    marks = {space: Mark.decode(mark) for space, _, mark, _ in rows}
    streams = {space: Stream(space, settings, marks[space]) for space, settings, _, _ in rows}
    for space, _, _, producers in rows:
        streams[space].producers = {name: Last(*last) for name, *last in producers}
    keyvalue = keyvalue_without_keys(index, blob)
    for record in records:
        entry = Entry._make(record)
        if entry.partition == RAFT_PARTITION:
            continue
        if entry.partition == KEY_VALUE_PARTITION:
            keyvalue.apply([entry])
            continue
        try:
            command = decode_entry(entry.payload)
        except ShardnodeError:
            continue  # it was refused
        if entry.partition == CONTROL_PARTITION and command.kind == PARTITIONS_SET:
            version = _set(streams, marks, version, command)
        else:
            stream = streams.get(entry.partition)
            act = _act(stream, entry, command)
            if command.client_id == NO_CLIENT:
                act()
            else:
                run_once(keyvalue.sessions, command, act)
    return generation, {
        space: Behind(
            marks.get(space, NOTHING),
            stream.mark.first_offset,
            stream.mark.end_offset,
            stream.unwritten,
        )
        for space, stream in streams.items()
    }


def _act(stream: Stream | None, entry: Entry, command: Command) -> Callable[[], bytes]:
    """What an entry does to its partition; nothing if it is another one's."""
    return lambda: b"" if stream is None else run(stream, entry, command)


def _set(streams: dict[int, Stream], marks: dict[int, Mark], version: int, command: Command) -> int:
    """Partitions are made, or are no more; the version of the topics that they are made of."""
    wanted, changes, is_last = msgpack.unpackb(command.body)
    if wanted <= version:
        return version
    for space, settings in changes:
        if settings is None:
            streams.pop(space, None)
            marks.pop(space, None)
        elif space not in streams:
            streams[space] = Stream(space, settings, NOTHING)
    return int(wanted) if is_last else version
