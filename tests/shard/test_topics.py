"""Topics: numbers are given once, limits are named, and every replica ends with the same."""

from __future__ import annotations

import pytest

from shardnode.shard.topics import Topics
from shardnode.wire import limits
from shardnode.wire.control import TopicAlter, TopicCreate, TopicDelete, TopicDescribe, TopicList
from shardnode.wire.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from shardnode.wire.kinds import Kind
from shardnode.wire.requests import SessionOpen
from tests.shard.desk import CLIENT, Counter


def test_topic_is_created_described_altered_and_deleted() -> None:
    topics = Topics()
    found = topics.create(TopicCreate("shop/orders", 8, 1_000, 5), 77)
    assert (found.stream, found.topic, found.partitions, found.created_at_ms) == (0, 0, 8, 77)
    assert topics.create(TopicCreate("shop/returns", 1), 78).topic == 1
    assert topics.create(TopicCreate("web/orders", 1), 79).stream == 1
    altered = topics.alter(TopicAlter("shop/orders", partitions=9, retention_ms=0))
    assert (altered.partitions, altered.retention_ms, altered.retention_bytes) == (9, 0, 5)
    version = topics.version
    assert topics.alter(TopicAlter("shop/orders")) == altered
    assert topics.version == version
    topics.delete("shop/orders")
    with pytest.raises(NotFound, match="shop/orders"):
        topics.describe("shop/orders")
    assert Topics.decode(topics.encode()).encode() == topics.encode()


def test_numbers_are_never_given_again() -> None:
    topics = Topics()
    numbers = []
    for _ in range(3):
        numbers.append(topics.create(TopicCreate("a/b", 1), 1).topic)
        topics.delete("a/b")
        topics = Topics.decode(topics.encode())
    assert numbers == [0, 1, 2]


def test_what_cannot_be_is_refused_by_name() -> None:
    topics = Topics()
    topics.create(TopicCreate("a/b", 4), 1)
    with pytest.raises(Conflict, match="found one"):
        topics.create(TopicCreate("a/b", 4), 1)
    with pytest.raises(InvalidRequest, match="at least the 4 partitions"):
        topics.alter(TopicAlter("a/b", partitions=3))
    with pytest.raises(LimitExceeded) as error:
        topics.create(TopicCreate("a/c", limits.cluster_partitions_max), 1)
    assert error.value.limit_name == "cluster_partitions_max"
    with pytest.raises(LimitExceeded):
        topics.alter(TopicAlter("a/b", partitions=limits.cluster_partitions_max + 1))
    for number in range(1, limits.topic_id_max + 1):
        topics.create(TopicCreate(f"a/t{number}", 1), 1)
    with pytest.raises(LimitExceeded) as error:
        topics.create(TopicCreate("a/last", 1), 1)
    assert error.value.limit_name == "topic_id_max"
    assert len(topics) == limits.topic_id_max + 1


def test_pages_are_by_name() -> None:
    topics = Topics()
    for name in ("b/1", "a/2", "a/1"):
        topics.create(TopicCreate(name, 1), 1)
    page = topics.list(TopicList(None, 2))
    assert (page.names, page.next) == (["a/1", "a/2"], "a/2")
    page = topics.list(TopicList(page.next, 2))
    assert (page.names, page.next) == (["b/1"], None)


def test_shard_0_answers_and_a_repeat_in_a_session_is_no_conflict() -> None:
    desk = Counter()
    desk.ask(Kind.SESSION_OPEN, SessionOpen(60_000), client_id=CLIENT, sequence=1)
    create = TopicCreate("shop/orders", 2)
    first = desk.ask(Kind.TOPIC_CREATE, create, client_id=CLIENT, sequence=2)
    assert desk.ask(Kind.TOPIC_CREATE, create, client_id=CLIENT, sequence=2) == first
    with pytest.raises(Conflict):
        desk.ask(Kind.TOPIC_CREATE, create)
    assert desk.ask(Kind.TOPIC_DESCRIBE, TopicDescribe("shop/orders")) == first
    assert desk.ask(Kind.TOPIC_LIST, TopicList()).names == ["shop/orders"]  # type: ignore[attr-defined]
    desk.ask(Kind.TOPIC_DELETE, TopicDelete("shop/orders"))
    with pytest.raises(NotFound):
        desk.ask(Kind.TOPIC_DESCRIBE, TopicDescribe("shop/orders"))


def test_other_shards_keep_no_topics() -> None:
    with pytest.raises(InvalidRequest, match="a shard does not answer TOPIC_CREATE"):
        Counter(shard=1, shards=2).ask(Kind.TOPIC_CREATE, TopicCreate("a/b", 1))
