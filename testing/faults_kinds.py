"""What is injected for a failure, and by whom.

    Cases    tests of the tree, by file and function; each case that ran counts
    Seeds    the simulator, with half of its faults of these kinds; each such fault counts
    Kills    crash cycles: each time one of these failpoints sprang
    Soak     a real cluster: each time one of these faults came

The one rule: here are words and no results. What came of an injection is found out by running it.
"""

from __future__ import annotations

from typing import NamedTuple


class Cases(NamedTuple):
    """`file::test`, below tests/."""

    names: tuple[str, ...]


class Seeds(NamedTuple):
    """Kinds of `sim/faults.py`."""

    kinds: tuple[str, ...]


class Kills(NamedTuple):
    """Beginnings of names of failpoints or of signals."""

    points: tuple[str, ...]


class Soak(NamedTuple):
    """Names in `soak_faults.py`."""

    faults: tuple[str, ...]


Source = Cases | Seeds | Kills | Soak


class Failure(NamedTuple):
    """One line of the table."""

    number: int
    what: str
    how: str
    sources: tuple[Source, ...]


def tests(folder: str, *names: str) -> Cases:
    return Cases(tuple(f"{folder}/{name}" if folder else name for name in names))
