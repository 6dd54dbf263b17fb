"""One ordered view over the store and the memory tables in front of it.

The one rule: a key's newest layer decides, and a layer that was read only in part says nothing
about keys behind the last one it gave. So a list ends where the first such layer ended.

Lists start small and grow: a page of large values copies few of them in vain, and a page of small
ones is made by loops in C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardnode.storage.engine_store import Item, Store
from shardnode.storage.engine_table import MemoryTable

_COUNT_FIRST = 16
_COUNT_MAX = 1_024


def growing_counts() -> Iterator[int]:
    """How many to take at a time when their size is not known: few, then more."""
    count = _COUNT_FIRST
    while True:
        yield count
        count = min(4 * count, _COUNT_MAX)


def merged(
    store: Store, tables: Sequence[MemoryTable], low: bytes, high: bytes | None, reverse: bool
) -> Iterator[list[Item]]:
    """What is there of low ≤ key < high, in order; `tables` are oldest first."""
    for count in growing_counts():
        items = store.take(low, high, count, reverse)
        ends = [items[-1][0]] if len(items) == count else []
        found: dict[bytes, bytes] | None = None
        for table in tables:
            keys = table.take(low, high, count, reverse)
            if keys:
                found = dict(items) if found is None else found
                found.update(zip(keys, map(table.data.__getitem__, keys), strict=True))
                if len(keys) == count:
                    ends.append(keys[-1])
        end = (max(ends) if reverse else min(ends)) if ends else None
        if found is not None:
            items = _in_order(found, end, reverse)
        if items:
            yield items
        if end is None:
            return
        low, high = (low, end) if reverse else (end + b"\0", high)


def _in_order(found: dict[bytes, bytes], end: bytes | None, reverse: bool) -> list[Item]:
    keys = sorted(found, reverse=reverse)
    if end is not None:
        keys = keys[: keys.index(end) + 1]
    return [(key, kept) for key in keys if (kept := found[key])]
