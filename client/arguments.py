"""What callers pass, turned into what the wire carries.

One rule: a wrong type is a `TypeError`, a wrong value an `InvalidRequest`, and both are raised
before anything is sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Literal

from shardnode.wire import limits
from shardnode.wire.errors import InvalidRequest
from shardnode.wire.kinds import Consistency

Data = bytes | bytearray | memoryview | str
"""What is taken for a key or a value; text is UTF-8."""

Pairs = (
    Mapping[Data, Data] | Mapping[bytes, bytes] | Mapping[str, str] | Iterable[tuple[Data, Data]]
)

Level = Literal["linearizable", "lease", "stale"]

DEFAULT_ADDRESS = "127.0.0.1:7400"
DEFAULT_TIMEOUT_S = 5.0

_LEVELS = {level.name.lower(): level for level in Consistency}


def to_bytes(data: Data, what: str = "key") -> bytes:
    """A key or a value as bytes."""
    if type(data) is bytes:
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"expected a {what} as bytes or str, found {type(data).__name__}")


def to_column(items: Iterable[Data], what: str = "key") -> list[bytes]:
    """Keys or values as bytes; a single one in place of many is a mistake."""
    if isinstance(items, bytes | bytearray | memoryview | str):
        raise TypeError(f"expected many {what}s, found a single one ({type(items).__name__})")
    column = list(items)
    if set(map(type, column)) <= {bytes}:
        return column  # type: ignore[return-value]  # just checked, in C
    return [to_bytes(item, what) for item in column]


def to_columns(pairs: Pairs) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of a mapping or of pairs."""
    if isinstance(pairs, Mapping):
        return to_column(pairs.keys()), to_column(pairs.values(), "value")
    if isinstance(pairs, bytes | bytearray | memoryview | str):
        raise TypeError(f"expected a mapping or pairs, found {type(pairs).__name__}")
    listed = list(pairs)
    if not listed:
        return [], []
    if any(isinstance(pair, str | bytes) or len(pair) != 2 for pair in listed):
        raise TypeError("expected pairs of a key and a value, found something else among them")
    keys, values = zip(*listed, strict=True)
    return to_column(keys), to_column(values, "value")


def to_ttl_ms(ttl: float | timedelta | None, what: str = "ttl") -> int:
    """A time to live as the wire's milliseconds; 0 there means for ever."""
    if ttl is None:
        return 0
    if isinstance(ttl, timedelta):
        seconds = ttl.total_seconds()
    elif isinstance(ttl, int | float) and not isinstance(ttl, bool):
        seconds = float(ttl)
    else:
        raise TypeError(f"expected {what} as seconds or a timedelta, found {type(ttl).__name__}")
    if not 0 < seconds <= limits.ttl_ms_max / 1000:
        raise InvalidRequest(
            f"expected {what} above 0 and up to {limits.ttl_ms_max // 1000} seconds, found"
            f" {seconds:g}; leave it out for what stays"
        )
    return max(1, round(seconds * 1000))


def to_consistency(level: str) -> Consistency:
    """A level of consistency by its name."""
    if level not in _LEVELS:
        raise InvalidRequest(
            f"expected a consistency among {', '.join(_LEVELS)}, found {level!r}; leave it out for"
            " linearizable"
        )
    return _LEVELS[level]


def to_timeout_s(timeout: float | None, default: float) -> float:
    """How long a call may take."""
    if timeout is None:
        return default
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise TypeError(f"expected timeout in seconds, found {type(timeout).__name__}")
    if not timeout > 0:
        raise InvalidRequest(f"expected a timeout above 0 seconds, found {timeout:g}")
    return float(timeout)


def to_endpoints(address: str | Sequence[str] | None) -> tuple[str, ...]:
    """The routers to ask first. None: `SHARDNODE_CONNECT`, else this machine's default port."""
    if address is None:
        address = os.environ.get("SHARDNODE_CONNECT") or DEFAULT_ADDRESS
    if isinstance(address, str):
        address = [part for part in address.replace(",", " ").split() if part]
    endpoints = tuple(dict.fromkeys(map(_to_endpoint, address)))
    if not endpoints:
        raise InvalidRequest("expected at least one address as host:port, found none")
    return endpoints


def _to_endpoint(address: str) -> str:
    if not isinstance(address, str):
        raise TypeError(f"expected an address as host:port, found {type(address).__name__}")
    if address.startswith("ipc://"):
        return address
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"expected an address as host:port, found {address!r}")
    return f"tcp://{host}:{port}"
