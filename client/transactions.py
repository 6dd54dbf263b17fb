"""The words of a transaction: `If` compares, `Do` changes or reads.

    db.transact(
        compare=[If.version(b"{cart}:1", equals=7), If.absent(b"{cart}:lock")],
        then=[Do.put(b"{cart}:1", b"paid"), Do.delete(b"{cart}:2")],
        otherwise=[Do.get(b"{cart}:1")],
    )

One rule: all keys of a transaction belong to one shard, because one log entry holds it. Give them
one tag in braces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from shardnode.client.arguments import Data, to_bytes, to_ttl_ms
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import Compare, Operation
from shardnode.wire.requests import Transact


@dataclass(frozen=True, slots=True)
class If:
    """One comparison; made by the methods below."""

    kind: Compare
    key: bytes
    operand: int | bytes

    @classmethod
    def version(
        cls,
        key: Data,
        *,
        equals: int | None = None,
        differs: int | None = None,
        above: int | None = None,
        below: int | None = None,
    ) -> If:
        """The key's version, which is 0 while it does not exist, compared in exactly one way."""
        ways = (
            (Compare.VERSION_EQUAL, equals),
            (Compare.VERSION_NOT_EQUAL, differs),
            (Compare.VERSION_GREATER, above),
            (Compare.VERSION_LESS, below),
        )
        given = [(kind, operand) for kind, operand in ways if operand is not None]
        if len(given) != 1:
            raise InvalidRequest(
                "expected exactly one of equals, differs, above, below; found"
                f" {len(given)} with If.version"
            )
        kind, operand = given[0]
        return cls(kind, to_bytes(key), operand)

    @classmethod
    def value(cls, key: Data, *, equals: Data | None = None, differs: Data | None = None) -> If:
        """The key's value, compared in exactly one way; a missing key differs from everything."""
        if (equals is None) == (differs is None):
            raise InvalidRequest("expected exactly one of equals, differs with If.value")
        if equals is not None:
            return cls(Compare.VALUE_EQUAL, to_bytes(key), to_bytes(equals, "value"))
        assert differs is not None
        return cls(Compare.VALUE_NOT_EQUAL, to_bytes(key), to_bytes(differs, "value"))

    @classmethod
    def exists(cls, key: Data) -> If:
        """The key is there."""
        return cls(Compare.VERSION_NOT_EQUAL, to_bytes(key), 0)

    @classmethod
    def absent(cls, key: Data) -> If:
        """The key is not there."""
        return cls(Compare.VERSION_EQUAL, to_bytes(key), 0)


@dataclass(frozen=True, slots=True)
class Do:
    """One operation; made by the methods below."""

    kind: Operation
    key: bytes
    data: bytes | None = None
    ttl_ms: int = 0

    @classmethod
    def put(cls, key: Data, value: Data, *, ttl: float | timedelta | None = None) -> Do:
        """Set the key."""
        return cls(Operation.PUT, to_bytes(key), to_bytes(value, "value"), to_ttl_ms(ttl))

    @classmethod
    def delete(cls, key: Data) -> Do:
        """Delete the key; its result has the version found."""
        return cls(Operation.DELETE, to_bytes(key))

    @classmethod
    def get(cls, key: Data) -> Do:
        """Read the key; its result has version and value."""
        return cls(Operation.GET, to_bytes(key))


def to_body(
    compare: Sequence[If], then: Sequence[Do], otherwise: Sequence[Do]
) -> tuple[list[bytes], Transact]:
    """(all keys, the request)."""
    for name, items, cls in (
        ("compare", compare, If),
        ("then", then, Do),
        ("otherwise", otherwise, Do),
    ):
        for item in items:
            if not isinstance(item, cls):
                raise TypeError(
                    f"expected {cls.__name__}.…() in {name}, found {type(item).__name__}"
                )
    body = Transact(
        bytes(item.kind for item in compare),
        [item.key for item in compare],
        [item.operand for item in compare],
        *_branch(then),
        *_branch(otherwise),
    )
    return [*body.compare_keys, *body.then_keys, *body.otherwise_keys], body


def _branch(items: Sequence[Do]) -> tuple[bytes, list[bytes], list[bytes | None], list[int]]:
    return (
        bytes(item.kind for item in items),
        [item.key for item in items],
        [item.data for item in items],
        [item.ttl_ms for item in items],
    )
