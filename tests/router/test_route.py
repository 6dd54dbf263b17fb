"""Where requests go, as a table; and that no frames whatever stop the router."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardnode.router.route import Routes
from shardnode.wire import limits
from shardnode.wire.cluster import Route, StatusFound, TopologyFound
from shardnode.wire.errors import (
    InvalidRequest,
    LimitExceeded,
    MalformedFrame,
    ShardnodeError,
    Unavailable,
    UnsupportedVersion,
)
from shardnode.wire.frames import PLACE_FOR_ME, Frame, build_request, parse_reply
from shardnode.wire.kinds import Flag, Kind
from shardnode.wire.placement import (
    PlacementTable,
    hash_of_key,
    initial_table,
    namespace_to_bytes,
    pack_namespace,
    slot_of_key,
    slot_of_partition,
)
from shardnode.wire.replies import decode_error
from shardnode.wire.requests import Explain, Status, Topology
from tests.router.kit import put, settings

TABLE = initial_table(4)
NAMESPACE = pack_namespace(1, 2, 3)


def refused(decision: object) -> ShardnodeError:
    """The error in a reply that was made instead of forwarding."""
    assert isinstance(decision, list)
    reply = parse_reply(decision)
    assert reply.shard is None
    assert reply.header.code
    return decode_error(reply.body)


def answered(decision: object) -> bytes:
    assert isinstance(decision, list)
    reply = parse_reply(decision)
    assert reply.header.code == 0
    return bytes(reply.body)


@pytest.mark.parametrize(
    ("frames", "shard"),
    [
        (put(prefix=0), 0),
        (put(prefix=3), 3),
        (put(prefix=3, delimited=True), 3),
        (put(b"user:1"), TABLE.shard_of_key(b"user:1")),
        (put(b"{user:1}:cart"), TABLE.shard_of_key(b"user:1")),
        (put(b"other"), TABLE.shard_of_key(b"other")),
        (put(b""), 0),
        (put(b"other", prefix=None), 0),
        (put(b"other", prefix=None, delimited=True), 0),
        (
            build_request(
                Kind.APPEND,
                b"",
                prefix=PLACE_FOR_ME,
                routing_key=namespace_to_bytes(NAMESPACE),
                flags=Flag.NAMESPACE,
            ),
            TABLE.shard_of_slot(slot_of_partition(NAMESPACE)),
        ),
        (build_request(Kind.SCAN, b"", prefix=2), 2),
        (build_request(Kind.STATUS, Status().encode(), prefix=2), 2),
        (build_request(Kind.TOPOLOGY, Topology().encode(), prefix=1), 1),
        (build_request(60_000, b"of a kind that nobody knows", prefix=1), 1),
        (put(prefix=1, body=b"\xc1 not msgpack: the router does not look"), 1),
    ],
)
def test_request_goes_to_its_shard(frames: list[Frame], shard: int) -> None:
    decision = Routes(settings()).route(frames)
    assert isinstance(decision, tuple)
    assert decision[0] == shard


HEADER = bytes(put(prefix=0)[1])
OTHER_VERSION = HEADER[:4] + b"\x00\x02" + HEADER[6:]


@pytest.mark.parametrize(
    ("frames", "error", "says"),
    [
        ([], MalformedFrame, "frames"),
        ([b""], MalformedFrame, "frames"),
        ([b"\0\0\0"], MalformedFrame, "frames"),
        ([b"\0\0\0\7", b"GET / HTTP/1.1", b"", b""], MalformedFrame, "SNRQ"),
        ([b"\0\0\0", HEADER, b"", b""], MalformedFrame, "prefix of exactly 4"),
        ([b"\0\0\0\0\0", HEADER, b"", b""], MalformedFrame, "prefix of exactly 4"),
        ([b"\0\0\0\x63", HEADER, b"", b""], InvalidRequest, "shard below 4, found 99"),
        ([b"\0\0\0\x64", HEADER, b"", b""], MalformedFrame, "99 (shard_id_max)"),
        ([b"\0\0\0\0", OTHER_VERSION, b"", b""], UnsupportedVersion, "from 1 to 1, found 2"),
        ([b"\0\0\0\0", HEADER[:55], b"", b""], MalformedFrame, "56 bytes"),
        ([b"\0\0\0\0", HEADER, bytes(481), b""], LimitExceeded, "routing_key_bytes_max"),
        ([b"", b"\0\0\0\0", HEADER, b"", b"", b""], LimitExceeded, "frames_max"),
        (build_request(Kind.SCAN, b"", prefix=PLACE_FOR_ME), InvalidRequest, "prefix of a shard"),
        (
            build_request(Kind.APPEND, b"", prefix=PLACE_FOR_ME, routing_key=b"12345678"),
            InvalidRequest,
            "namespace",
        ),
        (build_request(Kind.EXPLAIN, b"\xc1", prefix=None), MalformedFrame, "Explain"),
    ],
)
def test_wrong_request_is_refused_by_name(
    frames: list[Frame], error: type[ShardnodeError], says: str
) -> None:
    found = refused(Routes(settings()).route(frames))
    assert type(found) is error
    assert says in found.message


def test_refusal_repeats_what_a_client_matches_replies_by() -> None:
    frames = put(prefix=99, sequence=12, delimited=True)
    decision = Routes(settings()).route(frames)
    assert isinstance(decision, list)
    reply = parse_reply(decision)
    assert reply.delimited
    assert (reply.header.sequence, reply.header.kind) == (12, Kind.PUT)


def test_legacy_refusal_has_no_prefix() -> None:
    decision = Routes(settings()).route([b"nonsense"])
    assert isinstance(decision, list)
    assert len(decision) == 2


def test_shard_of_another_node_is_unavailable_by_number() -> None:
    routes = Routes(settings(local=range(2)))
    found = refused(routes.route(put(prefix=3)))
    assert isinstance(found, Unavailable)
    assert "found 3" in found.message


anything = st.lists(
    st.one_of(
        st.binary(max_size=80),
        st.sampled_from([b"", b"\0\0\0\0", b"\xff\xff\xff\xff", HEADER, OTHER_VERSION]),
        st.binary(min_size=52, max_size=52).map(lambda rest: b"SNRQ" + rest),
        st.binary(min_size=50, max_size=50).map(lambda rest: b"SNRQ\x00\x01" + rest),
    ),
    max_size=7,
)


@given(anything)
def test_any_frames_are_forwarded_or_answered(frames: list[bytes]) -> None:
    before = list(frames)
    decision = Routes(settings()).route(frames)
    assert frames == before
    if isinstance(decision, tuple):
        assert 0 <= decision[0] < 4
    else:
        reply = parse_reply(decision)
        if reply.header.code:
            assert decode_error(reply.body).message


def row(shard: int, **changes: Any) -> dict[str, Any]:
    indexes = dict.fromkeys(("commit_index", "applied_index", "durable_index"), 7)
    fields = {"id": shard, "pid": 100 + shard, "core": shard, "role": "leader", "leader": 1}
    fields |= {"term": 3, **indexes, "truncation_index": 1, "state": "serving", "restarts": 0}
    fields |= {"needed_index": 2, "snapshot_index": 0, "log_bytes": 64, "error": "a" * 9_000}
    fields |= {"digest": "0123456789abcdef", "watermarks": [[9, 8, 7, 6]]}
    return fields | changes


def test_topology_names_table_leaders_and_direct_ports() -> None:
    routes = Routes(settings(local=range(2)))
    routes.learn_status({"shards": [row(0), row(1, leader=None)]})
    body = answered(routes.route(build_request(Kind.TOPOLOGY, Topology().encode(), prefix=None)))
    found = TopologyFound.decode(body)
    assert PlacementTable.decode(found.table) == TABLE
    assert list(found.leaders) == [1, 0, 0, 0]
    assert list(found.node_endpoints) == ["tcp://127.0.0.1:7400"]
    assert list(found.replica_endpoints) == ["tcp://127.0.0.1:7500", "tcp://127.0.0.1:7501"]


def test_explain_says_where_a_key_is() -> None:
    routes = Routes(settings())
    shard = TABLE.shard_of_key(b"user:1")
    routes.learn_status({"shards": [row(shard, pid=77, core=1)]})
    request = build_request(Kind.EXPLAIN, Explain(b"user:1").encode(), prefix=PLACE_FOR_ME)
    found = Route.decode(answered(routes.route(request)))
    slot = slot_of_key(b"user:1")
    assert found == Route(hash_of_key(b"user:1"), slot, shard, 1, 1, 77, 1)


def test_status_shows_every_local_shard_also_before_it_was_heard_of() -> None:
    routes = Routes(settings(shards=2))
    routes.learn_status({"shards": [row(1, state="fenced", restarts=4)]})
    request = build_request(Kind.STATUS, Status().encode(), prefix=PLACE_FOR_ME)
    found = StatusFound.decode(answered(routes.route(request)))
    assert list(found.states) == ["starting", "fenced"]
    assert list(found.pids) == [None, 101]
    assert list(found.restarts) == [0, 4]
    assert list(found.digests) == [0, 0x0123456789ABCDEF]
    assert list(found.errors) == ["", "a" * limits.error_message_bytes_max]
    marks = (found.mark_shards, found.mark_partitions, found.mark_required)
    assert [list(column) for column in marks] == [[1], [9], [6]]


def test_newer_table_is_followed_and_an_older_one_is_not() -> None:
    routes = Routes(settings())
    everything_on_2 = PlacementTable(5, 4, bytes([2]) * 16_384)
    routes.learn_table(b64encode(everything_on_2.encode()).decode())
    routes.learn_table(b64encode(TABLE.encode()).decode())
    decision = routes.route(put(b"user:1"))
    assert isinstance(decision, tuple)
    assert decision[0] == 2


def test_new_process_of_a_shard_is_noticed() -> None:
    routes = Routes(settings(shards=2))
    assert routes.learn_status({"shards": [row(0), row(1)]}) == {0, 1}
    assert routes.learn_status({"shards": [row(0), row(1, pid=999)]}) == {1}
    assert routes.learn_status({"shards": [row(0), row(1, pid=999, term=9)]}) == set()


def test_parked_shard_is_named_with_its_state() -> None:
    routes = Routes(settings(shards=2))
    routes.learn_status({"shards": [row(1, state="parked", pid=None)]})
    message = routes.down(1).message
    assert "shard 1" in message
    assert "parked" in message
