"""What each operation does, over files and in memory."""

from __future__ import annotations

import msgpack
import pytest

from shardnode.raft import RAFT_PARTITION, Entry
from shardnode.shard.entries import (
    CONTROL_SET,
    EXPIRE_KEYS,
    HEADER_BYTES,
    decode_entry,
    encode_entry,
    split_reply,
)
from shardnode.wire import limits
from shardnode.wire.errors import Conflict, InvalidRequest, LimitExceeded
from shardnode.wire.kinds import Compare, Kind, Operation
from shardnode.wire.replies import decode_error
from shardnode.wire.requests import Cas, DeleteMany, Put, PutMany, Transact
from tests.engine.kit import ALICE, Log


def test_entry_comes_back_as_it_was_packed() -> None:
    payload = encode_entry(
        7, Kind.PUT, b"body", flags=0x5_0002, client_id=ALICE, sequence=3, acked_below=2
    )
    command = decode_entry(payload)
    assert command[:6] == (7, Kind.PUT, 2, ALICE, 3, 2)
    assert bytes(command.body) == b"body"
    assert len(payload) == HEADER_BYTES + 4


def test_put_gives_the_log_index_as_version(log: Log) -> None:
    assert log.do(Put(b"k", b"v")).version == 1
    assert log.do(Put(b"k", b"w")).version == 2
    assert log.machine.get(b"k") == (b"w", 2, 0)
    assert log.machine.get(b"other") is None


def test_put_many_sets_all_with_one_version(log: Log) -> None:
    keys = [b"%04d" % number for number in range(1000)]
    assert log.do(PutMany(keys, keys)).version == 1
    assert log.machine.get_many([*keys, b"none"]) == [*keys, None]
    assert log.machine.get(b"0999") == (b"0999", 1, 0)


def test_get_many_stops_when_the_reply_is_full_but_gives_at_least_one(log: Log) -> None:
    log.do(PutMany([b"a", b"b", b"c"], [bytes(10), bytes(10), bytes(10)]))
    keys = [b"a", b"none", b"b", b"c"]
    assert log.machine.get_many(keys, 1) == [bytes(10)]
    assert log.machine.get_many(keys, 11) == [bytes(10), None, bytes(10)]
    assert len(log.machine.get_many(keys, 31)) == 4


def test_empty_value_is_a_value(log: Log) -> None:
    log.do(Put(b"k", b""))
    assert log.machine.get(b"k") == (b"", 1, 0)
    assert log.machine.get_many([b"k"]) == [b""]


def test_delete_counts_what_was_there(log: Log) -> None:
    log.do(PutMany([b"a", b"b"], [b"1", b"2"]))
    answer = log.do(DeleteMany([b"b", b"c"]))
    assert (answer.version, answer.deleted) == (2, 1)
    assert log.machine.get_many([b"a", b"b"]) == [b"1", None]


def test_cas_compares_versions(log: Log) -> None:
    assert log.do(Cas(b"k", b"v", 0)).version == 1
    assert log.do(Cas(b"k", b"w", 1)).version == 2
    with pytest.raises(Conflict) as conflict:
        log.do(Cas(b"k", b"x", 1))
    assert (conflict.value.key, conflict.value.version) == (b"k", 2)
    with pytest.raises(Conflict):
        log.do(Cas(b"k", b"x", 0))
    assert log.machine.get(b"k") == (b"w", 2, 0)
    log.do(DeleteMany([b"k"]))
    assert log.do(Cas(b"k", b"again", 0)).version == 6


def transact(compare: tuple[Compare, bytes, int | bytes]) -> Transact:
    kind, key, operand = compare
    return Transact(
        bytes([kind]),
        [key],
        [operand],
        bytes([Operation.PUT, Operation.DELETE, Operation.GET, Operation.DELETE]),
        [b"new", b"k", b"other", b"none"],
        [b"1", None, None, None],
        [0, 0, 0, 0],
        bytes([Operation.GET]),
        [b"k"],
        [None],
        [0],
    )


HOLDS = [
    (Compare.VERSION_EQUAL, b"k", 1),
    (Compare.VERSION_EQUAL, b"none", 0),
    (Compare.VERSION_NOT_EQUAL, b"k", 2),
    (Compare.VERSION_GREATER, b"k", 0),
    (Compare.VERSION_LESS, b"k", 2),
    (Compare.VALUE_EQUAL, b"k", b"v"),
    (Compare.VALUE_NOT_EQUAL, b"k", b"w"),
    (Compare.VALUE_NOT_EQUAL, b"none", b""),
]
FAILS = [
    (Compare.VERSION_EQUAL, b"k", 2),
    (Compare.VERSION_NOT_EQUAL, b"k", 1),
    (Compare.VERSION_GREATER, b"k", 1),
    (Compare.VERSION_LESS, b"k", 1),
    (Compare.VALUE_EQUAL, b"k", b"w"),
    (Compare.VALUE_EQUAL, b"none", b""),
    (Compare.VALUE_NOT_EQUAL, b"k", b"v"),
]


@pytest.mark.parametrize("compare", HOLDS)
def test_transaction_does_then_when_all_holds(
    log: Log, compare: tuple[Compare, bytes, int | bytes]
) -> None:
    log.do(PutMany([b"k", b"other"], [b"v", b"o"]))
    answer = log.do(transact(compare))
    assert answer.succeeded
    assert list(answer.versions) == [2, 1, 1, 0]
    assert list(answer.values) == [None, None, b"o", None]
    assert log.machine.get_many([b"new", b"k", b"other"]) == [b"1", None, b"o"]


@pytest.mark.parametrize("compare", FAILS)
def test_transaction_does_otherwise_when_something_does_not(
    log: Log, compare: tuple[Compare, bytes, int | bytes]
) -> None:
    log.do(PutMany([b"k", b"other"], [b"v", b"o"]))
    answer = log.do(transact(compare))
    assert not answer.succeeded
    assert (list(answer.versions), list(answer.values)) == ([1], [b"v"])
    assert log.machine.get(b"new") is None


def test_transaction_that_cannot_be_answered_has_no_effect(log: Log) -> None:
    size = limits.value_bytes_max
    keys = [b"%d" % number for number in range(5)]
    for key in keys:
        log.do(Put(key, bytes(size)))
    kinds = bytes([Operation.GET] * 5 + [Operation.PUT])
    ask = Transact(
        b"", [], [], kinds, [*keys, b"new"], [*([None] * 5), b"x"], [0] * 6, b"", [], [], []
    )
    with pytest.raises(LimitExceeded):
        log.do(ask)
    assert log.machine.get(b"new") is None


BAD_BODIES = [
    b"",
    b"\xc1",
    b"\x91",
    b"\x92\x01\xa1x",
    b"\x93\xa1x\x01\x02",
    b"\x92\x91\x01\x91\x01",
]


@pytest.mark.parametrize("number", [*range(1, 10), 32, 33, 34, EXPIRE_KEYS, 0x7F02, 0x7F55])
@pytest.mark.parametrize("body", BAD_BODIES)
def test_bad_body_is_a_reply_and_changes_nothing(log: Log, number: int, body: bytes) -> None:
    log.do(Put(b"k", b"v"))
    before = log.machine.keyvalue.blobs()
    code, packed = split_reply(log.send(number, body))
    assert code == InvalidRequest.number
    assert type(decode_error(packed)) is InvalidRequest
    assert log.machine.keyvalue.blobs() == before
    assert log.machine.get(b"k") == (b"v", 1, 0)


def test_payload_too_short_for_its_header_is_a_reply(log: Log) -> None:
    code, _ = split_reply(log.apply(log.append(b"short")))
    assert code == InvalidRequest.number


def test_consensus_entries_pass_without_a_reply(log: Log) -> None:
    assert log.apply(log.append(b"", RAFT_PARTITION)) == b""
    assert log.machine.applied_index == 1
    assert log.machine.partition_indexes == {}


def test_unknown_partition_is_refused_but_counted(log: Log) -> None:
    code, _ = split_reply(log.apply(log.append(b"whatever", 77)))
    assert code == InvalidRequest.number
    assert log.machine.partition_indexes == {77: 1}


def test_skipped_or_repeated_entries_are_a_mistake_of_ours(log: Log) -> None:
    log.do(Put(b"k", b"v"))
    with pytest.raises(AssertionError):
        log.machine.apply([log.entries[0]])
    with pytest.raises(AssertionError):
        log.machine.apply([Entry(3, 1, 77, 1, b"")])
    with pytest.raises(AssertionError):
        log.machine.apply([Entry(2, 1, 77, 2, b"")])


def test_expire_keys_needs_the_version(log: Log) -> None:
    log.do(PutMany([b"a", b"b"], [b"1", b"2"], ttl_ms=10))
    log.do(Put(b"b", b"3"))
    log.send(EXPIRE_KEYS, msgpack.packb([[b"a", b"b", b"c"], [1, 1, 0]]))
    assert log.machine.get_many([b"a", b"b", b"c"]) == [None, b"3", None]


def test_control_commands_do_not_belong_to_keys(log: Log) -> None:
    code, _ = split_reply(log.send(CONTROL_SET, b""))
    assert code == InvalidRequest.number
