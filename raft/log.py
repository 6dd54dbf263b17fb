"""The log as the core sees it: a tail in memory in front of the durable log.

The one rule: every entry above `stable` is in memory; below it, memory is only a cache and the
caller's `LogReader` is the truth. So an overwritten tail can never be read back by mistake.

    anchor ...... stable ...... last
      |  reader    |   memory    |
         (cache)
"""

from __future__ import annotations

from collections.abc import Sequence

from shardnode.raft.types import Entry, LogReader


class RaftLog:
    """Indexes and terms of everything, payloads of the recent part."""

    def __init__(self, reader: LogReader, cache_bytes_max: int) -> None:
        self._reader = reader
        self._cache_bytes_max = cache_bytes_max
        self._recent: list[Entry] = []
        self._recent_bytes = 0
        self.anchor_index, self.anchor_term = reader.anchor()
        self.last_index, self.last_term = reader.last()
        self.stable = self.last_index
        """The highest index known to be durable here and not overwritten since."""

    @property
    def _recent_first(self) -> int:
        return self.last_index - len(self._recent) + 1

    def term(self, index: int) -> int | None:
        """The term at `index`, or None when it is compacted away or not there yet."""
        if index == self.last_index:
            return self.last_term
        if index == self.anchor_index:
            return self.anchor_term
        if index > self.last_index or index < self.anchor_index:
            return None
        offset = index - self._recent_first
        if offset >= 0:
            return self._recent[offset].term
        return self._reader.term(index)

    def matches(self, index: int, term: int) -> bool:
        """Whether the entry at `index` is there with that term."""
        return self.term(index) == term

    def is_behind(self, last_index: int, last_term: int) -> bool:
        """Whether a log with that end is at least as up to date as this one (paper, 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def append(self, entries: Sequence[Entry]) -> None:
        """Put `entries` at their indexes; whatever stood there or after is overwritten."""
        first = entries[0].index
        assert self.anchor_index < first <= self.last_index + 1, "entries leave no gap"
        if first <= self.last_index:
            self._cut(first - 1)
        self._recent.extend(entries)
        self._recent_bytes += sum(len(entry.payload) for entry in entries)
        self.last_index = entries[-1].index
        self.last_term = entries[-1].term

    def _cut(self, index: int) -> None:
        """Forget everything above `index`."""
        term = self.term(index)
        assert term is not None
        keep = max(0, index - self._recent_first + 1)
        self._recent_bytes -= sum(len(entry.payload) for entry in self._recent[keep:])
        del self._recent[keep:]
        self.last_index, self.last_term = index, term
        self.stable = min(self.stable, index)

    def drop_unstable(self) -> None:
        """The disk refused what was to be appended: go back to what is durable."""
        self._cut(self.stable)

    def unstable(self) -> list[Entry]:
        """What is still to be made durable."""
        return self._recent[self.stable + 1 - self._recent_first :]

    def persisted(self, index: int, term: int) -> None:
        """Everything through (`index`, `term`) is durable, unless it was overwritten meanwhile."""
        if index > self.stable and self.matches(index, term):
            self.stable = index

    def read(self, first: int, last: int, bytes_max: int, entries_max: int) -> Sequence[Entry]:
        """Entries from `first` to at most `last`: at least one, then as far as the bounds allow."""
        assert self.anchor_index < first <= last <= self.last_index
        last = min(last, first + entries_max - 1)
        recent_first = self._recent_first
        if first < recent_first:
            return self._reader.read(first, min(last, recent_first - 1), bytes_max)
        found = self._recent[first - recent_first : last - recent_first + 1]
        return _bounded(found, bytes_max)

    def trim(self, applied: int) -> None:
        """Let go of cached entries that are durable and applied, beyond the cache's bound."""
        if self._recent_bytes <= self._cache_bytes_max:
            return
        removable = min(self.stable, applied) - self._recent_first + 1
        count = 0
        while count < removable and self._recent_bytes > self._cache_bytes_max // 2:
            self._recent_bytes -= len(self._recent[count].payload)
            count += 1
        del self._recent[:count]

    def refresh_anchor(self) -> None:
        """The caller compacted the durable log: see where it begins now."""
        index, term = self._reader.anchor()
        assert index <= self.stable, "only what is durable is ever compacted"
        self.anchor_index, self.anchor_term = index, term
        surplus = index - self._recent_first + 1
        if surplus > 0:
            self._recent_bytes -= sum(len(entry.payload) for entry in self._recent[:surplus])
            del self._recent[:surplus]

    def reset(self, index: int, term: int) -> None:
        """A snapshot replaced the log: it begins after (`index`, `term`) and is empty."""
        self._recent.clear()
        self._recent_bytes = 0
        self.anchor_index = self.last_index = self.stable = index
        self.anchor_term = self.last_term = term

    def last_at_or_below(self, index: int, term: int) -> tuple[int, int]:
        """The highest position ≤ `index` whose term is ≤ `term`: where two logs may still agree.

        This is the conflict back-off by term: one round trip skips a whole term of entries.
        """
        index = min(index, self.last_index)
        while index > self.anchor_index:
            found = self.term(index)
            assert found is not None
            if found <= term:
                return index, found
            index -= 1
        return self.anchor_index, self.anchor_term

    def first_conflict(self, entries: Sequence[Entry]) -> int:
        """The position in `entries` of the first one that is not in this log already."""
        for position, entry in enumerate(entries):
            if not self.matches(entry.index, entry.term):
                return position
        return len(entries)


def _bounded(entries: list[Entry], bytes_max: int) -> list[Entry]:
    total = 0
    for position, entry in enumerate(entries):
        total += len(entry.payload)
        if total > bytes_max and position:
            return entries[:position]
    return entries
