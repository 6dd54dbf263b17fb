"""What is asked: one class per request body.

One rule: a request stays on one shard. Every key it names belongs to the shard it is sent to; the
sender groups keys first (`placement.group_by_shard`). The keys that one request writes are
distinct, because they all get the same version.

Here are those about keys, sessions and looking at the cluster; `streams`, `groups`, `control` and
`cuts` have the others. A class is found by its kind in `REQUESTS`; `decode_request` does both
steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from shardnode.wire import control, cuts, groups, limits, streams
from shardnode.wire.codec import Body
from shardnode.wire.errors import InvalidRequest, malformed
from shardnode.wire.fields import (
    Bound,
    BytesColumn,
    CompareKinds,
    DistinctKeys,
    Flag,
    Int,
    IntColumn,
    Key,
    Keys,
    Level,
    Number,
    Operands,
    OperationKinds,
    OptionalNumber,
    Prefix,
    TtlMs,
    Value,
    Values,
)
from shardnode.wire.kinds import Compare, Consistency, Kind, Operation

_TransactKeys = Annotated[
    Sequence[bytes], BytesColumn("key_bytes_max", "transact_operations_max", length_min=1)
]
_TransactValues = Annotated[
    Sequence[bytes | None],
    BytesColumn("value_bytes_max", "transact_operations_max", optional=True),
]
_TransactTtls = Annotated[Sequence[int], IntColumn("transact_operations_max", "ttl_ms_max")]


def _same_length(**columns: Sequence[object]) -> None:
    """Parallel columns have one element per record each."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise malformed(
            f"as many {' as '.join(lengths)}",
            ", ".join(f"{length} {name}" for name, length in lengths.items()),
            "send one of each for every record",
        )


def _at_least_one(keys: Sequence[bytes]) -> None:
    if not keys:
        raise malformed("at least one key", "none", "leave out a request without keys")


@dataclass(frozen=True, slots=True)
class Put(Body):
    """Set one key. Answered by `Written`."""

    key: Key
    value: Value
    ttl_ms: TtlMs = 0
    """The key expires this long after the request's log stamp; 0: never."""
    leased: Flag = False
    """The key is deleted when the session that wrote it ends; needs a session."""


@dataclass(frozen=True, slots=True)
class PutMany(Body):
    """Set many keys at once, all or none. Answered by `Written`."""

    keys: DistinctKeys
    values: Values
    ttl_ms: TtlMs = 0
    leased: Flag = False

    def validate(self) -> None:
        _at_least_one(self.keys)
        _same_length(keys=self.keys, values=self.values)


@dataclass(frozen=True, slots=True)
class Get(Body):
    """Read one key. Answered by `Entry`."""

    key: Key
    consistency: Level = Consistency.LINEARIZABLE


@dataclass(frozen=True, slots=True)
class GetMany(Body):
    """Read many keys; repeats are allowed. Answered by `Found`."""

    keys: Keys
    consistency: Level = Consistency.LINEARIZABLE

    def validate(self) -> None:
        _at_least_one(self.keys)


@dataclass(frozen=True, slots=True)
class DeleteMany(Body):
    """Delete keys, all or none; those that do not exist are not counted. Answered by `Deleted`."""

    keys: DistinctKeys

    def validate(self) -> None:
        _at_least_one(self.keys)


@dataclass(frozen=True, slots=True)
class Cas(Body):
    """Set one key if its version is the expected one; 0: if it does not exist. Answered by
    `Written`, or `Conflict` with the version found."""

    key: Key
    value: Value
    version: Number
    ttl_ms: TtlMs = 0
    leased: Flag = False


@dataclass(frozen=True, slots=True)
class Transact(Body):
    """If all comparisons hold, do `then`, else `otherwise`; atomically. Answered by `Transacted`.

    Comparisons and operations are parallel columns. A put has a value and a TTL; for a delete or
    a get the value is None and the TTL 0. A branch names each key once.
    """

    compare_kinds: CompareKinds
    compare_keys: _TransactKeys
    compare_operands: Operands
    """An int for a version, bytes for a value."""
    then_kinds: OperationKinds
    then_keys: _TransactKeys
    then_values: _TransactValues
    then_ttls_ms: _TransactTtls
    otherwise_kinds: OperationKinds
    otherwise_keys: _TransactKeys
    otherwise_values: _TransactValues
    otherwise_ttls_ms: _TransactTtls

    def validate(self) -> None:
        _same_length(
            compare_kinds=self.compare_kinds,
            compare_keys=self.compare_keys,
            compare_operands=self.compare_operands,
        )
        for kind, operand in zip(self.compare_kinds, self.compare_operands, strict=True):
            by_value = kind in (Compare.VALUE_EQUAL, Compare.VALUE_NOT_EQUAL)
            if by_value != isinstance(operand, bytes):
                raise malformed(
                    f"{'bytes' if by_value else 'an int'} to compare by {Compare(kind).name}",
                    type(operand).__name__,
                    "compare versions with numbers and values with bytes",
                )
        self._check_branch(self.then_kinds, self.then_keys, self.then_values, self.then_ttls_ms)
        self._check_branch(
            self.otherwise_kinds,
            self.otherwise_keys,
            self.otherwise_values,
            self.otherwise_ttls_ms,
        )
        _at_least_one([*self.compare_keys, *self.then_keys, *self.otherwise_keys])

    @staticmethod
    def _check_branch(
        kinds: bytes, keys: Sequence[bytes], values: Sequence[bytes | None], ttls_ms: Sequence[int]
    ) -> None:
        _same_length(kinds=kinds, keys=keys, values=values, ttls_ms=ttls_ms)
        if len(set(keys)) != len(keys):
            raise malformed(
                "each key once in a branch", "one of them twice", "merge its operations"
            )
        for kind, value, ttl_ms in zip(kinds, values, ttls_ms, strict=True):
            is_put = kind == Operation.PUT
            if is_put == (value is None) or (ttl_ms and not is_put):
                raise malformed(
                    "a value for a put, and neither value nor TTL for a delete or a get",
                    f"{Operation(kind).name} {'without' if value is None else 'with'} a value,"
                    f" TTL {ttl_ms}",
                    "give puts a value and nothing else one",
                )


@dataclass(frozen=True, slots=True)
class Scan(Body):
    """One page of a shard's keys, `start` ≤ key < `end`, in order. Answered by `Page`.

    A page ends at `limit` entries or once it has `page_bytes`, with at least one entry; 0 leaves
    either to the shard. The next page has the same range and `after` = the page's `next`. A scan
    of everything asks every shard; see `cursors.ScanCursor`.
    """

    start: Bound = None
    end: Bound = None
    after: Bound = None
    """Go on behind this key (in reverse: before it)."""
    limit: Annotated[int, Int("scan_page_entries_max")] = 0
    page_bytes: Annotated[int, Int("scan_page_bytes_max")] = 0
    reverse: Flag = False
    keys_only: Flag = False
    consistency: Level = Consistency.LINEARIZABLE


@dataclass(frozen=True, slots=True)
class Watch(Body):
    """The changes of a shard behind a position. Answered by `Changes`, as soon as there are any
    or after `wait_ms`; the next request goes on at the reply's `next`. Nothing is pushed, so a
    slow watcher costs its shard nothing: it falls behind until it gets `Compacted`.
    """

    prefix: Prefix = b""
    after: OptionalNumber = None
    """A position (see `cursors`); 0 is before every change. None asks only for the position of
    now: the reply comes at once, empty, so that a repeated request can miss nothing."""
    limit: Annotated[int, Int("batch_keys_max")] = 0
    page_bytes: Annotated[int, Int("scan_page_bytes_max")] = 0
    wait_ms: Annotated[int, Int("watch_wait_ms_max")] = 0


@dataclass(frozen=True, slots=True)
class SessionOpen(Body):
    """Open the session of the header's client id on one shard; again is harmless. Answered by
    `SessionGranted`."""

    ttl_ms: Annotated[int, Int("session_ttl_ms_max", low=limits.session_ttl_ms_min)]


@dataclass(frozen=True, slots=True)
class SessionKeepAlive(Body):
    """Start the session's time to live anew. Answered by `SessionGranted`."""


@dataclass(frozen=True, slots=True)
class SessionClose(Body):
    """End the session and delete its leased keys. Answered by `SessionClosed`."""


@dataclass(frozen=True, slots=True)
class Topology(Body):
    """Where is everything? Answered by `TopologyFound`."""


@dataclass(frozen=True, slots=True)
class Explain(Body):
    """Where is this key, and why? Answered by `Route`."""

    key: Key


@dataclass(frozen=True, slots=True)
class Status(Body):
    """How are the shards? Answered by `StatusFound`."""


REQUESTS: Mapping[Kind, type[Body]] = {
    Kind.PUT: Put,
    Kind.PUT_MANY: PutMany,
    Kind.GET: Get,
    Kind.GET_MANY: GetMany,
    Kind.DELETE_MANY: DeleteMany,
    Kind.CAS: Cas,
    Kind.TRANSACT: Transact,
    Kind.SCAN: Scan,
    Kind.WATCH: Watch,
    Kind.SESSION_OPEN: SessionOpen,
    Kind.SESSION_KEEP_ALIVE: SessionKeepAlive,
    Kind.SESSION_CLOSE: SessionClose,
    Kind.TOPOLOGY: Topology,
    Kind.EXPLAIN: Explain,
    Kind.STATUS: Status,
    Kind.APPEND: streams.Append,
    Kind.APPEND_MANY: streams.AppendMany,
    Kind.READ: streams.Read,
    Kind.OFFSET_LOOKUP: streams.OffsetLookup,
    Kind.GROUP_JOIN: groups.GroupJoin,
    Kind.GROUP_HEARTBEAT: groups.GroupHeartbeat,
    Kind.GROUP_LEAVE: groups.GroupLeave,
    Kind.OFFSET_COMMIT: groups.OffsetCommit,
    Kind.OFFSET_FETCH: groups.OffsetFetch,
    Kind.GROUP_LIST: groups.GroupList,
    Kind.GROUP_DESCRIBE: groups.GroupDescribe,
    Kind.OFFSET_CLAIM: groups.OffsetClaim,
    Kind.GROUP_RELEASE: groups.GroupRelease,
    Kind.TOPIC_CREATE: control.TopicCreate,
    Kind.TOPIC_ALTER: control.TopicAlter,
    Kind.TOPIC_DELETE: control.TopicDelete,
    Kind.TOPIC_LIST: control.TopicList,
    Kind.TOPIC_DESCRIBE: control.TopicDescribe,
    Kind.MEMBER_ADD: control.MemberAdd,
    Kind.MEMBER_REMOVE: control.MemberRemove,
    Kind.LEADER_TRANSFER: control.LeaderTransfer,
    Kind.REBALANCE: control.Rebalance,
    Kind.CUT_OPEN: cuts.CutOpen,
    Kind.CUT_READ: cuts.CutRead,
    Kind.CUT_LOG: cuts.CutLog,
    Kind.CUT_KEEP: cuts.CutKeep,
    Kind.CUT_CLOSE: cuts.CutClose,
}


def decode_request(kind: int, body: bytes | memoryview) -> Body:
    """The body of a request; raises an `InvalidRequest`, also for a kind not known here."""
    if kind not in REQUESTS:
        known = ", ".join(f"{known.value} {known.name}" for known in REQUESTS)
        raise InvalidRequest(
            f"expected a kind of request ({known}), found {kind}; use a node of the client's"
            " release or newer"
        )
    return REQUESTS[Kind(kind)].decode(body)


def prefix_range(prefix: bytes) -> tuple[bytes, bytes | None]:
    """The range `start` ≤ key < `end` of the keys that begin with `prefix`, for a `Scan`."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        return prefix, None
    return prefix, stem[:-1] + bytes([stem[-1] + 1])
