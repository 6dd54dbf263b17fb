"""Reading keys: answers made from an engine, which they leave as it is.

The one rule: no clock is looked at. A key is there until an entry of the log deletes it, so every
replica at one index gives the same answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from shardnode.storage.engine import Engine, Item
from shardnode.storage.engine_merge import growing_counts
from shardnode.storage.engine_values import HEADER_BYTES, split_header, value_of, values_of
from shardnode.wire import limits
from shardnode.wire.replies import Page
from shardnode.wire.requests import Scan

FOUND_BYTES_MAX = limits.read_page_bytes_max
"""Values of one `Found`: with one more largest value it is still a body."""


def get_many(
    engine: Engine, keys: Sequence[bytes], bytes_max: int = FOUND_BYTES_MAX
) -> list[bytes | None]:
    """The values of the first keys, None for those that do not exist. Fewer than asked for once
    they have `bytes_max`, but at least one."""
    values: list[bytes | None] = []
    size_bytes = 0
    for count in growing_counts():
        some = values_of(engine.get_many(keys[len(values) : len(values) + count]))
        some_bytes = sum(map(len, filter(None, some)))
        if size_bytes + some_bytes >= bytes_max:
            sizes = list(accumulate((len(value or b"") for value in some), initial=size_bytes))
            return values + some[: bisect_left(sizes, bytes_max)]
        values += some
        size_bytes += some_bytes
        if len(values) == len(keys):
            break
    return values


def scan(engine: Engine, ask: Scan) -> Page:
    """One page; see `Scan`."""
    low, high = ask.start or b"", ask.end
    if ask.after is not None:
        if ask.reverse:
            high = ask.after if high is None else min(high, ask.after)
        else:
            low = max(low, ask.after + b"\0")
    if high is not None and low >= high:
        return _page([], keys_only=ask.keys_only, more=False)
    count_max = ask.limit or limits.scan_page_entries_max
    bytes_max = ask.page_bytes or limits.scan_page_bytes_max
    items: list[Item] = []
    size_bytes = 0
    for some in engine.scan(low, high, reverse=ask.reverse):
        if len(items) == count_max or size_bytes >= bytes_max:
            return _page(items, keys_only=ask.keys_only, more=True)
        fitting = some[: count_max - len(items)]
        sizes = list(accumulate(_sizes(fitting, ask.keys_only), initial=size_bytes))
        fitting = fitting[: bisect_left(sizes, bytes_max)]
        items += fitting
        size_bytes = sizes[len(fitting)]
        if len(fitting) < len(some):
            return _page(items, keys_only=ask.keys_only, more=True)
    return _page(items, keys_only=ask.keys_only, more=False)


def _sizes(items: Sequence[Item], keys_only: bool) -> list[int]:
    if keys_only:
        return [len(key) for key, _ in items]
    return [len(key) + len(kept) - HEADER_BYTES for key, kept in items]


def _page(items: Sequence[Item], *, keys_only: bool, more: bool) -> Page:
    if not items:
        return Page([], [], [], [], None)
    keys, kept = zip(*items, strict=True)
    versions, expiries = zip(*map(split_header, kept), strict=True)
    values = [] if keys_only else list(map(value_of, kept))
    return Page(keys, values, versions, expiries, keys[-1] if more else None)
