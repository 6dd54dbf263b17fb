"""What `doctor` says: about what, how bad it is, what was found, and what to do.

The one rule: a problem names what to do; what needs nothing done is `ok`, or a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding."""

    about: str
    state: State
    found: str
    do: str = ""


def ok(about: str, found: str) -> Advice:
    return Advice(about, "ok", found)


def note(about: str, found: str, do: str = "") -> Advice:
    return Advice(about, "note", found, do)


def problem(about: str, found: str, do: str) -> Advice:
    return Advice(about, "problem", found, do)
