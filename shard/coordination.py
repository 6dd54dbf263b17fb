"""The group partition of a shard: groups that it coordinates, and offsets in its partitions.

    GROUP_…              `groups.Groups`
    OFFSET_…             `offsets.Offsets`
    GROUP_TOPICS         a leader says where the topics have their partitions
    EXPIRE_MEMBERS       a leader gives up those who are silent

The one rule: all of it is replicated state, changed by entries alone. Time is the stamp in the
entry, and what other shards know (topics) comes in an entry too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgpack

from shardnode.raft import Entry
from shardnode.shard.entries import (
    EXPIRE_MEMBERS,
    GROUP_TOPICS,
    Command,
    accept,
    decode_entry,
    refuse,
)
from shardnode.shard.groups import Groups, Place
from shardnode.shard.offsets import Offsets
from shardnode.shard.once import run_once
from shardnode.wire.errors import InvalidRequest, ShardnodeError
from shardnode.wire.frames import NO_CLIENT
from shardnode.wire.groups import (
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupLeft,
    GroupRelease,
    GroupReleased,
    OffsetClaim,
    OffsetCommit,
    OffsetsCommitted,
    OffsetsFound,
)
from shardnode.wire.kinds import Kind

if TYPE_CHECKING:
    from shardnode.shard.sessions import SessionTable

GROUP_WRITES = frozenset(
    {
        Kind.GROUP_JOIN,
        Kind.GROUP_HEARTBEAT,
        Kind.GROUP_LEAVE,
        Kind.GROUP_RELEASE,
        Kind.OFFSET_COMMIT,
        Kind.OFFSET_CLAIM,
    }
)
GROUP_READS = frozenset({Kind.GROUP_LIST, Kind.GROUP_DESCRIBE, Kind.OFFSET_FETCH})

EndOf = Callable[[int], int]


class Coordination:
    """Groups and offsets of one shard."""

    def __init__(self, end_of: EndOf) -> None:
        """`end_of`: where a partition of this shard ends; `NotFound` when there is none."""
        self.groups = Groups()
        self.offsets = Offsets()
        self._end_of = end_of
        self._encoded: bytes | None = b""
        self._handlers: Mapping[int, Callable[[int, Command], bytes]] = {
            Kind.GROUP_JOIN: self._join,
            Kind.GROUP_HEARTBEAT: self._heartbeat,
            Kind.GROUP_LEAVE: self._leave,
            Kind.GROUP_RELEASE: self._release,
            Kind.OFFSET_COMMIT: self._commit,
            Kind.OFFSET_CLAIM: self._claim,
            GROUP_TOPICS: self._set_topics,
            EXPIRE_MEMBERS: self._expire,
        }

    def apply(self, entries: Sequence[Entry], sessions: SessionTable) -> list[bytes]:
        """Entries take effect, in order; a reply for each."""
        self._encoded = None
        return [self._apply(entry, sessions) for entry in entries]

    def _apply(self, entry: Entry, sessions: SessionTable) -> bytes:
        try:
            command = decode_entry(entry.payload)
        except ShardnodeError as error:
            return refuse(error)
        if command.client_id == NO_CLIENT:
            return self._run(entry.index, command)
        return run_once(sessions, command, lambda: self._run(entry.index, command))

    def _run(self, index: int, command: Command) -> bytes:
        handle = self._handlers.get(command.kind)
        try:
            if handle is None:
                raise InvalidRequest(f"expected a request of a group, found kind {command.kind}")
            return accept(handle(index, command))
        except ShardnodeError as error:
            return refuse(error)

    def partitions_left(self, namespaces: Mapping[int, object]) -> None:
        """These partitions are what this shard has now."""
        self.offsets.drop_others(namespaces.keys())
        self._encoded = None

    # -- groups -------------------------------------------------------------------------------

    def _join(self, index: int, command: Command) -> bytes:
        ask = GroupJoin.decode(command.body)
        name = ask.member if ask.member is not None else f"member-{index}"
        answer = self.groups.join(ask.group, name, ask.topics, ask.ttl_ms, command.stamp_ms)
        return answer.encode()

    def _heartbeat(self, _index: int, command: Command) -> bytes:
        ask = GroupHeartbeat.decode(command.body)
        answer = self.groups.beat(ask.group, ask.member, ask.generation, ask.held, command.stamp_ms)
        return answer.encode()

    def _leave(self, _index: int, command: Command) -> bytes:
        ask = GroupLeave.decode(command.body)
        self.groups.leave(ask.group, ask.member)
        return GroupLeft().encode()

    def _release(self, _index: int, command: Command) -> bytes:
        ask = GroupRelease.decode(command.body)
        self.groups.release(ask.group, ask.released)
        return GroupReleased().encode()

    # -- offsets ------------------------------------------------------------------------------

    def _commit(self, _index: int, command: Command) -> bytes:
        ask = OffsetCommit.decode(command.body)
        self.offsets.commit(
            ask.group,
            ask.generation,
            ask.namespaces,
            ask.offsets,
            back=ask.back,
            end_of=self._end_of,
        )
        return OffsetsCommitted().encode()

    def _claim(self, _index: int, command: Command) -> bytes:
        ask = OffsetClaim.decode(command.body)
        for namespace in ask.namespaces:
            self._end_of(namespace)
        found = self.offsets.claim(ask.group, ask.generation, ask.namespaces)
        return OffsetsFound(found).encode()

    # -- what a leader says -------------------------------------------------------------------

    def _set_topics(self, _index: int, command: Command) -> bytes:
        try:
            version, pairs = msgpack.unpackb(command.body)
            places = {str(name): Place(*map(int, place)) for name, place in pairs}
            version = int(version)
        except (ValueError, TypeError) as problem:
            raise InvalidRequest("expected [version, topics], found another body") from problem
        self.groups.set_places(version, places)
        return b""

    def _expire(self, _index: int, command: Command) -> bytes:
        try:
            now_ms, since_ms = map(int, msgpack.unpackb(command.body))
        except (ValueError, TypeError) as problem:
            raise InvalidRequest("expected [now, since], found another body") from problem
        self.groups.expire(now_ms, since_ms)
        return b""

    # -- the whole state ----------------------------------------------------------------------

    def encode(self) -> bytes:
        """For the transaction of a flush, and for a snapshot; empty before there was any group."""
        if self._encoded is None:
            used = len(self.groups) or len(self.offsets)
            rows = [self.groups.rows(), self.offsets.rows()]
            self._encoded = bytes(msgpack.packb(rows)) if used else b""
        return self._encoded

    def load(self, data: bytes) -> None:
        """The inverse."""
        self.groups, self.offsets = Groups(), Offsets()
        if data:
            groups, offsets = msgpack.unpackb(data)
            self.groups, self.offsets = Groups.from_rows(groups), Offsets.from_rows(offsets)
        self._encoded = data
