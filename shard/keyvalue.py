"""The key-value state machine: what an entry does to keys, sessions and leases.

The one rule: the same entries give the same state and the same replies everywhere. Time is the
stamp in the entry, an error is a reply, and its text is our own; nothing depends on when this
replica flushed.

The batch is the unit: of an entry with a thousand keys, only C looks at each.

    state        where                        changes by
    keys         the engine                   every write
    sessions     `sessions.SessionTable`      every request inside a session
    leases       `keyvalue_leases.Leases`     leased writes, and all that overwrite them
    stamp_ms     here                         every entry
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgpack

from shardnode.raft import Entry
from shardnode.shard import keyvalue_reads
from shardnode.shard.entries import (
    EXPIRE_KEYS,
    EXPIRE_SESSIONS,
    Command,
    accept,
    decode_entry,
    refuse,
)
from shardnode.shard.keyvalue_changes import RECENT_BYTES_MAX, RecentChanges
from shardnode.shard.keyvalue_leases import Leases
from shardnode.shard.keyvalue_transact import plan
from shardnode.shard.once import run_once, verdict_error
from shardnode.shard.sessions import SessionTable, Verdict
from shardnode.storage.engine import Engine
from shardnode.storage.engine_values import keep, keep_many, split_header, value_of, version_of
from shardnode.wire.codec import Body
from shardnode.wire.errors import (
    Conflict,
    InvalidRequest,
    ShardnodeError,
)
from shardnode.wire.frames import NO_CLIENT
from shardnode.wire.kinds import ChangeKind, Kind, Operation
from shardnode.wire.replies import Changes, Deleted, Page, SessionClosed, SessionGranted, Written
from shardnode.wire.requests import (
    Cas,
    DeleteMany,
    Put,
    PutMany,
    Scan,
    SessionClose,
    SessionKeepAlive,
    SessionOpen,
    Transact,
    Watch,
)

ENDED_KEYS_MAX = 50_000
"""Leased keys that one EXPIRE_SESSIONS deletes, about; sessions beyond wait for the next."""

Found = tuple[bytes, int, int]
"""Value, version and time of expiry (0: never)."""


class KeyValue:
    """Keys, sessions and leases of one shard."""

    def __init__(self, engine: Engine, recent_bytes_max: int = RECENT_BYTES_MAX) -> None:
        self.engine = engine
        self._recent_bytes_max = recent_bytes_max
        self._in_session: Mapping[int, Callable[[int, Command], bytes]] = {
            Kind.PUT: self._put,
            Kind.PUT_MANY: self._put_many,
            Kind.DELETE_MANY: self._delete_many,
            Kind.CAS: self._cas,
            Kind.TRANSACT: self._transact,
        }
        self._by_itself: Mapping[int, Callable[[int, Command], bytes]] = {
            Kind.SESSION_OPEN: self._session_open,
            Kind.SESSION_KEEP_ALIVE: self._session_keep_alive,
            Kind.SESSION_CLOSE: self._session_close,
            EXPIRE_KEYS: self._expire_keys,
            EXPIRE_SESSIONS: self._expire_sessions,
        }
        self.load(engine.blob, engine.index)

    # -- reading ------------------------------------------------------------------------------

    def get(self, key: bytes) -> Found | None:
        """Value, version and expiry of a key; None when it does not exist."""
        kept = self.engine.get(key)
        if not kept:
            return None
        version, expires_ms = split_header(kept)
        return value_of(kept), version, expires_ms

    def get_many(
        self, keys: Sequence[bytes], bytes_max: int = keyvalue_reads.FOUND_BYTES_MAX
    ) -> list[bytes | None]:
        """The values of the first keys: all, unless they would have more than `bytes_max`."""
        return keyvalue_reads.get_many(self.engine, keys, bytes_max)

    def scan(self, ask: Scan) -> Page:
        """One page of keys in order."""
        return keyvalue_reads.scan(self.engine, ask)

    def changes(self, ask: Watch, applied_index: int) -> Changes:
        """What changed behind a position; raises `wire.errors.Compacted`."""
        return self.recent.answer(ask, applied_index)

    def due(self, stamp_ms: int, limit: int) -> tuple[list[bytes], list[int]]:
        """Keys and versions for EXPIRE_KEYS. The same ones until that has been applied."""
        return self.engine.due(stamp_ms, limit)

    # -- the whole state ----------------------------------------------------------------------

    def blobs(self) -> dict[str, bytes]:
        """Everything but the keys, for a flush or a snapshot."""
        return {
            "keyvalue": bytes(msgpack.packb([self.version_base, self.stamp_ms])),
            "sessions": self.sessions.encode(),
            "leases": self.leases.encode(),
        }

    def load(self, blob: Callable[[str], bytes], index: int) -> None:
        """Take over blobs; the engine has the keys as of `index`."""
        self.version_base, self.stamp_ms = 0, 0
        if packed := blob("keyvalue"):
            self.version_base, self.stamp_ms = msgpack.unpackb(packed)
        sessions = blob("sessions")
        self.sessions = SessionTable.decode(sessions) if sessions else SessionTable()
        self.leases = Leases.decode(blob("leases"))
        self.recent = RecentChanges(index, self._recent_bytes_max)

    # -- applying -----------------------------------------------------------------------------

    def apply(self, entries: Sequence[Entry]) -> list[bytes]:
        """Let entries take effect, in order; a reply for each."""
        return [self._apply(entry.index, entry.payload) for entry in entries]

    def _apply(self, index: int, payload: bytes) -> bytes:
        try:
            command = decode_entry(payload)
            self.stamp_ms = max(self.stamp_ms, command.stamp_ms)
            alone = self._by_itself.get(command.kind)
            if alone is not None:
                return accept(alone(index, command))
        except ShardnodeError as error:
            return refuse(error)
        if command.client_id == NO_CLIENT:
            return self._run(index, command)
        return self._run_once(index, command)

    def _run(self, index: int, command: Command) -> bytes:
        """A request; whatever is wrong with it is a reply."""
        try:
            handle = self._in_session.get(command.kind)
            if handle is None:
                raise InvalidRequest(
                    f"expected a request that writes keys, found kind {command.kind}"
                )
            return accept(handle(index, command))
        except ShardnodeError as error:
            return refuse(error)

    def _run_once(self, index: int, command: Command) -> bytes:
        """A request inside a session: a repeat gets the reply of the first time."""
        return run_once(self.sessions, command, lambda: self._run(index, command))

    # -- keys ---------------------------------------------------------------------------------

    def _put(self, index: int, command: Command) -> bytes:
        ask = _decode(Put, command)
        return self._store(index, command, [ask.key], [ask.value], ask.ttl_ms, ask.leased)

    def _put_many(self, index: int, command: Command) -> bytes:
        ask = _decode(PutMany, command)
        return self._store(index, command, ask.keys, ask.values, ask.ttl_ms, ask.leased)

    def _cas(self, index: int, command: Command) -> bytes:
        ask = _decode(Cas, command)
        found = version_of(self.engine.get(ask.key))
        if found != ask.version:
            raise Conflict(
                f"expected version {ask.version}, found {found}; read the key and decide again",
                key=ask.key,
                version=found,
            )
        return self._store(index, command, [ask.key], [ask.value], ask.ttl_ms, ask.leased)

    def _store(
        self,
        index: int,
        command: Command,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        ttl_ms: int,
        leased: bool,
    ) -> bytes:
        """Set distinct keys, all with one version."""
        if leased:
            if command.client_id == NO_CLIENT:
                raise InvalidRequest("expected a session with a leased key, found none; open one")
            self.leases.check(command.client_id, keys)
        version = self.version_base + index
        expires_ms = command.stamp_ms + ttl_ms if ttl_ms else 0
        size_bytes = len(command.body)
        kept = keep_many(version, expires_ms, keys, values)
        self.engine.put_many(keys, kept, size_bytes)
        if expires_ms:
            self.engine.expire_later(expires_ms, version, keys)
        self.leases.drop(keys)
        if leased:
            self.leases.take(command.client_id, keys)
        self.recent.add(index, version, ChangeKind.PUT, keys, values, size_bytes, expires_ms)
        return Written(version).encode()

    def _delete_many(self, index: int, command: Command) -> bytes:
        ask = _decode(DeleteMany, command)
        return self._delete(index, ask.keys, ChangeKind.DELETE)

    def _expire_keys(self, index: int, command: Command) -> bytes:
        keys, versions = _unpack_pair(command)
        if not (isinstance(keys, list) and isinstance(versions, list)):
            raise _undecodable(command)
        if set(map(type, keys)) - {bytes} or len(keys) != len(versions):
            raise _undecodable(command)
        found = map(version_of, self.engine.get_many(keys))
        same = [key for key, *pair in zip(keys, found, versions, strict=True) if pair[0] == pair[1]]
        return self._delete(index, list(dict.fromkeys(same)), ChangeKind.EXPIRE)

    def _delete(self, index: int, keys: Sequence[bytes], why: ChangeKind) -> bytes:
        """Delete those of the keys that are there."""
        kept = self.engine.get_many(keys)
        there = keys if all(kept) else [k for k, each in zip(keys, kept, strict=True) if each]
        version = self.version_base + index
        self.engine.delete_many(there)
        self.leases.drop(there)
        self.recent.add(index, version, why, there, None, sum(map(len, there)))
        return Deleted(version, len(there)).encode()

    def _transact(self, index: int, command: Command) -> bytes:
        version = self.version_base + index
        planned = plan(_decode(Transact, command), self.engine.get, version)
        values: dict[bytes, bytes | None] = dict.fromkeys(planned.deletes)
        expiries = dict.fromkeys(planned.deletes, 0)
        for key, value, ttl_ms in planned.puts:
            values[key] = value
            expiries[key] = expires_ms = command.stamp_ms + ttl_ms if ttl_ms else 0
            kept = keep(version, expires_ms, key, value)
            self.engine.put_many([key], [kept], len(key) + len(value))
            if expires_ms:
                self.engine.expire_later(expires_ms, version, [key])
        self.engine.delete_many(planned.deletes)
        keys = [key for _, key in planned.order]
        self.leases.drop(keys)
        kinds = bytes(_CHANGE_OF[operation] for operation, _ in planned.order)
        columns = [values[key] for key in keys]
        times = [expiries[key] for key in keys]
        self.recent.add(index, version, kinds, keys, columns, len(command.body), times)
        return planned.reply

    # -- sessions -----------------------------------------------------------------------------

    def _session_open(self, _index: int, command: Command) -> bytes:
        ask = _decode(SessionOpen, command)
        client = _client_of(command)
        if not self.sessions.open(client, command.stamp_ms, ask.ttl_ms):
            raise verdict_error(Verdict.EXPIRED, command.sequence)
        return SessionGranted(ask.ttl_ms).encode()

    def _session_keep_alive(self, _index: int, command: Command) -> bytes:
        _decode(SessionKeepAlive, command)
        client = _client_of(command)
        if client not in self.sessions:
            raise verdict_error(Verdict.EXPIRED, command.sequence)
        self.sessions.touch(client, command.acked_below, command.stamp_ms)
        return SessionGranted(self.sessions.ttl(client)).encode()

    def _session_close(self, index: int, command: Command) -> bytes:
        _decode(SessionClose, command)
        client = _client_of(command)
        if client in self.sessions:
            self.sessions.end(client, command.stamp_ms)
            self._delete(index, self.leases.end(command.client_id), ChangeKind.DELETE)
        elif not self.sessions.has_ended(client):
            raise verdict_error(Verdict.EXPIRED, command.sequence)
        return SessionClosed().encode()

    def _expire_sessions(self, index: int, command: Command) -> bytes:
        silent_since, forget_before = _unpack_pair(command)
        if type(silent_since) is not int or type(forget_before) is not int:
            raise _undecodable(command)
        ended, keys = 0, list[bytes]()
        for client in self.sessions.silent(silent_since):
            client_id = client.to_bytes(len(NO_CLIENT), "big")
            if keys and len(keys) + self.leases.count(client_id) > ENDED_KEYS_MAX:
                break
            self.sessions.end(client, command.stamp_ms)
            keys += self.leases.end(client_id)
            ended += 1
        self.sessions.forget(forget_before)
        self._delete(index, keys, ChangeKind.EXPIRE)
        return Deleted(self.version_base + index, ended).encode()


_B = TypeVar("_B", bound=Body)
_CHANGE_OF = {Operation.PUT: ChangeKind.PUT, Operation.DELETE: ChangeKind.DELETE}


def _decode(cls: type[_B], command: Command) -> _B:
    """The body, which was checked before it was proposed. The text of the error is our own, since
    that of a library may differ between replicas, and the reply is part of the state."""
    try:
        return cls.decode(command.body)
    except InvalidRequest as problem:
        raise _undecodable(command) from problem


def _undecodable(command: Command) -> InvalidRequest:
    return InvalidRequest(f"expected a body of kind {command.kind}, found one that is none")


def _unpack_pair(command: Command) -> tuple[object, object]:
    """The body of a command of the leader: an array of two."""
    try:
        first, second = msgpack.unpackb(command.body)
    except (ValueError, TypeError) as problem:
        raise _undecodable(command) from problem
    return first, second


def _client_of(command: Command) -> int:
    if command.client_id == NO_CLIENT:
        raise InvalidRequest("expected a client id with a session, found none; draw one at random")
    return int.from_bytes(command.client_id, "big")
