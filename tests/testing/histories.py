"""Histories written by hand: one line for each operation, `at` is (begin, end)."""

from __future__ import annotations

from itertools import count

from shardnode.testing.history import Operation

KEY = b"k"
At = tuple[int, int]

_processes = count(1)


def _made(kind: str, at: At, key: bytes, **about: object) -> Operation:
    operation = Operation(next(_processes), kind, key, **about)  # type: ignore[arg-type]
    operation.invoked_ns, operation.returned_ns = at
    operation.status = "ok"
    return operation


def put(value: bytes, version: int, at: At, key: bytes = KEY) -> Operation:
    return _made("put", at, key, value=value, version=version)


def get(value: bytes, version: int, at: At, key: bytes = KEY) -> Operation:
    return _made("get", at, key, seen=value, seen_version=version)


def nothing(at: At, key: bytes = KEY) -> Operation:
    """A read that found no value."""
    return _made("get", at, key, seen_version=0)


def cas(value: bytes, of: tuple[bytes | None, int], version: int, at: At) -> Operation:
    return _made(
        "cas", at, KEY, value=value, expected=of[0], expected_version=of[1], version=version
    )


def conflict(value: bytes, of: tuple[bytes | None, int], found: int, at: At) -> Operation:
    operation = _made(
        "cas", at, KEY, value=value, expected=of[0], expected_version=of[1], seen_version=found
    )
    operation.status = "conflict"
    return operation


def swap(value: bytes, found: int, version: int, at: At, *, seen: bytes | None = None) -> Operation:
    return _made("swap", at, KEY, value=value, seen_version=found, seen=seen, version=version)


def delete(found: int, version: int, at: At) -> Operation:
    return _made("delete", at, KEY, seen_version=found, version=version)


def plain_delete(existed: bool, at: At) -> Operation:
    return _made("delete", at, KEY, existed=existed)


def unknown(operation: Operation) -> Operation:
    """The same, but its caller never learnt what became of it."""
    operation.status, operation.version = "unknown", None
    operation.seen, operation.seen_version, operation.existed = None, None, None
    return operation


def failed(operation: Operation) -> Operation:
    """The same, but its caller was told that it had no effect."""
    unknown(operation).status = "failed"
    return operation
