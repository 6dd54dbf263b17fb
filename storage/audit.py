"""What a look at files finds, in words, and how far it has come.

The one rule: a finding says where, what was expected and found there, and what that means for
whoever owns the data. Damage is what was once written and is not any more; whatever a crash may
leave is sound, and at most worth a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

FINDINGS_MAX = 20
"""Told of one file; the rest is counted. A file of noise would fill the memory otherwise."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth saying about one place."""

    path: str
    offset: int | None
    what: str
    means: str
    is_damage: bool

    def __str__(self) -> str:
        place = self.path if self.offset is None else f"{self.path} at byte {self.offset}"
        return f"{place}: {self.what}: {self.means}" if self.means else f"{place}: {self.what}"


class Book:
    """Takes down what is found, and tells whoever watches how many bytes were read."""

    def __init__(self, advance: Callable[[int], None] | None = None) -> None:
        self.findings: list[Finding] = []
        self.bytes_read = 0
        self._advance = advance
        self._counts: Counter[str] = Counter()

    @property
    def damage(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_damage]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.is_damage]

    @property
    def left_out(self) -> int:
        """Findings that were only counted."""
        return sum(max(0, count - FINDINGS_MAX) for count in self._counts.values())

    def damaged(self, path: str, what: str, means: str, offset: int | None = None) -> None:
        self._add(Finding(path, offset, what, means, is_damage=True))

    def note(self, path: str, what: str, means: str = "") -> None:
        self._add(Finding(path, None, what, means, is_damage=False))

    def read(self, count: int) -> None:
        """So many bytes more have been looked at."""
        self.bytes_read += count
        if self._advance is not None:
            self._advance(count)

    def skip(self, count: int) -> None:
        """So many bytes mean nothing, and were not looked at."""
        if self._advance is not None:
            self._advance(count)

    def _add(self, finding: Finding) -> None:
        self._counts[finding.path] += 1
        if self._counts[finding.path] <= FINDINGS_MAX:
            self.findings.append(finding)
