"""What a setting can be: a number, a size, an address, a list of peers.

A kind reads a TOML value (`from_toml`) or the text of a flag or an environment variable
(`from_text`), and gives back what a TOML file would hold (`to_toml`).

The one rule: a kind returns a value that is right by itself, or raises `BadValue`; nothing else
escapes, whatever it is given. What several settings must be together is for `config_check`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from shardnode.node.config_units import (
    BadValue,
    format_duration_ms,
    format_size,
    parse_duration_ms,
    parse_size,
    shown,
)
from shardnode.wire import limits
from shardnode.wire.ports import PORT_MAX

T = TypeVar("T")
Toml = int | bool | str | list[int] | list[str]

CPU_MAX = 4_095  # the most that Linux can be built for
_HOST_CHARS_MAX = 253
_TEXT_CHARS_MAX = 1_024
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_LOOPBACK = re.compile(r"127(\.[0-9]{1,3}){3}")
_CPU_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_NUMBER = re.compile(r"[+-]?[0-9][0-9_]{0,40}")


class Address(NamedTuple):
    """A host and a port. Port 0 asks the system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def plus(self, offset: int) -> Address:
        """A neighbouring port of the same host. Port 0 stays 0: any free one."""
        return Address(self.host, self.port + offset if self.port else 0)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in ("localhost", "::1") or bool(_LOOPBACK.fullmatch(self.host))

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of this machine, and so names none."""
        return self.host in ("0.0.0.0", "::")


class Peer(NamedTuple):
    """A founding member: its node id, and the address that the others know it by."""

    id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.id}@{self.address}"


def parse_address(text: str, *, port_min: int = 0) -> Address:
    """`127.0.0.1:7400`, `db-1.example:7400` or `[::1]:7400`."""
    expected = "HOST:PORT"
    host, colon, port_text = text.rpartition(":")
    if not colon or not port_text:
        raise BadValue(expected, shown(text), "add a port, as in 127.0.0.1:7400")
    if not port_text.isascii() or not port_text.isdecimal() or len(port_text) > 5:
        raise BadValue(expected, shown(text), f"a port is a number from {port_min} to {PORT_MAX}")
    port = int(port_text)
    if not port_min <= port <= PORT_MAX:
        raise BadValue(f"a port from {port_min} to {PORT_MAX}", str(port))
    return Address(_parse_host(host, text), port)


def parse_peer(text: str) -> Peer:
    """`2@127.0.0.1:8400`."""
    id_text, at, address = text.partition("@")
    if not at or not id_text.isascii() or not id_text.isdecimal() or len(id_text) > 20:
        raise BadValue("ID@HOST:PORT", shown(text), "begin with the node's id, as in 1@host:7400")
    if not 1 <= int(id_text) <= limits.node_id_max:
        raise BadValue(f"a node id from 1 to {limits.node_id_max}", id_text)
    peer = Peer(int(id_text), parse_address(address, port_min=1))
    if peer.address.is_wildcard:
        remedy = "name the address that the other nodes reach it at"
        raise BadValue("an address of one machine", shown(text), remedy)
    return peer


def _parse_host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError as error:
            raise BadValue("an IPv6 address in brackets", shown(text), str(error)) from None
    if ":" in host:
        raise BadValue("HOST:PORT", shown(text), "write an IPv6 address in brackets: [::1]:7400")
    if host in ("", "*"):
        raise BadValue("HOST:PORT", shown(text), "for every address of this machine say 0.0.0.0")
    if len(host) > _HOST_CHARS_MAX or not _HOST_NAME.fullmatch(host):
        raise BadValue("a host name or an IP address", shown(host))
    return host


class Kind(Generic[T]):
    """How one sort of setting is read and written."""

    noun = ""

    @property
    def expected(self) -> str:
        """For messages: what a value must be."""
        return self.noun

    def from_toml(self, value: object) -> T:
        raise NotImplementedError

    def from_text(self, text: str) -> T:
        """By default the text is what would stand in a TOML file, quotes and all."""
        try:
            values = tomllib.loads(f"value = {text}")
        except (ValueError, RecursionError):
            values = {}
        if values.keys() != {"value"}:
            raise BadValue(self.expected, shown(text), "write it as in a TOML file")
        return self.from_toml(values["value"])

    def to_toml(self, value: T) -> Toml:
        raise NotImplementedError

    def located(self, value: T, base: Path) -> T:  # noqa: ARG002
        """The value, with relative paths taken from `base`."""
        return value

    def wrong_type(self, value: object, remedy: str = "") -> BadValue:
        names = {bool: "true or false", int: "a number", float: "a fraction", str: "text"}
        names |= {list: "a list", dict: "a table"}
        name = names.get(type(value), "a date or time")
        found = name if isinstance(value, list | dict) else f"{shown(value)} ({name})"
        return BadValue(self.expected, found, remedy)


@dataclass(frozen=True)
class Integer(Kind[int]):
    """A whole number within bounds."""

    low: int
    high: int

    @property
    def expected(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def from_toml(self, value: object) -> int:
        if type(value) is not int:
            raise self.wrong_type(value, "write it without quotes" if _is_number(value) else "")
        return self._bounded(value)

    def from_text(self, text: str) -> int:
        if not _is_number(text):
            raise BadValue(self.expected, shown(text))
        return self._bounded(int(text))

    def to_toml(self, value: int) -> int:
        return value

    def _bounded(self, value: int) -> int:
        if not self.low <= value <= self.high:
            raise BadValue(self.expected, shown(value))
        return value


def _is_number(value: object) -> bool:
    return isinstance(value, str) and bool(_NUMBER.fullmatch(value)) and "__" not in f"{value}_"


class Switch(Kind[bool]):
    """On or off."""

    noun = "true or false"

    def from_toml(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise self.wrong_type(value)
        return value

    def to_toml(self, value: bool) -> bool:
        return value


@dataclass(frozen=True)
class Quantity(Kind[int]):
    """What sizes and durations share: bounds, and a unit in the text."""

    low: int
    high: int

    @property
    def expected(self) -> str:
        return f"{self.noun} from {self.to_toml(self.low)} to {self.to_toml(self.high)}"

    def from_toml(self, value: object) -> int:
        if not isinstance(value, str):
            raise self.wrong_type(value, "write a number and a unit, in quotes")
        return self.from_text(value)

    def from_text(self, text: str) -> int:
        return self._bounded(self.parse(text), text)

    def parse(self, text: str) -> int:
        raise NotImplementedError

    def _bounded(self, value: int, found: object) -> int:
        if not self.low <= value <= self.high:
            raise BadValue(self.expected, shown(found))
        return value


class Size(Quantity):
    """Bytes: `"64MiB"`, or a bare number of bytes."""

    noun = "a size"

    def from_toml(self, value: object) -> int:
        return self._bounded(value, value) if type(value) is int else super().from_toml(value)

    def parse(self, text: str) -> int:
        return parse_size(text)

    def to_toml(self, value: int) -> str:
        return format_size(value)


class DurationMs(Quantity):
    """Milliseconds, written `"500ms"` or `"5s"`."""

    noun = "a duration"

    def parse(self, text: str) -> int:
        return parse_duration_ms(text)

    def to_toml(self, value: int) -> str:
        return format_duration_ms(value)


class TextKind(Kind[T]):
    """What stands in quotes in a file, and without them on the command line."""

    def from_toml(self, value: object) -> T:
        if not isinstance(value, str):
            raise self.wrong_type(value, "write it in quotes")
        return self.from_text(value)

    def to_toml(self, value: T) -> str:
        return str(value)


class Text(TextKind[str]):
    """Anything that can be printed on one line."""

    noun = f"text of at most {_TEXT_CHARS_MAX} characters on one line"

    def from_text(self, text: str) -> str:
        if len(text) > _TEXT_CHARS_MAX or not text.isprintable():
            raise BadValue(self.expected, shown(text))
        return text


class Name(TextKind[str]):
    """A name that is safe in files, labels and messages."""

    noun = f"a name of letters, digits, `.`, `_` and `-`, at most {limits.name_bytes_max}"

    def from_text(self, text: str) -> str:
        if not re.fullmatch(rf"[A-Za-z0-9._-]{{1,{limits.name_bytes_max}}}", text):
            raise BadValue(self.expected, shown(text))
        return text


@dataclass(frozen=True)
class Choice(TextKind[str]):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(f'"{word}"' for word in self.words)

    def from_text(self, text: str) -> str:
        if text not in self.words:
            raise BadValue(self.expected, shown(text))
        return text


@dataclass(frozen=True)
class HostPort(TextKind[Address]):
    """An address; for one to connect to, port 0 means nothing."""

    port_min: int = 0
    noun = "HOST:PORT"

    def from_text(self, text: str) -> Address:
        return parse_address(text, port_min=self.port_min)


class FilePath(TextKind[Path]):
    """A file or directory; `~` is the home directory."""

    noun = "a path"

    def from_text(self, text: str) -> Path:
        if not text or "\0" in text:
            raise BadValue(self.expected, shown(text), "name a file or directory")
        try:
            text.encode("utf-8")  # what the effective configuration is written in
            return Path(text).expanduser()
        except UnicodeEncodeError:
            raise BadValue(self.expected, shown(text), "a path must be valid UTF-8") from None
        except RuntimeError as error:  # `~somebody` who does not exist
            raise BadValue(self.expected, shown(text), str(error)) from None

    def to_toml(self, value: Path) -> str:
        """A relative path begins with a dot, so that it is seen to be one."""
        plain = value.is_absolute() or value.parts[:1] in ((), ("..",))
        return str(value) if plain else f"./{value}"

    def located(self, value: Path, base: Path) -> Path:
        return Path(os.path.normpath(base / value))


class CpuList(TextKind[tuple[int, ...]]):
    """`0-3,6`, as taskset and the kernel write it."""

    noun = 'CPUs such as "0-3,6"'

    def from_text(self, text: str) -> tuple[int, ...]:
        cpus: list[int] = []
        for part in text.split(","):
            match = _CPU_RANGE.fullmatch(part.strip())
            if match is None:
                raise BadValue(self.expected, shown(text), "give numbers or ranges, with commas")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or last > CPU_MAX:
                remedy = f"a range goes up, and a CPU is at most {CPU_MAX}"
                raise BadValue(self.expected, shown(text), remedy)
            cpus += range(first, last + 1)
        if len(set(cpus)) != len(cpus):
            raise BadValue(self.expected, shown(text), "name every CPU once")
        return tuple(cpus)

    def to_toml(self, value: tuple[int, ...]) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True)
class OrWord(TextKind[T | str]):
    """A word with a meaning of its own, or else what `kind` reads."""

    words: tuple[str, ...]
    kind: TextKind[T]

    @property
    def expected(self) -> str:
        return f"{Choice(self.words).expected} or {self.kind.expected}"

    def from_text(self, text: str) -> T | str:
        if text in self.words:
            return text
        try:
            return self.kind.from_text(text)
        except BadValue as bad:
            raise BadValue(self.expected, bad.found, bad.remedy) from None

    def to_toml(self, value: T | str) -> str:
        return value if isinstance(value, str) else self.kind.to_toml(value)

    def located(self, value: T | str, base: Path) -> T | str:
        return value if isinstance(value, str) else self.kind.located(value, base)


class ShardList(Kind[tuple[int, ...]]):
    """Shard numbers, each once; kept in order."""

    noun = f"a list of shard numbers from 0 to {limits.shard_id_max}"

    def from_toml(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise self.wrong_type(value, "write it as [0, 1, 2]")
        for item in value:
            if type(item) is not int or not 0 <= item <= limits.shard_id_max:
                raise BadValue(self.expected, f"{shown(item)} in it")
        if repeated := sorted({item for item in value if value.count(item) > 1}):
            raise BadValue("every shard once", f"{repeated[0]} twice", "leave one of them out")
        return tuple(sorted(value))

    def to_toml(self, value: tuple[int, ...]) -> list[int]:
        return list(value)


class PeerList(Kind[tuple[Peer, ...]]):
    """Founding members, each id and each address once."""

    noun = 'a list of "ID@HOST:PORT"'

    def from_toml(self, value: object) -> tuple[Peer, ...]:
        if not isinstance(value, list):
            raise self.wrong_type(value, 'write it as ["1@host:7400", "2@other:7400"]')
        if len(value) > limits.nodes_max:
            raise BadValue(f"at most {limits.nodes_max} peers", str(len(value)))
        peers: dict[int, Peer] = {}
        for item in value:
            if not isinstance(item, str):
                raise BadValue(self.expected, f"{shown(item)} in it")
            peer = parse_peer(item)
            if peer.id in peers:
                found = f"{peers[peer.id]} and {peer}"
                raise BadValue("every node id once", found, "give each node its own id")
            if same := [other for other in peers.values() if other.address == peer.address]:
                found = f"{same[0]} and {peer}"
                raise BadValue("every address once", found, "give each node its own address")
            peers[peer.id] = peer
        return tuple(peers[id_] for id_ in sorted(peers))

    def to_toml(self, value: tuple[Peer, ...]) -> list[str]:
        return [str(peer) for peer in value]
