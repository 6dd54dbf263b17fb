"""One transaction: compare, then do one of two branches.

The one rule: everything is looked up and the reply is made before anything changes, so a
transaction that cannot be answered has no effect. A branch names each key once, so the order of
its operations does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from shardnode.storage.engine_values import value_of, version_of
from shardnode.wire.kinds import Compare, Operation
from shardnode.wire.replies import Transacted
from shardnode.wire.requests import Transact

Get = Callable[[bytes], bytes | None]


class Plan(NamedTuple):
    """What a transaction will do, and what it answers."""

    puts: Sequence[tuple[bytes, bytes, int]]
    """(key, value, ttl_ms)."""
    deletes: Sequence[bytes]
    """Only keys that are there."""
    order: Sequence[tuple[Operation, bytes]]
    """The changes in the order of the branch."""
    reply: bytes


def plan(ask: Transact, get: Get, version: int) -> Plan:
    """Decide; `get` gives what is kept of a key. `LimitExceeded` if the reply is too long."""
    compared = map(get, ask.compare_keys)
    succeeded = all(map(_holds, ask.compare_kinds, compared, ask.compare_operands))
    if succeeded:
        kinds, keys, values, ttls = ask.then_kinds, ask.then_keys, ask.then_values, ask.then_ttls_ms
    else:
        kinds, keys = ask.otherwise_kinds, ask.otherwise_keys
        values, ttls = ask.otherwise_values, ask.otherwise_ttls_ms
    puts, deletes, order = [], [], []
    versions: list[int] = []
    found: list[bytes | None] = []
    for kind, key, value, ttl_ms in zip(kinds, keys, values, ttls, strict=True):
        if kind == Operation.PUT:
            puts.append((key, value or b"", ttl_ms))
            order.append((Operation.PUT, key))
            versions.append(version)
            found.append(None)
            continue
        kept = get(key)
        versions.append(version_of(kept))
        found.append(value_of(kept) if kept and kind == Operation.GET else None)
        if kept and kind == Operation.DELETE:
            deletes.append(key)
            order.append((Operation.DELETE, key))
    reply = Transacted(succeeded, versions, found).encode()
    return Plan(puts, deletes, order, reply)


def _holds(kind: int, kept: bytes | None, operand: int | bytes) -> bool:
    """Whether one comparison is true."""
    if kind in (Compare.VALUE_EQUAL, Compare.VALUE_NOT_EQUAL):
        equal = bool(kept) and value_of(kept or b"") == operand
        return equal == (kind == Compare.VALUE_EQUAL)
    assert isinstance(operand, int), "checked when the request was decoded"
    version = version_of(kept)
    if kind == Compare.VERSION_EQUAL:
        return version == operand
    if kind == Compare.VERSION_NOT_EQUAL:
        return version != operand
    return version > operand if kind == Compare.VERSION_GREATER else version < operand
