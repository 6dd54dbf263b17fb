"""No Python per record: coding a large batch takes as many steps of the interpreter as a small one.

Counted, not timed, so that a busy machine cannot make it fail. The loops that remain run in C.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from shardnode.wire.codec import Body
from shardnode.wire.replies import Changes, Found, Page
from shardnode.wire.requests import DeleteMany, GetMany, PutMany
from shardnode.wire.streams import Append, MessageBatch, MessagesFound


def keys(count: int) -> list[bytes]:
    return [b"user:%06d" % n for n in range(count)]


def texts(count: int) -> list[str]:
    return [f"header-{n:06d}" for n in range(count)]


HOT: dict[str, Callable[[int], Body]] = {
    "PutMany": lambda n: PutMany(keys(n), keys(n)),
    "GetMany": lambda n: GetMany(keys(n)),
    "DeleteMany": lambda n: DeleteMany(keys(n)),
    "Found": lambda n: Found([*keys(n - 1), None]),
    "Page": lambda n: Page(keys(n), keys(n), [1] * n, [0] * n, b"next"),
    "Changes": lambda n: Changes(b"\1" * n, keys(n), [*keys(n - 1), None], [1] * n, [2] * n, 3),
    "MessageBatch": lambda n: MessageBatch(keys(n), keys(n), [1] * n, texts(n), keys(n)),
    "Append": lambda n: Append(7, n, MessageBatch(keys(n)).encode()),
    "MessagesFound": lambda n: MessagesFound([1] * n, [1] * n, [1] * n, keys(n), 1, 1, 1),
}


def steps(work: Callable[[], object]) -> int:
    """How many lines of Python run, each turn of a loop and every function called included."""
    count = 0

    def trace(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # a collection would run other people's callbacks and finalizers in between
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.mark.parametrize("name", HOT)
def test_large_batch_takes_no_more_steps_than_a_small_one(name: str) -> None:
    # Both are longer than a key may be: a shorter body needs no look at the lengths in it.
    small, large = HOT[name](100), HOT[name](2_000)
    small.encode()  # the table of a class's fields is made once
    assert 0 < steps(small.encode) == steps(large.encode)
    decode = type(small).decode
    assert 0 < steps(partial(decode, small.encode())) == steps(partial(decode, large.encode()))


def test_loops_over_records_would_be_counted() -> None:
    many = keys(100)
    assert steps(lambda: [key for key in many if key]) > 90
    assert steps(lambda: sum(1 for _ in many)) > 90
    assert steps(lambda: list(map(lambda key: key[:1], many))) > 90  # noqa: C417
    assert steps(lambda: list(map(len, many))) < 10
