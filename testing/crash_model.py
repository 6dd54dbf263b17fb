"""What every key may hold after a crash, when each has one writer.

    cell = model.cell(key)
    cell.trying(b"new")                  # from here on it may be there
    cell.done(b"new", version)           # … and from here on it must

The one rule: only what was answered is sure. What was asked for and not answered may be there or
not, until all processes are gone and the key has been read again; so meanwhile it is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

ABSENT = (None, 0)


@dataclass(slots=True)
class Cell:
    """One key."""

    sure: tuple[bytes | None, int] = ABSENT
    """Value and version that were acknowledged, or read after all writers were gone."""
    maybe: list[bytes | None] = field(default_factory=list)
    """Later values whose fate is not known; None: that it was deleted."""
    floor: int = 0
    """The highest version that this key has had."""

    @property
    def in_doubt(self) -> bool:
        return bool(self.maybe)

    def trying(self, value: bytes | None) -> None:
        self.maybe.append(value)

    def done(self, value: bytes | None, version: int) -> None:
        self.sure = value, version
        self.floor = max(self.floor, version)
        self.maybe.clear()

    def refused(self) -> None:
        """It certainly had no effect."""
        self.maybe.clear()

    def found(self, value: bytes | None, version: int) -> str:
        """What is wrong with that, or nothing; afterwards it is the truth."""
        wrong = self._judge(value, version)
        self.done(value, version)
        return wrong

    def _judge(self, value: bytes | None, version: int) -> str:
        if (value, version) == self.sure:
            return ""
        found, sure = _show(value, version), _show(*self.sure)
        if value not in self.maybe:
            if value is not None and value == self.sure[0]:
                return f"applied twice: acknowledged {sure}, found {found}"
            later = " or ".join(_show(each, None) for each in self.maybe) or "nothing else"
            return f"lost or brought back: acknowledged {sure}, asked for {later}, found {found}"
        if value is not None and version <= self.floor:
            return f"a version went back: {self.floor} was there before, found {found}"
        return ""


class Model:
    """All keys, and the highest version acknowledged by each shard."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.cells = {key: Cell() for key in keys}
        self.highest: dict[int, int] = {}

    def compare(self, found: dict[bytes, tuple[bytes | None, int]]) -> list[str]:
        """What is wrong with all that is stored, read when nobody can write any more."""
        problems = [f"{key!r} is there, and nobody wrote it" for key in found.keys() - self.cells]
        for key, cell in self.cells.items():
            if wrong := cell.found(*found.get(key, ABSENT)):
                problems.append(f"{key!r}: {wrong}")
        return problems

    def acknowledged(self, shard: int, before: int, version: int) -> str:
        """A write got this version; `before`: the highest of its shard when it was asked for."""
        self.highest[shard] = max(self.highest.get(shard, 0), version)
        if version > before:
            return ""
        return f"shard {shard} gave version {version} after {before} had been acknowledged"


def _show(value: bytes | None, version: int | None) -> str:
    what = "nothing" if value is None else f"{value[:24]!r}"
    return what if version is None or value is None else f"{what} of version {version}"
