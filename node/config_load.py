"""Where settings come from: flags, the environment, a file, the defaults.

The one rule: the first of these that names a setting decides it, and `origins` remembers which it
was. Whatever a file or a variable holds, the outcome is a complete `Config` or one `ConfigError`
that lists every problem found; nothing else escapes.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from shardnode.node.config import SECTIONS, SETTINGS, Config, Setting
from shardnode.node.config_check import findings
from shardnode.node.config_units import BadValue, shown
from shardnode.wire.errors import InvalidRequest

FILE_BYTES_MAX = 1 << 20

FLAGS = {
    "shards": "sharding.shards",
    "data": "node.data",
    "listen": "node.listen",
    "node_id": "node.id",
    "peer": "cluster.peers",
    "join": "cluster.join",
    "http": "http.listen",
}
"""Flag of `shardnode start`, as a Python name → the setting that it sets."""

Flag = str | int | Sequence[str] | None

_WORD = r"""["']?[A-Za-z0-9_-]+["']?"""
_SECTION_LINE = re.compile(rf"\s*\[+\s*({_WORD})\s*\]+")
_KEY_LINE = re.compile(rf"\s*((?:{_WORD}\s*\.\s*)?{_WORD})\s*=")


class Origin(NamedTuple):
    """Who decided a setting; a higher rank wins."""

    rank: int
    name: str


DEFAULT = Origin(0, "default")
_FILE, _ENVIRONMENT, _FLAG = 1, 2, 3


class Problem(NamedTuple):
    """One thing wrong: where it stands, which setting, and what about it."""

    where: str
    path: str
    detail: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class ConfigError(InvalidRequest):
    """A configuration that cannot be used; `problems` has all that was found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems, "a configuration without problems is no error"
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and who decided each of its settings, by path."""

    config: Config
    origins: Mapping[str, Origin]


def load_config(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Flag] | None = None,
    folder: Path | None = None,
) -> Loaded:
    """The configuration of a node. `flags` has names of FLAGS; one that is None was not given.

    Relative paths of the file are relative to it; all others to `folder`, by default the working
    directory.
    """
    loading = _Loading(folder or Path.cwd())
    if file is not None:
        loading.take_file(file)
    loading.take_environment(environ or {})
    loading.take_flags(flags or {})
    return loading.finish()


class _Loading:
    """One load: what was decided so far, and every problem met."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.origins = dict.fromkeys(SETTINGS, DEFAULT)
        self.values: dict[str, Any] = {
            path: each.kind.located(each.default, folder) for path, each in SETTINGS.items()
        }
        self.problems: list[Problem] = []

    def take_file(self, file: Path) -> None:
        try:
            text = read_text(file)
            tree = parse_toml(text)
        except BadValue as bad:
            line = re.search(r"\(at line (\d+),", bad.remedy)
            where = f"{file}:{line[1]}" if line else str(file)
            raise ConfigError([Problem(where, "", str(bad))]) from None
        lines = dict(_lines(text))
        base = Path(os.path.abspath(file)).parent
        for path, value in _leaves(tree):
            where = f"{file}:{lines[path]}" if path in lines else str(file)
            each = SETTINGS.get(path)
            if each is None:
                self.problems.append(Problem(where, path, _unknown(path, value)))
            else:
                self._decide(each, value, Origin(_FILE, where), base)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        for each in SETTINGS.values():
            if each.variable in environ:
                origin = Origin(_ENVIRONMENT, each.variable)
                self._decide(each, _Words(environ[each.variable]), origin, self.folder)

    def take_flags(self, flags: Mapping[str, Flag]) -> None:
        for flag, given in flags.items():
            if given is None or given == ():
                continue
            value = _Words(str(given)) if isinstance(given, str | int) else list(given)
            origin = Origin(_FLAG, f"--{flag.replace('_', '-')}")
            self._decide(SETTINGS[FLAGS[flag]], value, origin, self.folder)

    def finish(self) -> Loaded:
        if self.problems:
            raise ConfigError(self.problems)
        self._turn_sharding_on()
        config = self._config()
        own = [peer for peer in config.cluster.peers if peer.id == config.node.id]
        if own and self.origins["node.listen"] is DEFAULT:
            config = replace(config, node=replace(config.node, listen=own[0].address))
            self.origins["node.listen"] = self.origins["cluster.peers"]
        problems = [Problem(self._where(path), path, str(bad)) for path, bad in findings(config)]
        if problems:
            raise ConfigError(problems)
        return Loaded(config, self.origins)

    def _decide(self, each: Setting, value: object, origin: Origin, base: Path) -> None:
        kind = each.kind
        try:
            if isinstance(value, _Words):
                read = kind.from_text(value.text)
            else:
                read = kind.from_toml(value)
        except BadValue as bad:
            self.problems.append(Problem(origin.name, each.path, str(bad)))
            return
        self.values[each.path] = kind.located(read, base)
        self.origins[each.path] = origin

    def _turn_sharding_on(self) -> None:
        """Who asks for a number of shards wants sharding, unless something said beside it or
        above it that it is off."""
        shards = self.origins["sharding.shards"]
        if shards.rank > self.origins["sharding.enabled"].rank:
            self.values["sharding.enabled"] = True
            self.origins["sharding.enabled"] = shards

    def _config(self) -> Config:
        parts: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for each in SETTINGS.values():
            parts[each.section][each.attribute] = self.values[each.path]
        return Config(**{section: SECTIONS[section](**part) for section, part in parts.items()})

    def _where(self, path: str) -> str:
        origin = self.origins[path]
        return "" if origin is DEFAULT else origin.name


class _Words(NamedTuple):
    """The text of a flag or a variable, which a kind reads otherwise than a TOML value."""

    text: str


def read_text(file: Path) -> str:
    """The text of a configuration file, or `BadValue`."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        remedy = "correct the path, or make a file with `shardnode config init`"
        raise BadValue("a configuration file", "none of that name", remedy) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadValue("a readable file", reason, "check the path and its permissions") from None
    if len(data) > FILE_BYTES_MAX:
        raise BadValue(f"at most {FILE_BYTES_MAX} bytes", "more", "is this the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte {data[error.start]:#04x}"
        raise BadValue("UTF-8", found, f"save the file as UTF-8 (at line {line}, …)") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tree of a TOML text, or `BadValue`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadValue("TOML", "something else", str(error)) from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise BadValue("TOML within reason", type(error).__name__, str(error)) from None


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Every `section.key` with its value; what is not inside a known section stands alone."""
    for name, part in tree.items():
        if name in SECTIONS and isinstance(part, dict):
            yield from ((f"{name}.{key}", value) for key, value in part.items())
        else:
            yield name, part


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Which line a section or a key stands on. A guess: tomllib keeps no positions."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _SECTION_LINE.match(line):
            section = header[1].strip("\"'")
            yield section, number
        elif key := _KEY_LINE.match(line):
            name = re.sub(r"""["'\s]""", "", key[1])
            yield f"{section}.{name}" if section else name, number


def _unknown(path: str, value: object) -> str:
    """What to say about a name that is no setting: the nearest one that is."""
    from difflib import get_close_matches

    section, dot, key = path.rpartition(".")
    if not dot:
        if path in SECTIONS:
            return str(BadValue(f"a section [{path}]", shown(value)))
        near = get_close_matches(path, SECTIONS, n=1)
        homes = [each for each in SETTINGS.values() if each.key == path]
        if homes and not isinstance(value, dict):
            return f"unknown key; did you mean `{path}` in section [{homes[0].section}]?"
        known = ", ".join(SECTIONS)
        hint = f"did you mean [{near[0]}]?" if near else f"the sections are {known}"
        return f"unknown {'section' if isinstance(value, dict) else 'key'}; {hint}"
    keys = [each.key for each in SETTINGS.values() if each.section == section]
    if near := get_close_matches(key, keys, n=1):
        return f"unknown key; did you mean `{near[0]}`?"
    if homes := [each for each in SETTINGS.values() if each.key == key]:
        return f"unknown key; did you mean `{key}` in section [{homes[0].section}]?"
    return f"unknown key; section [{section}] has {', '.join(keys)}"
