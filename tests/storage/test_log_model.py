"""The log against a list: whatever is done to it, and whenever it dies, it is what it should be.

A `State` is what the log would be if everything so far had reached the disk. After a loss of power
the log must be one of the states since the last sync, in the order in which they came about: no
mixture of them, nothing older than what was synced, nothing that was never written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardnode.sim.disk import SimCrash, SimFiles
from shardnode.storage.errors import Compacted, NoSpace, SyncFailed
from shardnode.storage.log import SegmentedLog
from shardnode.storage.options import Opened
from shardnode.storage.records import ORIGIN, Anchor, Record
from tests.storage.kit import chain_of, contents, disk, open_log, record

fractions = st.floats(0, 1)


def between(low: int, high: int, fraction: float) -> int:
    """A number from `low` to `high`, chosen by a fraction that shrinks towards `low`."""
    return low + round((high - low) * fraction)


class State(NamedTuple):
    """All records since the log was created or reset, whether dropped at the front or not."""

    base: Anchor
    records: tuple[Record, ...]

    @property
    def last(self) -> int:
        return self.base.index + len(self.records)

    def through(self, index: int) -> State:
        return State(self.base, self.records[: index - self.base.index])

    def anchor(self, index: int) -> Anchor:
        records = self.through(index).records
        term = records[-1].term if records else self.base.term
        return Anchor(index, term, chain_of(self.base.chain, records))


class LogAgainstList(RuleBasedStateMachine):
    """`possible` ends with what the log is now and begins with what is durable for certain."""

    files: SimFiles
    log: SegmentedLog

    def __init__(self) -> None:
        super().__init__()
        self.possible = [State(ORIGIN, ())]
        self.term = 1
        self.commit = 0  # what the caller knows to be committed, and relies on
        self.front = 0  # records up to here may be gone

    @property
    def now(self) -> State:
        return self.possible[-1]

    @initialize(seed=st.integers(0, 2**32))
    def create(self, seed: int) -> None:
        self.files = disk(seed)
        self.log = open_log(self.files)
        assert self.log.recovery.kind is Opened.CREATED

    # What a caller does.

    @rule(
        count=st.integers(1, 6),
        size=st.sampled_from([0, 40, 300, 2000]),
        new_term=st.booleans(),
        overlap=st.one_of(st.just(1.0), fractions),
    )
    def append_batch(self, count: int, size: int, new_term: bool, overlap: float) -> None:
        """Continue the log, or override its end from anywhere above the commit index."""
        previous = between(max(self.commit, self.now.base.index), self.now.last, overlap)
        self.term += new_term or previous < self.now.last
        run = [record(previous + 1 + n, self.term, size) for n in range(count)]
        after = State(self.now.base, (*self.now.through(previous).records, *run))
        self.attempt(lambda: self.log.append_batch(run, min(self.commit, previous)), after)

    @rule()
    def sync(self) -> None:
        self.attempt(self.log.sync, self.now)
        assert self.log.durable_index <= self.now.last
        if self.log.durable_index == self.now.last:
            self.possible = [self.now]

    @rule(fraction=fractions)
    def commit_what_is_durable(self, fraction: float) -> None:
        """Nothing un-synced is ever committed, so a commit index survives every loss of power."""
        self.commit = max(self.commit, between(0, self.log.durable_index, fraction))

    @rule(fraction=fractions)
    def truncate_back(self, fraction: float) -> None:
        index = between(max(self.commit, self.now.base.index), self.now.last, fraction)
        self.attempt(lambda: self.log.truncate_back(index), self.now.through(index))

    @rule(fraction=fractions)
    def truncate_front(self, fraction: float) -> None:
        index = between(0, self.commit, fraction)
        self.front = max(self.front, index)
        self.attempt(lambda: self.log.truncate_front(index), self.now)

    @rule(fraction=st.floats(0, 1.5), chain=st.integers(0, 2**64 - 1))
    def reset(self, fraction: float, chain: int) -> None:
        index = between(self.commit, max(self.commit, self.now.last) + 1, fraction)
        self.term += 1
        after = State(Anchor(index, self.term, chain), ())
        if self.attempt(lambda: self.log.reset(after.base), after):
            self.settle(after)

    @precondition(lambda self: self.log.last_index >= self.log.first_index)
    @rule(begin=fractions, end=fractions, max_bytes=st.one_of(st.none(), st.integers(0, 3000)))
    def read(self, begin: float, end: float, max_bytes: int | None) -> None:
        first = between(self.log.first_index, self.log.last_index, begin)
        last = between(first, self.log.last_index, end)
        base = self.now.base.index
        wanted = list(self.now.records[first - base - 1 : last - base])
        found = self.log.read(first, last, max_bytes)
        if max_bytes is None:
            assert found == wanted
            return
        assert found == wanted[: max(1, len(found))]
        with_one_more = sum(len(each.payload) for each in wanted[: len(found) + 1])
        assert len(found) == len(wanted) or with_one_more > max_bytes

    # What happens to it.

    @rule()
    def lose_power(self) -> None:
        promised = self.now.through(self.log.durable_index)
        self.files.crash()
        self.reopen()
        assert self.now.through(promised.last) == promised

    @rule()
    def kill_the_process(self) -> None:
        """The page cache survives, so nothing at all may be missing."""
        self.files.calm()
        first = self.log.first_index
        self.log.close()
        self.possible = [self.now]
        self.reopen()
        assert self.log.recovery.kind is Opened.CLEAN
        assert self.log.first_index == first

    @rule(operations=st.integers(0, 8))
    def plan_loss_of_power(self, operations: int) -> None:
        self.files.fail_after(operations, "crash")

    @rule(operations=st.integers(0, 3))
    def plan_full_disk(self, operations: int) -> None:
        self.files.fail_after(operations, "enospc")

    @rule(operations=st.integers(0, 3))
    def plan_failing_fsync(self, operations: int) -> None:
        self.files.fail_after(operations, "fsync")

    # How it is judged.

    def attempt(self, act: Callable[[], None], after: State) -> bool:
        """Do something that leads to `after`; tells whether it came to its end."""
        try:
            act()
        except NoSpace:  # nothing changed, which `agrees` checks, and it can be used on
            return False
        except (SyncFailed, SimCrash) as failure:
            self.possible.append(after)
            if isinstance(failure, SimCrash):
                self.files.crash()
            self.reopen()
            return False
        if after != self.now:
            self.possible.append(after)
        return True

    def reopen(self) -> None:
        """Open what is left, with the power lost during that too, if that is planned."""
        try:
            self.log = open_log(self.files, durable_mark=self.commit)
        except SimCrash:
            self.files.crash()
            self.log = open_log(self.files, durable_mark=self.commit)
        except (NoSpace, SyncFailed):
            self.files.calm()
            self.log = open_log(self.files, durable_mark=self.commit)
        self.settle(next(state for state in reversed(self.possible) if self.is_(state)))
        assert self.log.durable_index == self.log.last_index

    def settle(self, state: State) -> None:
        """`state` is what there is, durably."""
        self.possible = [state]
        self.commit = max(self.commit, state.base.index)

    def is_(self, state: State) -> bool:
        log, base = self.log, state.base.index
        if not base < log.first_index <= state.last + 1 == log.last_index + 1:
            return False
        kept = list(state.records[log.first_index - 1 - base :])
        return contents(log) == kept and log.anchor == state.anchor(log.first_index - 1)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log, state = self.log, self.now
        assert self.is_(state)
        assert log.anchor.index <= max(self.front, state.base.index)
        assert (log.last_index, log.last_term, log.chain(log.last_index)) == state.anchor(
            state.last
        )
        for each in state.records[log.first_index - 1 - state.base.index :]:
            assert log.term(each.index) == each.term
        assert log.commit_watermark <= self.commit <= log.last_index

    @precondition(lambda self: self.log.first_index > 1)
    @rule()
    def what_was_dropped_is_refused(self) -> None:
        with pytest.raises(Compacted) as refused:
            self.log.read(self.log.first_index - 1, self.log.last_index)
        assert refused.value.first_available == self.log.first_index


LogAgainstList.TestCase.settings = settings(
    max_examples=250, stateful_step_count=50, derandomize=True, deadline=None
)
test_a_log_is_what_a_list_would_be = LogAgainstList.TestCase
