"""Writes while slots move, answers are lost and sessions are forgotten, against a fake node."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import pyarrow as pa
import pytest

from shardnode import OutcomeUnknown, SessionExpired, Unavailable
from shardnode.wire.errors import Overloaded
from shardnode.wire.kinds import Kind
from tests.client.fake import FakeNode
from tests.pipeline.write_kit import KEYS, batch_task, batches, keys_batch

ROWS = [(b"key%d" % n, b"value%d" % n) for n in range(2_000)]


@pytest.fixture
def fake() -> Iterator[FakeNode]:
    with FakeNode(3) as node:
        yield node


def moving(fake: FakeNode, given: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; before the third one, half of all slots go elsewhere."""
    for number, batch in enumerate(given):
        if number == 2:
            fake.move(range(0, 16_384, 2), 1)
        yield batch


def test_rows_follow_their_slots_to_other_shards(fake: FakeNode) -> None:
    writer = keys_batch(fake.address, batchRows="50", timeout="10")
    later = [(key, b"later") for key, _ in ROWS[:500]]
    given = batches(KEYS, [*ROWS, *later], 400)
    batch_task(writer, moving(fake, given))
    assert fake.data() == {**dict(ROWS), **dict(later)}
    for shard in fake.shards:
        assert all(fake.table.shard_of_key(key) == shard.number for key in shard.data)


def test_a_lost_answer_and_a_full_shard_cost_time_but_no_second_effect(fake: FakeNode) -> None:
    fake.rule("swallow", kind=Kind.PUT_MANY, times=3)
    fake.rule("refuse", Overloaded("busy", lag=1, limit=1), kind=Kind.PUT_MANY, times=5)
    batch_task(keys_batch(fake.address, batchRows="100"), batches(KEYS, ROWS))
    assert fake.data() == dict(ROWS)
    applied = [who for shard in fake.shards for who in shard.applied]
    assert len(applied) == len(set(applied))


def test_a_session_that_is_lost_amid_a_task_ends_the_task(fake: FakeNode) -> None:
    def forgetting() -> Iterator[pa.RecordBatch]:
        yield from batches(KEYS, ROWS[:900], 300)
        fake.forget_sessions()
        yield from batches(KEYS, ROWS[900:], 300)

    with pytest.raises(SessionExpired):
        batch_task(keys_batch(fake.address, batchRows="50"), forgetting())


def test_the_time_in_which_a_task_waits_for_rows_does_not_count(fake: FakeNode) -> None:
    def slowly() -> Iterator[pa.RecordBatch]:
        fake.rule("drop", kind=Kind.PUT_MANY, times=3)
        for batch in batches(KEYS, ROWS, 1_000):
            yield batch
            begin = monotonic()
            while monotonic() < begin + 1.2:  # longer than the timeout
                fake.kinds_seen()

    batch_task(keys_batch(fake.address, batchRows="50", timeout="1.1"), slowly())
    assert fake.data() == dict(ROWS)


def test_a_shard_that_stays_silent_ends_the_task_in_time(fake: FakeNode) -> None:
    fake.rule("drop", kind=Kind.PUT_MANY, shard=1)
    with pytest.raises((OutcomeUnknown, Unavailable)):
        batch_task(keys_batch(fake.address, timeout="0.5"), batches(KEYS, ROWS))
