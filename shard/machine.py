"""What a replicated state machine owes its replica.

The one rule: effects and the applied index become durable in the same transaction, so after any
crash the two agree and redo starts exactly where effects end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from shardnode.raft import Entry

ReadPart = Callable[[str], Iterable[bytes]]
"""Gives the bytes of one named file of a snapshot, in pieces."""


class StateMachine(Protocol):
    """Deterministic: equal entries in equal order give equal state and equal replies."""

    @property
    def applied_index(self) -> int:
        """The last entry that has taken effect."""

    @property
    def durable_index(self) -> int:
        """The last entry whose effect no crash can undo; the log must reach back to here."""

    @property
    def membership(self) -> bytes:
        """The membership kept with the durable state; empty on first boot."""

    @property
    def partition_indexes(self) -> Mapping[int, int]:
        """For each partition the partition index of its last applied entry."""

    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """Let entries take effect, in order, each exactly once; one reply for each."""

    def flush(self, membership: bytes) -> None:
        """Make all effects so far, the applied index and the membership durable together."""

    def snapshot(self) -> Mapping[str, Iterable[bytes]]:
        """The whole state at `applied_index` as named files."""

    def restore(self, index: int, membership: bytes, names: Sequence[str], part: ReadPart) -> None:
        """Replace everything, durably, by a snapshot at `index`, which is above what is applied."""
