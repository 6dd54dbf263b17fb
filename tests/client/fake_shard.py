"""One shard of the fake node: keys, changes and sessions in dicts, and nothing on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardnode.wire import requests
from shardnode.wire.codec import Body
from shardnode.wire.cursors import position_of
from shardnode.wire.errors import Conflict, SessionExpired, ShardnodeError
from shardnode.wire.frames import NO_CLIENT, Request
from shardnode.wire.groups import GroupList, GroupsFound
from shardnode.wire.kinds import WRITES, ChangeKind, Compare, Operation
from shardnode.wire.replies import (
    Changes,
    Deleted,
    Entry,
    Found,
    Page,
    SessionGranted,
    Transacted,
    Written,
)
from tests.client.fake_groups import FakeGroups
from tests.client.fake_streams import FakeStreams


@dataclass
class FakeShard:
    """One shard's keys, changes and sessions."""

    number: int
    streams: FakeStreams = field(default_factory=FakeStreams)
    groups: FakeGroups = field(default_factory=lambda: FakeGroups(FakeStreams()))
    page_entries: int = 1_000
    found_max: int = 1_000_000
    index: int = 0
    first_position: int = 0
    data: dict[bytes, tuple[bytes, int, int]] = field(default_factory=dict)
    changes: list[tuple[ChangeKind, bytes, bytes | None, int, int]] = field(default_factory=list)
    sessions: dict[bytes, dict[int, list[Any]]] = field(default_factory=dict)
    applied: list[tuple[bytes, int]] = field(default_factory=list)

    def execute(self, request: Request, body: Body) -> Body:
        """Answer, or raise what a shard would answer."""
        header = request.header
        if header.kind not in WRITES:
            return self.read(body)
        self.streams.door(body)
        self.groups.door(body)
        if isinstance(body, requests.SessionOpen):
            self.sessions.setdefault(header.client_id, {})
            return SessionGranted(body.ttl_ms)
        if header.client_id not in self.sessions or header.client_id == NO_CLIENT:
            raise SessionExpired("no such session")
        replies = self.sessions[header.client_id]
        if header.sequence not in replies:
            replies[header.sequence] = [self.write(body, (header.client_id, header.sequence))]
        for sequence in [s for s in replies if s < header.acked_below]:
            del replies[sequence]
        [reply] = replies[header.sequence]
        if isinstance(reply, ShardnodeError):
            raise reply
        assert isinstance(reply, Body)
        return reply

    def write(self, body: Body, who: tuple[bytes, int]) -> Body | ShardnodeError:
        self.index += 1
        self.applied.append(who)
        if isinstance(body, requests.Put):
            self.put(body.key, body.value, body.ttl_ms)
        elif isinstance(body, requests.PutMany):
            for place, (key, value) in enumerate(zip(body.keys, body.values, strict=True)):
                self.put(key, value, body.ttl_ms, place)
        elif isinstance(body, requests.DeleteMany):
            deleted = sum(self.delete(key, place) for place, key in enumerate(body.keys))
            return Deleted(self.index, deleted)
        elif isinstance(body, requests.Cas):
            version = self.version(body.key)
            if version != body.version:
                return Conflict("another version", key=body.key, version=version)
            self.put(body.key, body.value, body.ttl_ms)
        elif isinstance(body, requests.Transact):
            return self.transact(body)
        else:
            try:
                written = self.streams.write(body) or self.groups.write(body)
                return written or Written(self.index)
            except ShardnodeError as error:
                return error
        return Written(self.index)

    def version(self, key: bytes) -> int:
        return self.data[key][1] if key in self.data else 0

    def put(self, key: bytes, value: bytes, ttl_ms: int, place: int = 0) -> None:
        self.data[key] = (value, self.index, 1_700_000_000_000 + ttl_ms if ttl_ms else 0)
        self.changed(ChangeKind.PUT, key, value, place)

    def delete(self, key: bytes, place: int = 0) -> bool:
        if key not in self.data:
            return False
        del self.data[key]
        self.changed(ChangeKind.DELETE, key, None, place)
        return True

    def changed(self, kind: ChangeKind, key: bytes, value: bytes | None, place: int) -> None:
        self.changes.append((kind, key, value, self.index, position_of(self.index, place)))

    def transact(self, body: requests.Transact) -> Transacted:
        holds = True
        for kind, key, operand in zip(
            body.compare_kinds, body.compare_keys, body.compare_operands, strict=True
        ):
            found: Any = self.version(key)
            if kind in (Compare.VALUE_EQUAL, Compare.VALUE_NOT_EQUAL):
                found = self.data.get(key, (None,))[0]
            holds &= {
                Compare.VERSION_EQUAL: lambda a, b: a == b,
                Compare.VERSION_NOT_EQUAL: lambda a, b: a != b,
                Compare.VERSION_GREATER: lambda a, b: a > b,
                Compare.VERSION_LESS: lambda a, b: a < b,
                Compare.VALUE_EQUAL: lambda a, b: a == b,
                Compare.VALUE_NOT_EQUAL: lambda a, b: a != b,
            }[Compare(kind)](found, operand)
        branch = "then" if holds else "otherwise"
        versions, values = [], []
        columns = [getattr(body, f"{branch}_{name}") for name in ("kinds", "keys", "values")]
        for place, (kind, key, value) in enumerate(zip(*columns, strict=True)):
            versions.append(self.index if kind == Operation.PUT else self.version(key))
            values.append(self.data.get(key, (None,))[0] if kind == Operation.GET else None)
            if kind == Operation.PUT:
                self.put(key, value, 0, place)
            elif kind == Operation.DELETE:
                self.delete(key, place)
        return Transacted(holds, versions, values)

    def read(self, body: Body) -> Body:
        if isinstance(body, requests.Get):
            return Entry(*self.data.get(body.key, (None, 0, 0)))
        if isinstance(body, requests.GetMany):
            return Found([self.data.get(key, (None,))[0] for key in body.keys[: self.found_max]])
        if isinstance(body, requests.Scan):
            return self.page(body)
        if isinstance(body, GroupList) and self.number:
            return GroupsFound([], [], [], None)  # all of them are told by shard 0
        if (found := self.streams.read(body) or self.groups.read(body)) is not None:
            return found
        raise AssertionError(f"no such read: {body}")

    def page(self, asked: requests.Scan) -> Page:
        keys = [
            key
            for key in sorted(self.data, reverse=asked.reverse)
            if (asked.start is None or key >= asked.start)
            and (asked.end is None or key < asked.end)
            and (asked.after is None or (key < asked.after if asked.reverse else key > asked.after))
        ]
        count = min(asked.limit or self.page_entries, self.page_entries)
        rows = [self.data[key] for key in keys[:count]]
        return Page(
            keys[:count],
            [] if asked.keys_only else [value for value, _, _ in rows],
            [version for _, version, _ in rows],
            [expires for _, _, expires in rows],
            keys[count - 1] if len(keys) > count else None,
        )

    def watch(self, asked: requests.Watch) -> Changes | None:
        """What has changed; None: nothing yet."""
        now = position_of(self.index)
        if asked.after is None:
            return Changes(b"", [], [], [], [], now)
        found = [
            change
            for change in self.changes
            if change[4] > asked.after and change[1].startswith(asked.prefix)
        ]
        if not found:
            return None
        kinds, keys, values, versions, positions = zip(*found, strict=True)
        return Changes(bytes(kinds), keys, values, versions, positions, now)
