"""Deciding what the partitions of streams need not keep any more: by age, by size.

The one rule: nothing goes because somebody's clock says so. The master of a partition (`masters`)
decides, its leader proposes an entry, and every replica moves the start of the partition when it
applies that. A follower that is master writes to its leader (`letters.Trim`), which believes no
clock that is ahead of its own; for a master that is not in touch the leader decides itself.

Partitions are looked at in turn, a few at a time, so that thousands of them make no pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgpack

from shardnode.raft import Raft, Role
from shardnode.shard.entries import STREAM_TRIM, encode_entry
from shardnode.shard.masters import Elected, Mastership, acting_master
from shardnode.shard.replica import Request
from shardnode.shard.stream import Stream
from shardnode.shard.streams import Streams
from shardnode.storage.errors import Corrupt

LOOK_EVERY_MS = 100
LOOK_PARTITIONS = 100
"""Looked at in one go, at 1 to 50 us each."""

AGAIN_MS_MIN = 500
AGAIN_MS_MAX = 60_000
AGAIN_PART = 20
"""A partition is looked at again after this part of its retention time, within these bounds."""

SIZE_AGAIN_MS = 1_000
SILENT_MS = 3_000
"""A member that was not heard of for so long does no background work."""

AHEAD_MS_MAX = 5_000
"""How much a follower's clock may be ahead of the leader's stamps."""


class Trim(NamedTuple):
    """A partition is to begin at that offset, as of a stamp."""

    namespace: int
    offset: int


class Retention:
    """One replica's part of the work."""

    def __init__(self, raft: Raft, policy: Mastership | None = None) -> None:
        self._raft = raft
        self._policy: Mastership = Elected() if policy is None else policy
        self._look_at_ms = 0
        self._due_ms: dict[int, int] = {}
        self._round: Iterator[int] = iter(())

    def due(self, streams: Streams, stamp_ms: int, now_ms: int) -> list[Trim]:
        """What this replica decides now."""
        if now_ms < self._look_at_ms:
            return []
        self._look_at_ms = now_ms + LOOK_EVERY_MS
        found = []
        for namespace in self._next(streams):
            stream = streams.get(namespace)
            due = now_ms >= self._due_ms.get(namespace, 0) and self._is_ours(namespace)
            if stream is None or not due:
                continue
            self._due_ms[namespace] = now_ms + _again_ms(stream)
            try:
                offset = begin_at(stream, stamp_ms)
            except Corrupt as error:
                streams.fence(stream, str(error))
                continue
            if offset > stream.mark.first_offset:
                found.append(Trim(namespace, offset))
        return found

    def _next(self, streams: Streams) -> list[int]:
        """The next few partitions, of a list that is made anew when it has been gone through."""
        few = list(islice(self._round, LOOK_PARTITIONS))
        if len(few) < LOOK_PARTITIONS:
            kept = [stream.namespace for stream in streams if _is_limited(stream)]
            self._due_ms = {n: self._due_ms[n] for n in kept if n in self._due_ms}
            self._round = iter(kept)
        return few

    def _is_ours(self, namespace: int) -> bool:
        raft = self._raft
        if raft.role is Role.LEADER:
            since = raft.now_ms - SILENT_MS
            in_touch = [m for m, each in raft.progress.items() if each.contact_ms > since]
        else:
            in_touch = [raft.member] if raft.leader else []
        voters = raft.membership.voters
        return raft.member == acting_master(
            namespace, voters, self._policy, leader=raft.leader, in_touch=in_touch
        )


def trim_request(token: int, stamp_ms: int, trim: Trim) -> Request:
    """The proposal that makes it so."""
    body = bytes(msgpack.packb(trim.offset))
    return Request(token, trim.namespace, encode_entry(stamp_ms, STREAM_TRIM, body))


def begin_at(stream: Stream, stamp_ms: int) -> int:
    """Where a partition may begin, by its settings."""
    log, mark = stream.log, stream.mark
    if log is None or mark.first_offset == mark.end_offset:
        return mark.first_offset
    offset = mark.first_offset
    age_ms = stream.settings.get("retention_ms", 0)
    if age_ms and stamp_ms > age_ms:
        offset = max(offset, min(log.find(stamp_ms - age_ms), mark.end_offset))
    bytes_max = stream.settings.get("retention_bytes", 0)
    if bytes_max:
        size = log.size_bytes
        for segment in log.segments if size > bytes_max else ():
            size -= segment.size_bytes
            if size < bytes_max or not segment.is_sealed:
                break
            offset = max(offset, segment.end_offset)
    return offset


def _again_ms(stream: Stream) -> int:
    by_size = SIZE_AGAIN_MS if stream.settings.get("retention_bytes") else AGAIN_MS_MAX
    age_ms = stream.settings.get("retention_ms", 0)
    by_age = age_ms // AGAIN_PART if age_ms else AGAIN_MS_MAX
    return max(AGAIN_MS_MIN, min(by_size, by_age, AGAIN_MS_MAX))


def _is_limited(stream: Stream) -> bool:
    return bool(stream.settings.get("retention_ms") or stream.settings.get("retention_bytes"))
