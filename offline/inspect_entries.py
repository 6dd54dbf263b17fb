"""Entries of the log as people read them: what was asked, by whom, and of which keys.

The one rule: an entry says what was asked, not what came of it. Whether a compare-and-set found its
version, and whether a request was a repeat, only applying everything would tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from shardnode.offline.rows import Row, kind_name, partition_name, time_of
from shardnode.raft import Membership
from shardnode.raft.errors import MalformedMessage
from shardnode.shard.entries import EXPIRE_KEYS, Command, decode_entry
from shardnode.storage.records import Record
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.frames import NO_CLIENT
from shardnode.wire.kinds import Kind, Operation
from shardnode.wire.placement import KEY_VALUE_PARTITION, RAFT_PARTITION
from shardnode.wire.requests import Cas, DeleteMany, Put, PutMany, Transact
from shardnode.wire.streams import Append, AppendMany


def record_row(record: Record) -> Row:
    """One record of the log."""
    index, term, partition, number, payload = record
    row: Row = {
        "row": "record",
        "index": index,
        "term": term,
        "partition": partition_name(partition),
        "number": number,
        "bytes": len(payload),
    }
    if partition == RAFT_PARTITION:
        return {**row, **_raft(payload)}
    try:
        command = decode_entry(payload)
    except InvalidRequest:
        return {**row, "entry": "unreadable"}
    row |= {"entry": kind_name(command.kind), "time": time_of(command.stamp_ms)}
    if command.client_id != NO_CLIENT:
        row |= {"client": command.client_id.hex(), "sequence": command.sequence}
    try:
        return {**row, **_ABOUT.get(command.kind, _nothing)(command)}
    except (InvalidRequest, ValueError, TypeError):
        return {**row, "body": "unreadable: it was refused"}


def _raft(payload: bytes) -> Row:
    if not payload:
        return {"entry": "begin of a term"}
    try:
        members = Membership.decode(payload)
    except (MalformedMessage, ValueError):
        return {"entry": "unreadable"}
    row: Row = {"entry": "members", "voters": list(members.voters)}
    row |= {"outgoing": list(members.outgoing)} if members.outgoing else {}
    return row | ({"learners": list(members.learners)} if members.learners else {})


def _nothing(_: Command) -> Row:
    return {}


def _put(command: Command) -> Row:
    ask = Put.decode(command.body)
    return {"key": ask.key, "value_bytes": len(ask.value), **_life(ask.ttl_ms)}


def _put_many(command: Command) -> Row:
    ask = PutMany.decode(command.body)
    size = sum(map(len, ask.values))
    return {"keys": len(ask.keys), "first_key": ask.keys[0], "value_bytes": size} | _life(
        ask.ttl_ms
    )


def _cas(command: Command) -> Row:
    ask = Cas.decode(command.body)
    return {"key": ask.key, "version": ask.version, "value_bytes": len(ask.value)}


def _delete_many(command: Command) -> Row:
    ask = DeleteMany.decode(command.body)
    return {"keys": len(ask.keys), "first_key": ask.keys[0]}


def _transact(command: Command) -> Row:
    ask = Transact.decode(command.body)
    counts = map(len, (ask.compare_keys, ask.then_keys, ask.otherwise_keys))
    return dict(zip(("compare", "then", "otherwise"), counts, strict=True))


def _append(command: Command) -> Row:
    ask = Append.decode(command.body)
    row: Row = {"messages": ask.count, "batch_bytes": len(ask.batch)}
    if ask.producer:
        row |= {"producer": ask.producer, "producer_sequence": ask.producer_sequence}
    return row


def _append_many(command: Command) -> Row:
    ask = AppendMany.decode(command.body)
    return {
        "batches": len(ask.counts),
        "messages": sum(ask.counts),
        "batch_bytes": len(ask.batches),
    }


def _expire_keys(command: Command) -> Row:
    keys, _ = msgpack.unpackb(command.body)
    return {"keys": len(keys)} | ({"first_key": keys[0]} if keys else {})


def _life(ttl_ms: int) -> Row:
    return {"ttl_ms": ttl_ms} if ttl_ms else {}


_ABOUT: dict[int, Callable[[Command], Row]] = {
    Kind.PUT: _put,
    Kind.PUT_MANY: _put_many,
    Kind.CAS: _cas,
    Kind.DELETE_MANY: _delete_many,
    Kind.TRANSACT: _transact,
    Kind.APPEND: _append,
    Kind.APPEND_MANY: _append_many,
    EXPIRE_KEYS: _expire_keys,
}


# -- one key --------------------------------------------------------------------------------------


def key_rows(record: Record, key: bytes) -> Iterator[Row]:
    """What a record asks to be done to one key."""
    if record.partition != KEY_VALUE_PARTITION or key not in record.payload:
        return
    try:
        command = decode_entry(record.payload)
        changes = list(_changes(command, key))
    except (InvalidRequest, ValueError, TypeError):
        return
    for change in changes:
        row: Row = {"row": "change", "index": record.index, "term": record.term}
        row |= {"time": time_of(command.stamp_ms), "entry": kind_name(command.kind)}
        if command.client_id != NO_CLIENT:
            row |= {"client": command.client_id.hex(), "sequence": command.sequence}
        yield row | change


def _changes(command: Command, key: bytes) -> Iterator[Row]:
    kind, body = command.kind, command.body
    if kind == Kind.PUT and (put := Put.decode(body)).key == key:
        yield {"does": "put", "value": put.value, **_life(put.ttl_ms)}
    elif kind == Kind.PUT_MANY and key in (many := PutMany.decode(body)).keys:
        value = many.values[list(many.keys).index(key)]
        yield {"does": "put", "value": value, **_life(many.ttl_ms)}
    elif kind == Kind.CAS and (cas := Cas.decode(body)).key == key:
        yield {"does": "put", "if_version": cas.version, "value": cas.value, **_life(cas.ttl_ms)}
    elif kind == Kind.DELETE_MANY and key in DeleteMany.decode(body).keys:
        yield {"does": "delete"}
    elif kind == Kind.TRANSACT:
        yield from _branches(Transact.decode(body), key)
    elif kind == EXPIRE_KEYS:
        keys, versions = msgpack.unpackb(body)
        if key in keys:
            yield {"does": "delete", "if_version": versions[keys.index(key)]}


def _branches(ask: Transact, key: bytes) -> Iterator[Row]:
    branches: tuple[tuple[str, Any, Any, Any], ...] = (
        ("comparisons hold", ask.then_kinds, ask.then_keys, ask.then_values),
        ("one does not", ask.otherwise_kinds, ask.otherwise_keys, ask.otherwise_values),
    )
    for when, kinds, keys, values in branches:
        for kind, each, value in zip(kinds, keys, values, strict=True):
            if each == key and kind != Operation.GET:
                row: Row = {"does": Operation(kind).name.lower(), "if": when}
                yield row | ({} if value is None else {"value": value})
