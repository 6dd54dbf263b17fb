"""What may be asked: the kinds of requests and their stable numbers.

One rule: a number, once released, keeps its meaning for ever; a kind that is withdrawn leaves a
gap. A receiver refuses a number it does not know as `InvalidRequest`.
"""

from enum import IntEnum, IntFlag


class Kind(IntEnum):
    """The request kind of a header; a reply repeats it. 0 is the kind of a request whose header
    could not be read."""

    PUT = 1
    PUT_MANY = 2
    GET = 3
    GET_MANY = 4
    DELETE_MANY = 5
    CAS = 6
    TRANSACT = 7
    SCAN = 8
    WATCH = 9

    SESSION_OPEN = 32
    SESSION_KEEP_ALIVE = 33
    SESSION_CLOSE = 34

    TOPOLOGY = 48
    EXPLAIN = 49
    STATUS = 50

    APPEND = 64
    READ = 65
    OFFSET_LOOKUP = 66
    APPEND_MANY = 67

    GROUP_JOIN = 128
    GROUP_HEARTBEAT = 129
    GROUP_LEAVE = 130
    OFFSET_COMMIT = 131
    OFFSET_FETCH = 132
    GROUP_LIST = 133
    GROUP_DESCRIBE = 134
    OFFSET_CLAIM = 135
    GROUP_RELEASE = 136

    TOPIC_CREATE = 192
    TOPIC_ALTER = 193
    TOPIC_DELETE = 194
    TOPIC_LIST = 195
    TOPIC_DESCRIBE = 196

    MEMBER_ADD = 208
    MEMBER_REMOVE = 209
    LEADER_TRANSFER = 210
    REBALANCE = 211

    CUT_OPEN = 512
    CUT_READ = 513
    CUT_LOG = 514
    CUT_KEEP = 515
    CUT_CLOSE = 516


KIND_RANGES: tuple[tuple[int, int, str], ...] = (
    (0, 0, "an unreadable request"),
    (1, 31, "key-value"),
    (32, 47, "sessions"),
    (48, 63, "looking at the cluster"),
    (64, 127, "streams: append, read, look up by time"),
    (128, 191, "consumer groups and offsets"),
    (192, 255, "control: membership, topics, users, placement"),
    (256, 511, "between members of one cluster"),
    (512, 543, "bulk reads: consistent cuts of a shard"),
    (544, 32767, "unassigned"),
    (32768, 65535, "private experiments, never released"),
)
"""(first, last, what for): every number belongs to one range, most still without a kind."""


class Flag(IntFlag):
    """Bits of a request header. A receiver refuses an unknown bit below 16, which changes what
    the request means, and ignores one from 16 up."""

    NAMESPACE = 1 << 0
    """The routing key is the 8-byte namespace of a stream partition, not a key."""

    FORWARDED = 1 << 1
    """A shard passed it on for a legacy client: execute or refuse, never pass it on again."""


FLAGS_MUST_UNDERSTAND = 0xFFFF


class Consistency(IntEnum):
    """How fresh a read must be."""

    LINEARIZABLE = 0
    """It sees every write that was acknowledged before it was sent."""

    LEASE = 1
    """The same as long as clocks run at nearly the same speed; no round to the other members."""

    STALE = 2
    """Whatever the asked member has applied."""


class ChangeKind(IntEnum):
    """What happened to a key, in a watch."""

    PUT = 1
    DELETE = 2
    EXPIRE = 3


class Compare(IntEnum):
    """What a transaction compares: a key's version (0: it does not exist) or its value. A value
    comparison with a missing key is false for EQUAL and true for NOT_EQUAL."""

    VERSION_EQUAL = 1
    VERSION_NOT_EQUAL = 2
    VERSION_GREATER = 3
    VERSION_LESS = 4
    VALUE_EQUAL = 5
    VALUE_NOT_EQUAL = 6


class Operation(IntEnum):
    """What a branch of a transaction does with a key."""

    PUT = 1
    DELETE = 2
    GET = 3


class OffsetPoint(IntEnum):
    """What an offset is looked up by."""

    EARLIEST = 1
    """The first message that is still there."""

    LATEST = 2
    """Behind the last message: what the next one will get."""

    LAST = 3
    """The last message itself; in an empty partition the same as LATEST."""

    TIMESTAMP = 4
    """The first message stamped at that time or later; if there is none, LATEST."""


WRITES = frozenset(
    {
        Kind.PUT,
        Kind.PUT_MANY,
        Kind.DELETE_MANY,
        Kind.CAS,
        Kind.TRANSACT,
        Kind.SESSION_OPEN,
        Kind.SESSION_KEEP_ALIVE,
        Kind.SESSION_CLOSE,
        Kind.APPEND,
        Kind.APPEND_MANY,
        Kind.GROUP_JOIN,
        Kind.GROUP_HEARTBEAT,
        Kind.GROUP_LEAVE,
        Kind.OFFSET_COMMIT,
        Kind.OFFSET_CLAIM,
        Kind.GROUP_RELEASE,
        Kind.TOPIC_CREATE,
        Kind.TOPIC_ALTER,
        Kind.TOPIC_DELETE,
        Kind.MEMBER_ADD,
        Kind.MEMBER_REMOVE,
        Kind.REBALANCE,
    }
)
"""Kinds that become a log entry, whose outcome can therefore be unknown after a lost reply."""

APPENDS = frozenset({Kind.APPEND, Kind.APPEND_MANY})
"""Kinds that bring batches to a stream partition."""

SHARD_ADDRESSED = frozenset(
    {
        Kind.SCAN,
        Kind.WATCH,
        Kind.SESSION_OPEN,
        Kind.SESSION_KEEP_ALIVE,
        Kind.SESSION_CLOSE,
        Kind.GROUP_LIST,
        Kind.LEADER_TRANSFER,
        Kind.CUT_OPEN,
        Kind.CUT_READ,
        Kind.CUT_LOG,
        Kind.CUT_KEEP,
        Kind.CUT_CLOSE,
    }
)
"""Kinds that concern one shard, not one key: sent to each shard by its prefix. Guessing a shard
for them would silently leave out the others."""

PARTITION_ADDRESSED = frozenset(
    {
        Kind.APPEND,
        Kind.APPEND_MANY,
        Kind.READ,
        Kind.OFFSET_LOOKUP,
        Kind.OFFSET_COMMIT,
        Kind.OFFSET_FETCH,
        Kind.OFFSET_CLAIM,
    }
)
"""Kinds whose routing key is the namespace of a stream partition, marked by `Flag.NAMESPACE`."""
