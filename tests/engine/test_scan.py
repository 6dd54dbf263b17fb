"""Pages of a scan against a sorted dict: any page size, direction and bounds, at any time."""

from __future__ import annotations

from collections.abc import Callable
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.shard.effects import Effects
from shardnode.storage.engine import Engine, EngineOptions, LmdbEngine, MemoryEngine
from shardnode.wire.replies import Page
from shardnode.wire.requests import DeleteMany, PutMany, Scan
from tests.engine.kit import SMALL, Log

KEYS = st.binary(min_size=1, max_size=3)
BOUNDS = st.none() | st.binary(max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(KEYS, min_size=1, max_size=30, unique=True)),
        st.tuples(st.just("delete"), st.lists(KEYS, min_size=1, max_size=20, unique=True)),
        st.tuples(st.sampled_from(["begin", "slice", "flush", "scan"]), st.just([b"x"])),
    ),
    max_size=12,
)
SCANS = st.builds(
    Scan,
    start=BOUNDS,
    end=BOUNDS,
    after=BOUNDS,
    limit=st.integers(0, 7),
    page_bytes=st.integers(0, 30),
    reverse=st.booleans(),
    keys_only=st.booleans(),
)


def play(log: Log, steps: list[tuple[str, list[bytes]]]) -> dict[bytes, tuple[bytes, int]]:
    """Bring a machine into some state in the middle of a flush; what it should hold."""
    model: dict[bytes, tuple[bytes, int]] = {}
    for what, keys in steps:
        machine = log.machine
        if what == "put":
            version = log.do(PutMany(keys, [key * 2 for key in keys])).version
            model.update((key, (key * 2, version)) for key in keys)
        elif what == "delete":
            log.do(DeleteMany(keys))
            for key in keys:
                model.pop(key, None)
        elif what == "begin" and not machine.flushing:
            machine.begin_flush(b"")
        elif what == "slice" and machine.flushing:
            machine.flush_slice(4)
        elif what == "flush":
            machine.flush(b"%d" % len(log.entries))
        elif what == "scan":
            machine.scan(Scan())
    return model


def expected_keys(model: dict[bytes, tuple[bytes, int]], ask: Scan) -> list[bytes]:
    keys = sorted(model, reverse=ask.reverse)
    if ask.start is not None:
        keys = [key for key in keys if key >= ask.start]
    if ask.end is not None:
        keys = [key for key in keys if key < ask.end]
    if ask.after is not None:
        after = ask.after
        keys = [key for key in keys if (key < after if ask.reverse else key > after)]
    return keys


def all_pages(effects: Effects, ask: Scan) -> list[Page]:
    pages = []
    while True:
        page = effects.scan(ask)
        page.encode()
        pages.append(page)
        if page.next is None:
            return pages
        ask = Scan(
            ask.start,
            ask.end,
            page.next,
            ask.limit,
            ask.page_bytes,
            ask.reverse,
            ask.keys_only,
        )


def check(effects: Effects, model: dict[bytes, tuple[bytes, int]], ask: Scan) -> None:
    pages = all_pages(effects, ask)
    keys = [key for page in pages for key in page.keys]
    assert keys == expected_keys(model, ask)
    assert [v for page in pages for v in page.versions] == [model[key][1] for key in keys]
    values = [value for page in pages for value in page.values]
    assert values == ([] if ask.keys_only else [model[key][0] for key in keys])
    for page in pages[:-1]:
        count = len(page.keys)
        size = sum(map(len, page.keys)) + sum(map(len, page.values))
        last = len(page.keys[-1]) * (1 if ask.keys_only else 3)
        full = ask.limit and count == ask.limit
        assert full or (ask.page_bytes and size >= ask.page_bytes)
        assert not ask.limit or count <= ask.limit
        assert not ask.page_bytes or size - last < ask.page_bytes
    assert pages[-1].keys or len(pages) == 1


@given(STEPS, SCANS)
def test_pages_give_every_key_once_in_memory(
    steps: list[tuple[str, list[bytes]]], ask: Scan
) -> None:
    log = Log(Effects(MemoryEngine(SMALL)))
    check(log.machine, play(log, steps), ask)


@given(STEPS, SCANS)
@settings(max_examples=60)
def test_pages_give_every_key_once_in_files(
    steps: list[tuple[str, list[bytes]]], ask: Scan
) -> None:
    with TemporaryDirectory() as directory:
        log = Log(Effects(LmdbEngine(directory, SMALL)))
        check(log.machine, play(log, steps), ask)
        log.machine.close()


@pytest.mark.parametrize("reverse", [False, True])
def test_long_scan_in_the_middle_of_a_flush(
    new_engine: Callable[..., Engine], reverse: bool
) -> None:
    log = Log(Effects(new_engine(EngineOptions(map_bytes=1 << 24))))
    model: dict[bytes, tuple[bytes, int]] = {}
    for start in range(0, 9_000, 1_000):
        keys = [b"%05d" % (number * 7_919 % 9_000) for number in range(start, start + 1_000)]
        version = log.do(PutMany(keys, keys)).version
        model.update((key, (key, version)) for key in keys)
        if start in (2_000, 5_000):
            log.machine.flush(b"")
    log.machine.begin_flush(b"")
    log.machine.flush_slice(100)
    gone = sorted(model)[1_000:7_000]
    for start in range(0, 6_000, 1_000):
        log.do(DeleteMany(gone[start : start + 1_000]))
    for key in gone:
        del model[key]
    for limit in (0, 1_000, 333):
        check(log.machine, model, Scan(limit=limit, reverse=reverse))
        log.machine.flush_slice(100)
    pages = all_pages(log.machine, Scan(start=gone[0], end=gone[-1], reverse=reverse))
    assert [(len(page.keys), page.next) for page in pages] == [(0, None)]


def test_page_has_at_least_one_entry_however_large(log: Log) -> None:
    log.do(PutMany([b"a", b"b"], [bytes(2_000_000), bytes(2_000_000)]))
    page = log.machine.scan(Scan())
    assert (page.keys, page.next) == ((b"a",), b"a")
