"""One function per method of a client: from a caller's arguments to a call.

One rule: both shells build their calls here and nowhere else, so `Client` and `AsyncClient` cannot
differ in what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from shardnode.client.arguments import (
    Data,
    Pairs,
    to_bytes,
    to_column,
    to_columns,
    to_consistency,
    to_ttl_ms,
)
from shardnode.client.calls import KeyCall, OneRequest, RouterCall
from shardnode.client.consuming import new_member_name
from shardnode.client.group_calls import GroupCall, ListGroupsCall, SeekGroupCall
from shardnode.client.many import DeleteManyCall, GetManyCall, PutManyCall
from shardnode.client.offsets import Offset, to_start
from shardnode.client.topics import to_partition, to_topic_name
from shardnode.client.transactions import Do, If, to_body
from shardnode.client.values import Entry, OperationResult, Route, Status, Topology, Transaction
from shardnode.client.values import time_of as _time_of
from shardnode.wire import cluster, control, replies, requests
from shardnode.wire.codec import Body
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import Kind
from shardnode.wire.placement import PlacementTable
from shardnode.wire.routing import LEGACY_SHARD

Ttl = float | timedelta | None

_EMPTY = requests.Status().encode()


def put(key: Data, value: Data, ttl: Ttl) -> KeyCall[int]:
    key = to_bytes(key)
    body = requests.Put(key, to_bytes(value, "value"), to_ttl_ms(ttl)).encode()
    return KeyCall(Kind.PUT, body, _version, key=key)


def get(key: Data, consistency: str) -> KeyCall[bytes | None]:
    key = to_bytes(key)
    body = requests.Get(key, to_consistency(consistency)).encode()
    return KeyCall(Kind.GET, body, _value, key=key)


def get_entry(key: Data, consistency: str) -> KeyCall[Entry | None]:
    key = name = to_bytes(key)
    body = requests.Get(key, to_consistency(consistency)).encode()

    def entry(found: replies.Entry) -> Entry | None:
        if found.value is None:
            return None
        return Entry(name, found.value, found.version, _time_of(found.expires_at_ms))

    return KeyCall(Kind.GET, body, entry, key=key)


def put_many(pairs: Pairs, ttl: Ttl) -> PutManyCall | None:
    """None when there is nothing to do, here and below."""
    keys, values = to_columns(pairs)
    ttl_ms = to_ttl_ms(ttl)
    return PutManyCall(keys, values, ttl_ms) if keys else None


def get_many(keys: Iterable[Data], consistency: str) -> GetManyCall | None:
    level = to_consistency(consistency)
    column = to_column(keys)
    return GetManyCall(column, level) if column else None


def delete_many(keys: Iterable[Data]) -> DeleteManyCall | None:
    column = to_column(keys)
    return DeleteManyCall(column) if column else None


def delete(key: Data) -> KeyCall[int]:
    key = to_bytes(key)
    return KeyCall(Kind.DELETE_MANY, requests.DeleteMany([key]).encode(), _deleted, key=key)


def cas(key: Data, value: Data, version: int, ttl: Ttl) -> KeyCall[int]:
    if type(version) is not int:
        raise TypeError(f"expected version as an int, found {type(version).__name__}")
    key = to_bytes(key)
    body = requests.Cas(key, to_bytes(value, "value"), version, to_ttl_ms(ttl)).encode()
    return KeyCall(Kind.CAS, body, _version, key=key)


def transact(
    compare: Sequence[If], then: Sequence[Do], otherwise: Sequence[Do]
) -> KeyCall[Transaction]:
    keys, body = to_body(compare, then, otherwise)
    return _TransactCall(keys, body.encode())


class _TransactCall(KeyCall[Transaction]):
    def __init__(self, keys: Sequence[bytes], body: bytes) -> None:
        super().__init__(Kind.TRANSACT, body, _transaction, key=keys[0])
        self._keys = keys

    def check(self, table: PlacementTable) -> None:
        shards = {table.shard_of_key(key) for key in self._keys}
        if len(shards) > 1:
            raise InvalidRequest(
                f"expected keys of one shard in a transaction, found those of shards"
                f" {sorted(shards)}; give them one tag in braces, as in {{user:1}}:cart"
            )


def explain(key: Data) -> RouterCall[Route]:
    key = to_bytes(key)
    return RouterCall(Kind.EXPLAIN, requests.Explain(key).encode(), _route, key=key)


def status() -> RouterCall[Status]:
    return RouterCall(Kind.STATUS, _EMPTY, Status.of)


def topology() -> RouterCall[Topology]:
    return RouterCall(Kind.TOPOLOGY, _EMPTY, Topology.of)


def add_member(node: int, address: str) -> OneRequest[int]:
    endpoint = address if "://" in address else f"tcp://{address}"
    return _control(Kind.MEMBER_ADD, control.MemberAdd(node, endpoint))


def remove_member(node: int) -> OneRequest[int]:
    return _control(Kind.MEMBER_REMOVE, control.MemberRemove(node))


def rebalance() -> OneRequest[int]:
    return _control(Kind.REBALANCE, control.Rebalance())


def transfer_leader(shard: int, node: int) -> OneRequest[int]:
    body = control.LeaderTransfer(node).encode()
    return OneRequest(Kind.LEADER_TRANSFER, body, _changed, shard=shard)


def list_groups() -> ListGroupsCall:
    return ListGroupsCall()


def describe_group(group: str) -> GroupCall:
    return GroupCall(group)


def seek_group(group: str, topic: str, partition: int, offset: Offset) -> SeekGroupCall:
    name, number = to_topic_name(topic), to_partition(partition)
    return SeekGroupCall(group, new_member_name(), name, number, to_start(offset))


def _control(kind: Kind, body: Body) -> OneRequest[int]:
    return OneRequest(kind, body.encode(), _changed, shard=LEGACY_SHARD)


def _changed(answer: control.Changed) -> int:
    return answer.version


def _version(answer: replies.Written) -> int:
    return answer.version


def _value(answer: replies.Entry) -> bytes | None:
    return answer.value


def _deleted(answer: replies.Deleted) -> int:
    return answer.deleted


def _transaction(answer: replies.Transacted) -> Transaction:
    results = map(OperationResult, answer.versions, answer.values)
    return Transaction(answer.succeeded, tuple(results))


def _route(answer: cluster.Route) -> Route:
    return Route(
        answer.hash,
        answer.slot,
        answer.shard,
        answer.leader,
        answer.epoch,
        answer.pid,
        answer.core,
    )
