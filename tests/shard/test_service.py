"""A worker answers every request once, with the truth; tested without a socket."""

from __future__ import annotations

import pytest

from shardnode.shard.duties import SESSIONS_EVERY_MS, SWEEP_EVERY_MS
from shardnode.shard.legacy import RETRY_MS
from shardnode.wire.errors import (
    Conflict,
    InvalidRequest,
    NotLeader,
    OutcomeUnknown,
    SessionExpired,
    ShardnodeError,
    Unavailable,
    WrongShard,
)
from shardnode.wire.frames import PLACE_FOR_ME, Frame, build_reply, build_request, parse_request
from shardnode.wire.kinds import Consistency, Flag, Kind
from shardnode.wire.placement import initial_table
from shardnode.wire.replies import (
    Changes,
    Deleted,
    Entry,
    Found,
    Page,
    SessionGranted,
    Written,
    decode_reply,
)
from shardnode.wire.requests import (
    Cas,
    DeleteMany,
    Get,
    GetMany,
    Put,
    PutMany,
    Scan,
    SessionOpen,
    Topology,
    Watch,
)
from tests.shard.desk import CLIENT, WALL_MS, Counter


def key_of(shard: int, shards: int = 4, but: bytes = b"") -> bytes:
    """A key that this shard owns."""
    table = initial_table(shards)
    return next(k for n in range(999) if table.shard_of_key(k := b"k%d" % n) == shard and k != but)


def test_write_is_read_back_by_every_kind_of_read() -> None:
    counter = Counter()
    written = counter.ask(Kind.PUT, Put(b"a", b"1"))
    assert isinstance(written, Written)
    for level in Consistency:
        assert counter.ask(Kind.GET, Get(b"a", level)) == Entry(b"1", written.version, 0)
        assert counter.ask(Kind.GET_MANY, GetMany([b"a", b"b"], level)) == Found([b"1", None])
    page = counter.ask(Kind.SCAN, Scan())
    assert page == Page([b"a"], [b"1"], [written.version], [0], None)


def test_one_drain_is_one_batch_and_one_sync() -> None:
    counter = Counter()
    log, syncs = counter.replica.log, 0
    sync = log.sync

    def counted() -> None:
        nonlocal syncs
        syncs += 1
        sync()

    log.sync = counted  # type: ignore[method-assign]
    replies = counter.drain(
        *(build_request(Kind.PUT, Put(b"k%d" % n, b"v").encode(), prefix=0) for n in range(100))
    )
    assert [reply.header.code for reply in replies] == [0] * 100
    assert syncs == 1


def test_conflict_names_the_version_that_was_found() -> None:
    counter = Counter()
    written = counter.ask(Kind.PUT, Put(b"a", b"1"))
    with pytest.raises(Conflict) as caught:
        counter.ask(Kind.CAS, Cas(b"a", b"2", version=1))
    assert isinstance(written, Written)
    assert caught.value.version == written.version


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\0\0\0\0"],
        [b"garbage"],
        [b"\0\0\0\0", b"SNRQ"],
        [b"\0\0\0\0", b"x" * 56, b"", b""],
        [b"\0\0\0\0", *build_request(Kind.PUT, b"\xc1", prefix=None)],
        build_request(99, b"", prefix=0),
        build_request(0x7F01, b"\x92\x90\x90", prefix=0),
        build_request(Kind.PUT, b"\x94" + b"\xff" * 40, prefix=0),
        build_request(Kind.TOPOLOGY, Topology().encode(), prefix=0),
    ],
)
def test_bad_input_gets_a_typed_error_and_the_next_request_is_served(frames: list[Frame]) -> None:
    counter = Counter()
    (reply,) = counter.drain(frames)
    with pytest.raises(InvalidRequest):
        decode_reply(reply)
    assert isinstance(counter.ask(Kind.PUT, Put(b"a", b"1")), Written)


def test_request_for_another_shard_is_refused_whatever_names_it() -> None:
    counter = Counter(shard=1, shards=4)
    ours, theirs = key_of(1), key_of(2)
    for prefix in (1, PLACE_FOR_ME):
        assert isinstance(counter.ask(Kind.PUT, Put(ours, b"1"), prefix=prefix), Written)
        with pytest.raises(WrongShard) as caught:
            counter.ask(Kind.PUT, Put(theirs, b"1"), prefix=prefix)
        assert caught.value.epoch == 1
    for body in (PutMany([ours, theirs], [b"", b""]), GetMany([ours, theirs])):
        kind = Kind.PUT_MANY if isinstance(body, PutMany) else Kind.GET_MANY
        with pytest.raises(WrongShard):
            counter.ask(kind, body)
    with pytest.raises(WrongShard):
        counter.ask(Kind.PUT, Put(ours, b"1"), prefix=2)
    with pytest.raises(InvalidRequest):
        counter.ask(Kind.PUT, Put(ours, b"1"), prefix=None)
    assert counter.effects.get(theirs) is None


def test_retry_in_a_session_has_one_effect_and_one_answer() -> None:
    counter = Counter()
    with pytest.raises(SessionExpired):
        counter.ask(Kind.PUT, Put(b"a", b"1"), client_id=CLIENT, sequence=1)
    opened = counter.ask(Kind.SESSION_OPEN, SessionOpen(5_000), client_id=CLIENT, sequence=2)
    assert opened == SessionGranted(5_000)
    first = counter.ask(Kind.PUT, Put(b"a", b"1"), client_id=CLIENT, sequence=3)
    counter.ask(Kind.PUT, Put(b"a", b"2"))
    assert counter.ask(Kind.PUT, Put(b"a", b"1"), client_id=CLIENT, sequence=3) == first
    found = counter.ask(Kind.GET, Get(b"a"))
    assert isinstance(found, Entry)
    assert found.value == b"2"


def test_opening_and_first_write_may_come_in_one_drain() -> None:
    counter = Counter()
    replies = counter.drain(
        build_request(
            Kind.SESSION_OPEN, SessionOpen(5_000).encode(), prefix=0, client_id=CLIENT, sequence=1
        ),
        build_request(Kind.PUT, Put(b"a", b"1").encode(), prefix=0, client_id=CLIENT, sequence=2),
    )
    assert [reply.header.code for reply in replies] == [0, 0]


@pytest.mark.parametrize("kind", [Kind.SESSION_OPEN, Kind.PUT])
def test_what_needs_a_session_is_refused_without_one(kind: Kind) -> None:
    body = SessionOpen(5_000) if kind is Kind.SESSION_OPEN else Put(b"a", b"1", leased=True)
    with pytest.raises(InvalidRequest, match="session"):
        Counter().ask(kind, body)


def test_key_expires_within_half_a_second_of_its_time() -> None:
    counter = Counter()
    counter.ask(Kind.PUT, Put(b"a", b"1", ttl_ms=1_000))
    entry = counter.ask(Kind.GET, Get(b"a"))
    assert isinstance(entry, Entry)
    assert entry.expires_at_ms == pytest.approx(WALL_MS + 1_000, abs=50)
    counter.drain(later_ms=900)
    assert counter.effects.get(b"a") is not None
    counter.drain(later_ms=150)
    counter.drain(later_ms=SWEEP_EVERY_MS)
    assert counter.effects.get(b"a") is None


def test_silent_session_ends_with_its_leased_keys() -> None:
    counter = Counter()
    counter.ask(Kind.SESSION_OPEN, SessionOpen(1_000), client_id=CLIENT, sequence=1)
    counter.ask(Kind.PUT, Put(b"a", b"1", leased=True), client_id=CLIENT, sequence=2)
    counter.drain(later_ms=1_100 + SESSIONS_EVERY_MS)
    counter.drain(later_ms=SESSIONS_EVERY_MS)
    assert counter.effects.get(b"a") is None
    with pytest.raises(SessionExpired):
        counter.ask(Kind.PUT, Put(b"b", b"1"), client_id=CLIENT, sequence=3)


def test_watch_waits_for_the_first_change_and_not_longer_than_asked() -> None:
    counter = Counter()
    now = counter.ask(Kind.WATCH, Watch())
    assert isinstance(now, Changes)
    ask = Watch(prefix=b"a", after=now.next, wait_ms=300)
    assert counter.drain(build_request(Kind.WATCH, ask.encode(), prefix=0)) == []
    counter.ask(Kind.PUT, Put(b"b", b"other"))
    assert counter.late() == []
    counter.ask(Kind.PUT, Put(b"a", b"1"))
    (reply,) = counter.late()
    changes = decode_reply(reply)
    assert isinstance(changes, Changes)
    assert (changes.keys, changes.values) == ([b"a"], [b"1"])
    again = Watch(prefix=b"a", after=changes.next, wait_ms=300)
    assert counter.drain(build_request(Kind.WATCH, again.encode(), prefix=0)) == []
    counter.drain(later_ms=301)
    (reply,) = counter.late()
    empty = decode_reply(reply)
    assert isinstance(empty, Changes)
    assert empty.keys == []


def test_first_table_is_logged_by_shard_0_alone() -> None:
    assert Counter(shard=0, shards=4).effects.table == initial_table(4)
    assert Counter(shard=1, shards=4).effects.table is None


# -- legacy -----------------------------------------------------------------------------------


def legacy(kind: Kind, body: Put | Get | GetMany | Scan | DeleteMany) -> list[Frame]:
    return build_request(kind, body.encode(), prefix=None, sequence=77)


def test_legacy_request_for_a_key_of_shard_0_is_executed_and_answered_without_prefix() -> None:
    counter = Counter(shards=4)
    (reply,) = counter.drain(legacy(Kind.PUT, Put(key_of(0), b"1")))
    assert reply.shard is None
    assert isinstance(decode_reply(reply), Written)


def test_legacy_request_for_another_shard_is_passed_on_and_answered_without_prefix() -> None:
    counter = Counter(shards=4)
    assert counter.drain(legacy(Kind.DELETE_MANY, DeleteMany([key_of(2)]))) == []
    ((shard, frames),) = counter.passed_on
    assert shard == 2
    passed = parse_request(frames[1:])
    assert (passed.prefix, passed.header.flags) == (2, Flag.FORWARDED)
    owner = Counter(shard=2, shards=4)
    (answer,) = owner.drain(frames[1:])
    deleted = decode_reply(answer)
    packed = build_reply(
        passed.return_address(), deleted.encode(), shard=2, log_index=answer.header.log_index
    )
    counter.service.legacy.arrived([bytes(frames[0]), *map(bytes, packed)])
    (reply,) = counter.late()
    assert reply.shard is None
    assert reply.header.sequence == 77
    assert isinstance(decode_reply(reply), Deleted)
    assert counter.effects.get(key_of(2)) is None


def test_legacy_session_is_opened_on_the_owner_before_its_first_write_there() -> None:
    counter = Counter(shards=4)
    body = Put(key_of(2), b"1").encode()
    for sequence in (1, 2):
        frames = build_request(Kind.PUT, body, prefix=None, client_id=CLIENT, sequence=sequence)
        counter.drain(frames)
    kinds = [parse_request(frames[1:]).header.kind for _, frames in counter.passed_on]
    assert kinds == [Kind.SESSION_OPEN, Kind.PUT, Kind.PUT]
    owner = Counter(shard=2, shards=4)
    replies = owner.drain(*(frames[1:] for _, frames in counter.passed_on))
    assert [reply.header.code for reply in replies] == [0, 0, 0]


def test_legacy_request_over_several_shards_or_about_a_whole_one_is_refused() -> None:
    counter = Counter(shards=4)
    for frames in (
        legacy(Kind.GET_MANY, GetMany([key_of(1), key_of(2)])),
        legacy(Kind.SCAN, Scan()),
    ):
        (reply,) = counter.drain(frames)
        with pytest.raises(InvalidRequest, match="shard"):
            decode_reply(reply)


def test_legacy_client_of_an_unsharded_node_may_do_everything() -> None:
    counter = Counter(shards=1)
    for frames in (legacy(Kind.SCAN, Scan()), legacy(Kind.GET_MANY, GetMany([b"a", b"b"]))):
        (reply,) = counter.drain(frames)
        decode_reply(reply)


def test_owner_that_cannot_be_reached_or_is_silent_is_told_in_time() -> None:
    counter = Counter(shards=4)
    counter.reachable = False
    assert counter.drain(legacy(Kind.GET, Get(key_of(3)))) == []
    counter.drain(later_ms=RETRY_MS)
    (reply,) = counter.late()
    with pytest.raises(Unavailable, match="shard 3"):
        decode_reply(reply)
    counter.drain(legacy(Kind.GET, Get(key_of(3))))
    counter.reachable = True
    counter.drain()
    assert counter.late() == []
    counter.drain(later_ms=5_001)
    (reply,) = counter.late()
    with pytest.raises(OutcomeUnknown):
        decode_reply(reply)


def test_what_was_passed_on_is_never_passed_on_again() -> None:
    counter = Counter(shards=4)
    frames = build_request(Kind.GET, Get(key_of(3)).encode(), prefix=None, flags=Flag.FORWARDED)
    (reply,) = counter.drain(frames)
    with pytest.raises(ShardnodeError):
        decode_reply(reply)
    assert counter.passed_on == []


def test_follower_refuses_what_only_a_leader_does() -> None:
    counter = Counter()
    counter.replica.raft.become_follower(counter.replica.raft.term, 0)
    counter.replica.raft.election_deadline_ms = 1 << 40
    for kind, body in [
        (Kind.WATCH, Watch(after=1)),
        (Kind.GET, Get(b"k")),
        (Kind.PUT, Put(b"k", b"v")),
    ]:
        with pytest.raises((NotLeader, Unavailable)):
            counter.ask(kind, body)
