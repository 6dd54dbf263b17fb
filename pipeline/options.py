"""What a user may say to the data source: every option, checked, with its default.

One rule: an option that is not known, or means nothing where it is given, is an error that says so.
Spark hands over options without regard to case, and some of its own among them; those are dropped.

    what                 option
    ---------------------------------------------------------------------------------------------
    where                connect | path
    of keys              prefix, start, end, keyEncoding
    of topics            topic (subscribe), startingOffsets, endingOffsets, failOnDataLoss, group
    of changes           changes, startingOffsets, failOnDataLoss, prefix, keyEncoding
    how                  access (mode), consistency, minPartitions, maxRecordsPerPartition,
                         maxRowsPerTrigger (maxOffsetsPerTrigger), timeout
    of writing           ttl, compression, batchRows, identity
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

from shardnode.wire.errors import InvalidRequest

Use = Literal["read", "readStream", "write", "writeStream"]
Offsets = str | Mapping[int, int]
"""`earliest`, `latest`, a time, how long ago; or an offset for each partition."""

DEFAULT_CONNECT = "127.0.0.1:7400"
EARLIEST = -2
LATEST = -1

ALIASES = {"subscribe": "topic", "mode": "access", "maxoffsetspertrigger": "maxrowspertrigger"}

OF_SPARK = frozenset({"checkpointlocation", "queryname", "__useSparkDefaults".lower()})
"""What Spark hands over beside ours."""

_AGO = re.compile(r"-\d{1,15}(ms|[smhd])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Options:
    """All options as values; one that was not given has its default."""

    connect: tuple[str, ...] = (DEFAULT_CONNECT,)
    path: str | None = None
    topic: str | None = None
    changes: bool = False
    prefix: bytes = b""
    start: bytes | None = None
    end: bytes | None = None
    startingoffsets: Offsets | None = None
    endingoffsets: Offsets | None = None
    minpartitions: int = 0
    maxrecordsperpartition: int = 0
    maxrowspertrigger: int = 0
    failondataloss: bool = True
    group: str | None = None
    consistency: Literal["linearizable", "lease", "stale"] = "linearizable"
    access: Literal["auto", "local", "remote"] = "auto"
    timeout: float = 30.0
    """Seconds that a shard may be out of reach."""
    ttl: float | None = None
    compression: Literal["zstd"] | None = None
    batchrows: int = 0
    """Rows in one request; 0: as many as are good."""
    identity: str | None = None
    """The name of a batch write to a topic: written again under it, the same rows of the same
    partitions of Spark are appended once."""


NAMES = {
    "connect": "connect",
    "path": "path",
    "topic": "topic",
    "changes": "changes",
    "prefix": "prefix",
    "start": "start",
    "end": "end",
    "keyencoding": "keyEncoding",
    "startingoffsets": "startingOffsets",
    "endingoffsets": "endingOffsets",
    "minpartitions": "minPartitions",
    "maxrecordsperpartition": "maxRecordsPerPartition",
    "maxrowspertrigger": "maxRowsPerTrigger",
    "failondataloss": "failOnDataLoss",
    "group": "group",
    "consistency": "consistency",
    "access": "access",
    "timeout": "timeout",
    "ttl": "ttl",
    "compression": "compression",
    "batchrows": "batchRows",
    "identity": "identity",
}
"""Every option as people write it."""

_ONLY_WRITING = frozenset({"ttl", "compression", "batchrows", "identity"})
_WRITING = frozenset({"connect", "topic", "timeout"}) | _ONLY_WRITING
_READING = frozenset(NAMES) - _ONLY_WRITING


def parse(given: Mapping[str, str]) -> Options:
    """The options in what Spark hands over; raises `InvalidRequest`. What a use does not know is
    found by `check`, because a source is made before Spark tells what for."""
    said = _names(given)
    encoding = said.pop("keyencoding", "utf8")
    found: dict[str, Any] = {}
    for name, text in said.items():
        try:
            found[name] = _KEYS[name](text, encoding) if name in _KEYS else _VALUES[name](text)
        except (ValueError, binascii.Error) as error:
            raise InvalidRequest(
                f"option {NAMES[name]}: expected {error}, found {text!r}"
            ) from None
    options = Options(**found)
    _agree(options, frozenset(said))
    return options


def check(given: Mapping[str, str], use: Use) -> None:
    """Raise `InvalidRequest` for an option that means nothing for this use."""
    known = _WRITING if use.startswith("write") else _READING
    wrong = sorted(NAMES[name] for name in _names(given) if name not in known | {"keyencoding"})
    if wrong:
        names = ", ".join(sorted(NAMES[name] for name in known))
        doing = "writing" if use.startswith("write") else "reading"
        raise InvalidRequest(f"{', '.join(wrong)}: no option when {doing}; known are {names}")
    if use == "writeStream" and "identity" in _names(given):
        raise InvalidRequest("identity: no option of a stream, whose checkpoint is its identity")


def _names(given: Mapping[str, str]) -> dict[str, str]:
    """By our lower-case names; an alias beside its name is an error, as is a stranger."""
    found: dict[str, str] = {}
    for name, text in given.items():
        lower = name.lower()
        if lower in OF_SPARK:
            continue
        own = ALIASES.get(lower, lower)
        if own not in NAMES:
            near = get_close_matches(own, [*NAMES, *ALIASES], 1)
            hint = f"; did you mean {NAMES[ALIASES.get(near[0], near[0])]}?" if near else ""
            raise InvalidRequest(
                f"unknown option {name!r}{hint} Known are {', '.join(sorted(NAMES.values()))}"
            )
        if own in found and found[own] != text:
            raise InvalidRequest(f"option {NAMES[own]} is given twice, with two values")
        found[own] = text
    return found


def _agree(options: Options, said: frozenset[str]) -> None:
    """What cannot go together."""
    if options.path is not None and "connect" in said:
        raise InvalidRequest("expected connect, a running node, or path, its files; not both")
    if options.topic is not None and options.changes:
        raise InvalidRequest("expected topic, or changes, which are those of keys; not both")
    of_keys = said & {"prefix", "start", "end"}
    if options.topic is not None and of_keys:
        names = ", ".join(sorted(NAMES[name] for name in of_keys))
        raise InvalidRequest(f"{names}: no option of a topic; filter the frame by its key column")
    if options.path is not None and options.changes:
        raise InvalidRequest("changes are read from a running node: give connect instead of path")


# -- values -------------------------------------------------------------------------------------


def _text(text: str) -> str:
    if not text:
        raise ValueError("some text")
    return text


def _connect(text: str) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("HOST:PORT, or some with commas between")
    return addresses


def _path(text: str) -> str:
    if not text:
        raise ValueError("a directory")
    return os.path.abspath(text.removeprefix("file://"))


def _flag(text: str) -> bool:
    flags = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in flags:
        raise ValueError("true or false")
    return flags[text.lower()]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError("a whole number from 1 up")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError("a number of seconds above 0")
    return seconds


def _one_of(*words: str) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(" or ".join(words))
        return text.lower()

    return choose


def _compression(text: str) -> str | None:
    return None if _one_of("zstd", "none")(text) == "none" else "zstd"


def _offsets(text: str) -> Offsets:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    if not text.lstrip().startswith("{"):
        if not (_AGO.fullmatch(text) or text[:1].isdigit()):
            raise ValueError(
                'earliest, latest, JSON such as {"0": 23, "1": -2}, a time such as'
                " 2026-01-31T12:00:00Z, or how long ago such as -10m"
            )
        return text
    try:
        found = json.loads(text)
        offsets = {int(partition): offset for partition, offset in found.items()}
    except (ValueError, AttributeError):
        offsets = {-1: None}
    if any(p < 0 or type(o) is not int or o < EARLIEST for p, o in offsets.items()):
        raise ValueError(
            'JSON of partitions and offsets such as {"0": 23, "1": -2} (-2 earliest, -1 latest)'
        )
    return offsets


def _key(text: str, encoding: str) -> bytes:
    if encoding == "utf8":
        return text.encode()
    try:
        return bytes.fromhex(text) if encoding == "hex" else base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"a key in {encoding}, as keyEncoding says") from None


def _encoding_first(text: str, encoding: str) -> bytes:
    if encoding not in ("utf8", "hex", "base64"):
        raise InvalidRequest(
            f"option keyEncoding: expected utf8, hex or base64, found {encoding!r}"
        )
    return _key(text, encoding)


_KEYS: dict[str, Callable[[str, str], bytes]] = dict.fromkeys(
    ("prefix", "start", "end"), _encoding_first
)

_VALUES: dict[str, Callable[[str], Any]] = {
    "connect": _connect,
    "path": _path,
    "topic": _text,
    "changes": _flag,
    "startingoffsets": _offsets,
    "endingoffsets": _offsets,
    "minpartitions": _count,
    "maxrecordsperpartition": _count,
    "maxrowspertrigger": _count,
    "failondataloss": _flag,
    "group": _text,
    "consistency": _one_of("linearizable", "lease", "stale"),
    "access": _one_of("auto", "local", "remote"),
    "timeout": _seconds,
    "ttl": _seconds,
    "compression": _compression,
    "batchrows": _count,
    "identity": _text,
}

assert {field.name for field in fields(Options)} | {"keyencoding"} == set(NAMES)
