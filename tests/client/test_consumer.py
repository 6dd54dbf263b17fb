"""`Consumer` against a fake node: what it reads, how it waits, and what callers hear."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from shardnode import Client
from shardnode.client.messages import Message
from shardnode.wire.errors import Compacted, InvalidRequest, NotFound, Unavailable
from tests.client.consumer_kit import filled, read, threads, until
from tests.client.fake import FakeNode


def test_all_partitions_are_read_in_order_from_the_start(db: Client) -> None:
    topic = filled(db)
    with topic.consumer() as consumer:
        found = read(consumer, 20)
        assert consumer.assignment == [0, 1, 2, 3]
        for number in range(4):
            assert [m.offset for m in found if m.partition == number] == [0, 1, 2, 3, 4]
        assert consumer.is_at_end
        assert [consumer.position(number) for number in range(4)] == [5] * 4
    assert threads() == [], "without a group nobody needs a thread"


def test_chosen_partitions_and_starts(db: Client) -> None:
    topic = filled(db)
    with topic.consumer(partitions=[1, 3], start=3) as consumer:
        assert {(m.partition, m.offset) for m in read(consumer, 4)} == {
            (1, 3),
            (1, 4),
            (3, 3),
            (3, 4),
        }
    with topic.consumer(start="latest") as consumer:
        until(lambda: consumer.poll(0.01) or len(consumer.assignment) == 4)
        topic.append([b"new"], partition=2)
        assert [m.value for m in read(consumer, 1)] == [b"new"]
    with topic.consumer(start="last") as consumer:
        assert sorted(m.offset for m in read(consumer, 4)) == [4, 4, 4, 5]


def test_poll_takes_no_longer_than_it_may_and_no_more_than_it_shall(db: Client) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer() as consumer:
        assert len(consumer.poll(max_messages=2)) == 2
        assert len(consumer.poll(max_messages=99)) == 3
        begun = time.monotonic()
        assert consumer.poll(timeout=0.3) == []
        assert 0.28 < time.monotonic() - begun < 2
        assert consumer.poll(timeout=0) == []
    with topic.consumer() as consumer:
        assert until(lambda: consumer.poll(timeout=0))


def test_waiting_poll_ends_when_a_message_comes_and_asks_nothing_meanwhile(
    node: FakeNode, db: Client
) -> None:
    topic = filled(db, partitions=2, each=1)
    with topic.consumer() as consumer:
        read(consumer, 2)
        waiting = threading.Event()
        found: list[Message] = []

        def wait() -> None:
            waiting.set()
            found.extend(consumer.poll(timeout=20))

        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait()
        until(lambda: len(node._parked) == 2)
        seen = len(node.seen)
        time.sleep(0.3)
        assert len(node.seen) == seen
        with Client(node.address) as other:
            other.topic("t").append([b"x"], partition=1)
        thread.join(10)
        assert [m.value for m in found] == [b"x"]


def test_iteration_gives_messages_one_by_one_and_polls_go_on_behind_them(db: Client) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer() as consumer:
        first = []
        for message in consumer:
            first.append(message.offset)
            if len(first) == 3:
                break
        assert consumer.position(0) == 3
        assert first + [m.offset for m in read(consumer, 2)] == [0, 1, 2, 3, 4]


def test_seek_moves_this_consumer_and_the_next_commit_the_group(db: Client) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer("g") as consumer:
        read(consumer, 5)
        consumer.commit()
        consumer.seek(0, 1)
        assert consumer.position(0) == 1
        [message] = consumer.poll(max_messages=1)
        assert message.offset == 1
        consumer.commit(message)
        assert consumer.committed(0) == 2
        consumer.seek(0, "latest")
        assert (consumer.position(0), consumer.poll(0.05)) == (5, [])
        consumer.seek(0, "earliest")
        assert read(consumer, 5)[0].offset == 0
        with pytest.raises(InvalidRequest):
            consumer.seek(3, 0)
    with topic.consumer() as consumer:
        consumer.seek(0, 4)
        assert [m.offset for m in read(consumer, 1)] == [4]


def test_lost_messages_are_told_or_skipped(node: FakeNode, db: Client) -> None:
    topic = filled(db, partitions=1)
    topic.append([b"later"])
    [partition] = node.streams.partitions.values()
    with topic.consumer(start=0) as consumer, topic.consumer(start=0, on_lost="skip") as skipping:
        node.do(lambda: partition.trim(5))
        with pytest.raises(Compacted) as lost:
            consumer.poll(5)
        assert lost.value.first_available == 5
        with pytest.raises(Compacted):
            consumer.poll(5)
        consumer.seek(0, 5)
        assert [m.offset for m in read(consumer, 1)] == [5]
        assert [m.offset for m in read(skipping, 1)] == [5]


def test_topic_that_does_not_exist_or_is_deleted_is_told(db: Client) -> None:
    for group in (None, "g"):
        with db.topic("none").consumer(group) as consumer, pytest.raises(NotFound):
            consumer.poll(5)
    topic = filled(db, partitions=1)
    with topic.consumer() as consumer:
        read(consumer, 5)
        db.delete_topic("t")
        with pytest.raises(NotFound):
            until(lambda: consumer.poll(1))


def test_partition_that_the_topic_does_not_have_is_told(db: Client) -> None:
    topic = filled(db, partitions=2)
    with (
        topic.consumer(partitions=[0, 2]) as consumer,
        pytest.raises(NotFound, match="below 2, found 2"),
    ):
        consumer.poll(5)


def test_nobody_there_is_told_at_once() -> None:
    with Client("127.0.0.1:1") as db:
        for group in (None, "g"):
            with (
                db.topic("t").consumer(group) as consumer,
                pytest.raises(Unavailable, match="nothing listens"),
            ):
                consumer.poll(10)


def test_wrong_arguments_are_refused_before_anything_is_sent(node: FakeNode, db: Client) -> None:
    topic = db.topic("t")
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (InvalidRequest, {"group": "a/b"}),
        (InvalidRequest, {"group": ""}),
        (InvalidRequest, {"group": "g", "partitions": [1]}),
        (InvalidRequest, {"group": "g", "session_timeout": 0.5}),
        (TypeError, {"group": "g", "session_timeout": "1"}),
        (InvalidRequest, {"start": "first"}),
        (InvalidRequest, {"partitions": [-1]}),
        (TypeError, {"partitions": ["1"]}),
        (InvalidRequest, {"on_lost": "ignore"}),
    ]
    for error, options in wrong:
        with pytest.raises(error):
            topic.consumer(**options)
    with topic.consumer() as consumer:
        wrong = [
            (InvalidRequest, {"max_messages": 0}),
            (TypeError, {"max_messages": 1.5}),
            (InvalidRequest, {"timeout": -1}),
            (TypeError, {"timeout": "1"}),
        ]
        for error, options in wrong:
            with pytest.raises(error):
                consumer.poll(**options)
        with pytest.raises(InvalidRequest, match="expected a group to commit for"):
            consumer.commit()
        with pytest.raises(InvalidRequest, match="expected a group to ask for"):
            consumer.committed(0)
    assert node.seen == []
    with pytest.raises(InvalidRequest, match="closed"):
        consumer.poll()


def test_poll_of_another_thread_ends_when_the_consumer_is_closed(
    node: FakeNode, db: Client
) -> None:
    consumer = filled(db, partitions=1).consumer()
    read(consumer, 5)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            consumer.poll(timeout=60)
        except InvalidRequest as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(node._parked) == 1)
    consumer.close()
    thread.join(10)
    assert [str(error) for error in errors] == ["this consumer is closed; make a new one"]


def test_consumer_of_a_closed_client_says_so_and_its_thread_ends(node: FakeNode) -> None:
    db = Client(node.address)
    consumer = filled(db, partitions=1).consumer("g")
    read(consumer, 5)
    db.close()
    with pytest.raises((InvalidRequest, Unavailable), match="closed"):
        until(lambda: consumer.poll(0.05))
    until(lambda: threads() == [])
    consumer.close()


def test_interrupted_poll_goes_on_with_the_next(
    db: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(db, partitions=1)
    with topic.consumer() as consumer:
        read(consumer, 5)
        engine = consumer._engine
        assert engine is not None
        select = engine._selector.select

        def interrupted(_timeout: float | None = None) -> Any:
            monkeypatch.setattr(engine._selector, "select", select)
            raise KeyboardInterrupt

        monkeypatch.setattr(engine._selector, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(5)
        topic.append([b"x"])
        assert [m.value for m in read(consumer, 1)] == [b"x"]
