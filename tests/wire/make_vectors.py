"""The published vectors: what a client in another language checks itself against.

`python tests/wire/make_vectors.py` writes them anew; `test_vectors.py` fails when they differ from
what the code says. Released ones may be added to, never changed.

Binary strings are `{"hex": …}`; whole numbers of 64 bits are hexadecimal text, since JSON readers
round them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from shardnode.wire import (
    batches,
    control,
    errors,
    frames,
    groups,
    limits,
    placement,
    replies,
    requests,
    streams,
)
from shardnode.wire.cluster import Route, StatusFound, TopologyFound
from shardnode.wire.codec import Body
from shardnode.wire.cursors import ScanCursor, WatchCursor, position_of
from shardnode.wire.kinds import (
    ChangeKind,
    Compare,
    Consistency,
    Flag,
    Kind,
    OffsetPoint,
    Operation,
)
from tests.wire.cut_examples import CUTS
from tests.wire.place_vectors import placement_vectors

FOLDER = Path(__file__).resolve().parents[1] / "vectors"
CLIENT_ID = bytes(range(16))

TRANSACT = requests.Transact(
    compare_kinds=bytes([Compare.VERSION_EQUAL, Compare.VALUE_NOT_EQUAL]),
    compare_keys=[b"{a}:1", b"{a}:2"],
    compare_operands=[7, b"old"],
    then_kinds=bytes([Operation.PUT, Operation.DELETE]),
    then_keys=[b"{a}:1", b"{a}:2"],
    then_values=[b"new", None],
    then_ttls_ms=[60_000, 0],
    otherwise_kinds=bytes([Operation.GET]),
    otherwise_keys=[b"{a}:2"],
    otherwise_values=[None],
    otherwise_ttls_ms=[0],
)
STATUS = StatusFound(
    node_id=1,
    cluster="main",
    epoch=3,
    ids=[0, 1],
    pids=[4001, None],
    cores=[0, None],
    roles=["leader", "follower"],
    leaders=[1, None],
    terms=[2, 2],
    commit_indexes=[70, 0],
    applied_indexes=[70, 0],
    durable_indexes=[71, 0],
    truncation_indexes=[12, 0],
    states=["serving", "parked"],
    restarts=[0, 9],
    digests=[0x0123456789ABCDEF, 0],
    needed_indexes=[13, 0],
    snapshot_indexes=[10, 0],
    log_bytes=[4096, 0],
    errors=["", "it ended 9 times"],
    mark_shards=[0],
    mark_partitions=[placement.KEY_VALUE_PARTITION],
    mark_applied=[66],
    mark_durable=[60],
    mark_required=[64],
)
TOPOLOGY = TopologyFound(
    cluster="main",
    table=placement.initial_table(2, epoch=3).encode(),
    leaders=[1, 0],
    node_ids=[1, 2],
    node_endpoints=["tcp://10.0.0.1:7400", "tcp://10.0.0.2:7400"],
    replica_shards=[0, 1],
    replica_nodes=[1, 2],
    replica_endpoints=["tcp://10.0.0.1:7500", "tcp://10.0.0.2:7501"],
    cluster_id=0xFEDCBA9876543210,
)

BATCH = streams.MessageBatch(
    values=[b"m1", b""],
    keys=[b"customer-7", None],
    header_counts=[2, 0],
    header_names=["trace", "trace"],
    header_values=[b"\x01", b"\x02"],
)
_SIZE = len(BATCH.encode())
_BLOCK = (_SIZE << 3 | 1).to_bytes(3, "little") + BATCH.encode()  # not compressed, and the last
BATCH_FRAME = batches.ZSTD_MAGIC + bytes([0x20, _SIZE]) + _BLOCK
"""By hand, because what a compressor makes of it depends on its version."""
ZSTD = {"zstd_magic": batches.ZSTD_MAGIC.hex(), "zstd_frame": BATCH_FRAME.hex()}
ORDERS = [placement.pack_namespace(1, 2, partition) for partition in range(3)]
TOPIC = control.TopicFound("shop/orders", 1, 2, 8, 86_400_000, 0, 1_700_000_000_000)
ASSIGNED = groups.GroupAssigned("worker-1", 5, ORDERS[:2], 30_000)

EXAMPLES: Mapping[Kind, tuple[Body, Body]] = {
    Kind.PUT: (requests.Put(b"user:1", b"Ada", ttl_ms=1_500), replies.Written(71)),
    Kind.PUT_MANY: (requests.PutMany([b"a", b"\xff\x00"], [b"1", b""]), replies.Written(72)),
    Kind.GET: (
        requests.Get(b"user:1", Consistency.STALE),
        replies.Entry(b"Ada", 71, 1_700_000_000_000),
    ),
    Kind.GET_MANY: (requests.GetMany([b"a", b"b", b"a"]), replies.Found([b"1", None, b"1"])),
    Kind.DELETE_MANY: (requests.DeleteMany([b"a", b"b"]), replies.Deleted(73, 1)),
    Kind.CAS: (requests.Cas(b"user:1", b"Grace", 71, leased=True), replies.Written(74)),
    Kind.TRANSACT: (TRANSACT, replies.Transacted(True, [75, 9], [None, None])),
    Kind.SCAN: (
        requests.Scan(b"user:", b"user;", after=b"user:1", limit=2, page_bytes=4096),
        replies.Page([b"user:2", b"user:3"], [b"B", b""], [5, 6], [0, 1_700_000_000_000], None),
    ),
    Kind.WATCH: (
        requests.Watch(b"user:", position_of(70), limit=100, wait_ms=1_000),
        replies.Changes(
            kinds=bytes([ChangeKind.PUT, ChangeKind.EXPIRE]),
            keys=[b"user:1", b"user:2"],
            values=[b"Ada", None],
            versions=[71, 72],
            positions=[position_of(71, 0), position_of(72, 3)],
            next=position_of(72),
            expires_at_ms=[1_700_000_000_000, 0],
        ),
    ),
    Kind.SESSION_OPEN: (requests.SessionOpen(30_000), replies.SessionGranted(30_000)),
    Kind.SESSION_KEEP_ALIVE: (requests.SessionKeepAlive(), replies.SessionGranted(30_000)),
    Kind.SESSION_CLOSE: (requests.SessionClose(), replies.SessionClosed()),
    Kind.TOPOLOGY: (requests.Topology(), TOPOLOGY),
    Kind.EXPLAIN: (requests.Explain(b"user:1"), Route(2**64 - 1, 16383, 3, None, 3, 4001, 2)),
    Kind.STATUS: (requests.Status(), STATUS),
    Kind.APPEND: (
        streams.Append(ORDERS[1], 2, BATCH.encode(), b"till-3", 17),
        streams.Appended(40, 1_700_000_000_000),
    ),
    Kind.APPEND_MANY: (
        streams.AppendMany(ORDERS[1], [2, 2], [len(BATCH.encode())] * 2, 2 * BATCH.encode()),
        streams.Appended(42, 1_700_000_000_000),
    ),
    Kind.READ: (
        streams.Read(ORDERS[1], 41, limit=100, wait_ms=1_000),
        streams.MessagesFound([40], [2], [1_700_000_000_000], [BATCH.encode()], 42, 7, 42),
    ),
    Kind.OFFSET_LOOKUP: (
        streams.OffsetLookup(ORDERS[1], OffsetPoint.TIMESTAMP, 1_700_000_000_000),
        streams.OffsetFound(40, 7, 42),
    ),
    Kind.GROUP_JOIN: (groups.GroupJoin("billing", None, ["shop/orders"], 30_000), ASSIGNED),
    Kind.GROUP_HEARTBEAT: (groups.GroupHeartbeat("billing", "worker-1", 4, ORDERS), ASSIGNED),
    Kind.GROUP_LEAVE: (groups.GroupLeave("billing", "worker-1"), groups.GroupLeft()),
    Kind.OFFSET_COMMIT: (
        groups.OffsetCommit("billing", 5, ORDERS[:2], [12, 42]),
        groups.OffsetsCommitted(),
    ),
    Kind.OFFSET_FETCH: (groups.OffsetFetch("billing", ORDERS), groups.OffsetsFound([12, 42, None])),
    Kind.GROUP_LIST: (
        groups.GroupList("audit", 100),
        groups.GroupsFound(["billing"], [5], [2], None),
    ),
    Kind.GROUP_DESCRIBE: (
        groups.GroupDescribe("billing"),
        groups.GroupFound(5, ["worker-1", "worker-2"], ORDERS, [0, None, 1]),
    ),
    Kind.OFFSET_CLAIM: (
        groups.OffsetClaim("billing", 5, ORDERS[:2]),
        groups.OffsetsFound([12, None]),
    ),
    Kind.GROUP_RELEASE: (groups.GroupRelease("billing", ORDERS[:1]), groups.GroupReleased()),
    Kind.TOPIC_CREATE: (control.TopicCreate("shop/orders", 8, 86_400_000), TOPIC),
    Kind.TOPIC_ALTER: (control.TopicAlter("shop/orders", retention_ms=86_400_000), TOPIC),
    Kind.TOPIC_DELETE: (control.TopicDelete("shop/orders"), control.TopicDeleted()),
    Kind.TOPIC_LIST: (
        control.TopicList("default/a"),
        control.TopicsFound(["shop/orders"], [1], [2], [8], None),
    ),
    Kind.TOPIC_DESCRIBE: (control.TopicDescribe("shop/orders"), TOPIC),
    Kind.MEMBER_ADD: (control.MemberAdd(4, "tcp://10.0.0.4:7400"), control.Changed(12)),
    Kind.MEMBER_REMOVE: (control.MemberRemove(4), control.Changed(13)),
    Kind.LEADER_TRANSFER: (control.LeaderTransfer(2), control.Changed(13)),
    Kind.REBALANCE: (control.Rebalance(), control.Changed(14)),
    **CUTS,
}

ERRORS: tuple[errors.ShardnodeError, ...] = (
    *(cls("what happened") for cls in errors.CODES.values()),
    errors.Overloaded("too far behind", lag=120, limit=100),
    errors.Conflict("version differs", key=b"user:1", version=9),
    errors.Compacted("gone", first_available=5),
    errors.WrongShard("moved", epoch=4),
    errors.NotLeader("ask node 2", leader=2),
    errors.UnsupportedVersion("version 9", version_min=1, version_max=1),
    errors.malformed("a header", "nothing", "send one"),
    errors.limit_exceeded("key_bytes_max", 480, 481, "send a shorter key"),
)

LIMITS = {
    name: value
    for name, value in vars(limits).items()
    if type(value) is int and not name.startswith("_")
}


def plain(value: object) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, IntEnum):
        return value.name
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, int) and value > 2**53:
        return f"{value:#x}"
    return value


def frame_vectors() -> dict[str, Any]:
    body = EXAMPLES[Kind.PUT][0].encode()
    built = {
        "sharded": frames.build_request(
            Kind.PUT,
            body,
            prefix=3,
            routing_key=b"user:1",
            deadline_ms=5_000,
            epoch=3,
            client_id=CLIENT_ID,
            sequence=9,
            acked_below=7,
        ),
        "placed by the router": frames.build_request(
            Kind.PUT, body, prefix=frames.PLACE_FOR_ME, routing_key=b"user:1"
        ),
        "placed by namespace": frames.build_request(
            64, b"\x90", prefix=frames.PLACE_FOR_ME, routing_key=bytes(8), flags=Flag.NAMESPACE
        ),
        "legacy": frames.build_request(Kind.PUT, body, prefix=None, routing_key=b"user:1"),
        "legacy from a REQ socket": frames.build_request(
            Kind.PUT, body, prefix=None, routing_key=b"user:1", delimited=True
        ),
    }
    written = EXAMPLES[Kind.PUT][1].encode()
    requests_ = []
    replies_ = []
    for name, message in built.items():
        request = frames.parse_request(message)
        requests_.append({"name": name, "frames": hexed(message), "parsed": envelope(request)})
        answer = frames.build_reply(
            request.return_address(), written, shard=3, epoch=3, log_index=71
        )
        parsed = frames.parse_reply(answer)
        replies_.append({"name": name, "frames": hexed(answer), "parsed": envelope(parsed)})
    return {"requests": requests_, "replies": replies_, "malformed": malformed_vectors(built)}


def envelope(message: frames.Request | frames.Reply) -> dict[str, Any]:
    parts = {name: plain(part) for name, part in message._asdict().items()}
    header = message.header._asdict().items()
    return {**parts, "header": {name: plain(value) for name, value in header}}


def hexed(message: list[bytes | memoryview]) -> list[str]:
    return [bytes(frame).hex() for frame in message]


def malformed_vectors(built: Mapping[str, list[bytes | memoryview]]) -> list[dict[str, Any]]:
    """Messages that must be refused, and with which refinement of invalid_request."""
    prefix, header, key, body = (bytes(frame) for frame in built["sharded"])
    broken = {
        "short prefix": [b"\0\0\3", header, key, body],
        "unknown prefix": [b"\0\0\0\x64", header, key, body],
        "wrong magic": [prefix, b"HTTP" + header[4:], key, body],
        "unknown version": [prefix, header[:4] + b"\0\x09" + header[6:], key, body],
        "short header": [prefix, header[:-1], key, body],
        "long header": [prefix, header + b"\0", key, body],
        "unknown flag": [prefix, header[:10] + b"\x80\0" + header[12:], key, body],
        "acked beyond itself": [prefix, header[:-8] + b"\xff" * 8, key, body],
        "deadline too long": [prefix, header[:12] + b"\xff" * 4 + header[16:], key, body],
        "routing key too long": [prefix, header, b"k" * 481, body],
        "body left out": [prefix, header, key],
        "a frame too many": [b"", prefix, header, key, body, b""],
        "nothing": [],
    }
    return [
        {"name": name, "frames": hexed([*message]), "refinement": refusal(message)}
        for name, message in broken.items()
    ]


def refusal(message: list[bytes]) -> str:
    try:
        frames.parse_request(message)
    except errors.InvalidRequest as error:
        return error.refinement
    raise AssertionError("a malformed message was accepted")


def body_vectors() -> dict[str, Any]:
    cursors = {
        "scan": ScanCursor(3, [0, 2], [b"user:1", b""]),
        "watch": WatchCursor(3, [0, 1], [position_of(70), 0]),
    }
    return {
        "bodies": [
            {
                "kind": kind.name,
                "request": {"fields": plain(request), "body": request.encode().hex()},
                "reply": {"fields": plain(reply), "body": reply.encode().hex()},
            }
            for kind, (request, reply) in EXAMPLES.items()
        ],
        "message_batch": {"fields": plain(BATCH), "body": BATCH.encode().hex(), **ZSTD},
        "errors": [
            {
                "number": error.number,
                "code": error.code,
                "retryable": error.retryable,
                "body": replies.encode_error(error).hex(),
            }
            for error in ERRORS
        ],
        "cursors": [
            {"name": name, "fields": plain(cursor), "text": cursor.to_text()}
            for name, cursor in cursors.items()
        ],
    }


def number_vectors() -> dict[str, Any]:
    enums = (Kind, Flag, Consistency, ChangeKind, Compare, Operation, OffsetPoint)
    return {
        **{enum.__name__: {member.name: member.value for member in enum} for enum in enums},
        "errors": {cls.code: number for number, cls in errors.CODES.items()},
        "limits": LIMITS,
    }


VECTORS = {
    "placement.json": placement_vectors,
    "frames.json": frame_vectors,
    "bodies.json": body_vectors,
    "numbers.json": number_vectors,
}


def rendered(name: str) -> str:
    """The text of a vector file, as the code would write it now."""
    return json.dumps(VECTORS[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file_name in VECTORS:
        (FOLDER / file_name).write_text(rendered(file_name), encoding="utf-8")
