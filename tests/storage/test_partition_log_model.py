"""The log of a partition against a list of entries: whatever is done to it, and whenever it dies,
redo makes it what the entries say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardnode.sim.disk import SimCrash
from shardnode.storage.errors import NoSpace, OffsetTrimmed, SyncFailed
from shardnode.storage.partition_log import Batch
from tests.storage.kit import disk
from tests.storage.partition_kit import Shard, batch, contents, image, reference

fractions = st.floats(0, 1)


class LogAgainstEntries(RuleBasedStateMachine):
    """`shard.entries` is the model: all of them are committed, so all of them have to be there."""

    shard: Shard

    @property
    def given(self) -> list[Batch]:
        return [each for each in self.shard.entries if isinstance(each, Batch)]

    @property
    def start(self) -> int:
        return max((each for each in self.shard.entries if isinstance(each, int)), default=0)

    @property
    def end(self) -> int:
        return self.given[-1].end_offset if self.given else 0

    @initialize(seed=st.integers(0, 2**32))
    def create(self, seed: int) -> None:
        self.shard = Shard(disk(seed))

    # What a caller does.

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
        size=st.sampled_from([0, 60, 400, 2000]),
    )
    def append(self, counts: list[int], size: int) -> None:
        end = self.end
        first = len(self.shard.entries)
        for count in counts:
            each = batch(len(self.shard.entries) + 1, end, count, size)
            self.shard.entries.append(each)
            end = each.end_offset
        self.attempt(lambda: self.shard.apply(first))

    @rule()
    def something_for_another_partition(self) -> None:
        self.shard.entries.append(None)

    @rule(fraction=fractions)
    def trim(self, fraction: float) -> None:
        self.shard.entries.append(round(self.end * fraction))
        self.attempt(lambda: self.shard.apply(len(self.shard.entries) - 1))

    @rule()
    def flush(self) -> None:
        self.attempt(self.shard.flush)

    @rule()
    def flush_beside_an_append(self) -> None:
        """The sync runs elsewhere, and does not cover what came after it began."""

        def act() -> None:
            shard = self.shard
            applied = len(shard.entries)
            work = shard.log.begin_sync()
            each = batch(applied + 1, self.end, 2)
            shard.entries.append(each)
            shard.log.append([each])
            work.run()
            if isinstance(work.error, NoSpace):
                with pytest.raises(NoSpace):
                    shard.log.end_sync(work)
                work.run()
            shard.record(shard.log.end_sync(work), applied)

        self.attempt(act)

    @rule()
    def release(self) -> None:
        self.attempt(self.shard.release)

    @rule()
    def rest(self) -> None:
        self.shard.log.rest()

    @precondition(lambda self: self.start < self.end)
    @rule(place=fractions, bytes_max=st.integers(0, 3000), batches_max=st.integers(1, 9))
    def read(self, place: float, bytes_max: int, batches_max: int) -> None:
        offset = min(self.start + int((self.end - self.start) * place), self.end - 1)
        found = self.shard.log.read(offset, bytes_max=bytes_max, batches_max=batches_max)
        wanted = [each for each in self.given if each.end_offset > offset]
        assert found
        assert found == wanted[: len(found)]
        assert len(found) <= batches_max
        assert len(found) == 1 or sum(len(each.payload) for each in found) <= bytes_max

    @rule(place=st.floats(-0.1, 1.2))
    def find(self, place: float) -> None:
        stamp = round(len(self.shard.entries) * place / 4) * 10
        later = [each.offset for each in self.given if each.stamp_ms >= stamp]
        wanted = max(later[0], self.start) if later else self.end
        assert self.shard.log.find(stamp) == wanted

    @precondition(lambda self: self.start > 0)
    @rule()
    def what_was_trimmed_is_refused(self) -> None:
        with pytest.raises(OffsetTrimmed) as refused:
            self.shard.log.read(self.start - 1, bytes_max=1)
        assert refused.value.first_available == self.start

    # What happens to it.

    @rule()
    def lose_power(self) -> None:
        self.shard.files.crash()
        self.restart()

    @rule()
    def kill_the_process(self) -> None:
        self.shard.files.calm()
        self.restart()

    @rule(operations=st.integers(0, 12))
    def plan_loss_of_power(self, operations: int) -> None:
        self.shard.files.fail_after(operations, "crash")

    @rule(operations=st.integers(0, 5))
    def plan_full_disk(self, operations: int) -> None:
        self.shard.files.fail_after(operations, "enospc")

    @rule(operations=st.integers(0, 5))
    def plan_failing_fsync(self, operations: int) -> None:
        self.shard.files.fail_after(operations, "fsync")

    # How it is judged.

    def attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except NoSpace:  # the next try goes on
            assert self.shard.log.durable != self.shard.log.mark
            act()
        except SyncFailed:
            self.restart()
        except SimCrash:
            self.shard.files.crash()
            self.restart()

    def restart(self) -> None:
        """Open and redo, with the power lost during that too, if that is planned."""
        try:
            self.shard.restart()
        except SimCrash:
            self.shard.files.crash()
            self.shard.restart()
        except (NoSpace, SyncFailed):
            self.shard.restart()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "shard"):
            return
        log = self.shard.log
        assert (log.first_offset, log.end_offset) == (self.start, self.end)
        assert contents(log) == [each for each in self.given if each.end_offset > self.start]

    def teardown(self) -> None:
        """Every byte is that of a replica to which nothing happened, which has no fewer files."""
        if not hasattr(self, "shard"):
            return
        self.shard.files.calm()
        self.shard.log.sync()
        for _ in self.shard.log.verify():
            pass
        undisturbed = reference(self.given)
        for path, data in image(self.shard.files).items():
            assert undisturbed[path] == data
        for segment in self.shard.log.sealed():
            assert any(path.endswith(segment.name) for path in undisturbed)


LogAgainstEntries.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, derandomize=True, deadline=None
)
test_a_partition_is_what_its_entries_say = LogAgainstEntries.TestCase
