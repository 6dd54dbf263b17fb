"""Sizes, durations, addresses and lists: what is accepted, and how the rest is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardnode.node.config import SETTINGS
from shardnode.node.config_kinds import Address, CpuList, Kind, Peer, parse_address, parse_peer
from shardnode.node.config_units import (
    BadValue,
    format_duration_ms,
    format_size,
    parse_duration_ms,
    parse_size,
    shown,
)
from shardnode.wire import limits

KINDS = {type(each.kind).__name__: each.kind for each in SETTINGS.values()}
TOML_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none().map(lambda _: {})
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.dates()
    | st.times(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.integers(0, 1 << 60))
def test_size_is_read_back_as_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 1 << 60))
def test_duration_is_read_back_as_written(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration_ms(duration_ms)) == duration_ms


@given(st.text() | st.from_regex(r"[0-9.]*\s*[A-Za-z]*", fullmatch=True))
def test_any_text_is_a_quantity_or_a_typed_error(text: str) -> None:
    for parse in (parse_size, parse_duration_ms):
        with suppress(BadValue):
            assert parse(text) >= 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("64mib", 64 << 20),
        ("64 MB", 64_000_000),
        ("1.5KiB", 1536),
        ("0B", 0),
        ("4096", 4096),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("500ms", 500), ("1.5s", 1500), ("10m", 600_000), ("7d", 604_800_000)]
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64M", '"64MiB" or "64MB"'),
        ("64 megs", '"64MiB" or "64MB"'),
        ("1.5B", "whole number of bytes"),
        ("-1KiB", "a number and a unit"),
        ("", "a number and a unit"),
        ("9" * 5000 + "B", "a number and a unit"),
        ("٣KiB", "a number and a unit"),
    ],
)
def test_bad_size_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(BadValue, match=re.escape(said)):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("500", "500s or 500ms"),
        ("5S", '"5s"'),
        ("5 sec", '"5s"'),
        ("1.0005s", "whole number of milliseconds"),
        ("10us", "units are ms, s, m, h, d"),
    ],
)
def test_bad_duration_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(BadValue, match=re.escape(said)):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7400", Address("127.0.0.1", 7400)),
        ("db-1.example:0", Address("db-1.example", 0)),
        ("[::1]:7400", Address("::1", 7400)),
        ("[0:0::1]:7400", Address("::1", 7400)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7400",
        "host",
        "host:",
        ":7400",
        "*:7400",
        "host:65536",
        "host:-1",
        "host:٣",
        "host:999999999",
        "::1:7400",
        "[::g]:7400",
        "a b:7400",
        "http://host:80",
        "-h:80",
        "h" * 300 + ":1",
    ],
)
def test_bad_address_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.9.8.7:1", "localhost:1", "[::1]:1"])
def test_own_addresses_are_known(text: str) -> None:
    assert parse_address(text).is_loopback


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.0.0.1.evil.example:1"])
def test_what_others_reach_is_not_taken_for_our_own(text: str) -> None:
    assert not parse_address(text).is_loopback


def test_peer_is_an_id_and_an_address() -> None:
    assert parse_peer("2@127.0.0.1:8400") == Peer(2, Address("127.0.0.1", 8400))


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:8400",
        "0@host:1",
        f"{limits.node_id_max + 1}@host:1",
        "x@host:1",
        "1@host:0",
        "1@0.0.0.0:7400",
        "²@host:1",
        "9" * 5000 + "@host:1",
    ],
)
def test_bad_peer_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_peer(text)


def test_cpus_are_written_as_for_taskset() -> None:
    assert CpuList().from_text("0-3, 6") == (0, 1, 2, 3, 6)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,1", "0-2,1", "-1", "99999", "0-", "0-9999"])
def test_bad_cpus_are_refused(text: str) -> None:
    with pytest.raises(BadValue):
        CpuList().from_text(text)


@settings(max_examples=200)
@given(value=TOML_VALUES)
def test_no_toml_value_gets_past_a_kind_but_as_a_typed_error(value: Any) -> None:
    """Values are dear to draw, so each is shown to all kinds."""
    for name, kind in KINDS.items():
        try:
            read = kind.from_toml(value)
        except BadValue:
            continue
        assert kind.from_toml(kind.to_toml(read)) == read, name


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@given(text=st.text())
def test_no_text_gets_past_a_kind_but_as_a_typed_error(kind: Kind[Any], text: str) -> None:
    try:
        read = kind.from_text(text)
    except BadValue:
        return
    assert kind.from_toml(kind.to_toml(read)) == read


def test_found_value_is_cut_when_it_is_long() -> None:
    assert len(shown("x" * 10_000)) < 100
    assert len(shown(10**5000)) < 100
    assert shown(Path("a")) == "a"
