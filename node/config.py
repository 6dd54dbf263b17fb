"""Every setting of a node: its type, its default, its bounds and its reason.

A section of the TOML file is a class here and a key is a field; a duration's field ends in `_ms`, a
bound of consensus in `_max`, and their keys do not. `configs/reference.toml` is this file in TOML,
and a test keeps it so.

The one rule: a `Config` is complete and right. It is frozen, it comes from `config_load` or from
these defaults, and nobody who holds one looks at files or the environment again.
"""
# ruff: noqa: RUF009 (`setting` is `field`, which the rule does not see)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from shardnode.node.config_kinds import (
    Address,
    Choice,
    CpuList,
    DurationMs,
    FilePath,
    HostPort,
    Integer,
    Kind,
    Name,
    OrWord,
    Peer,
    PeerList,
    ShardList,
    Size,
    Switch,
    Text,
)
from shardnode.wire import limits
from shardnode.wire.ports import HTTP_PORT_OFFSET

T = TypeVar("T")

PORT_DEFAULT = 7400

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_HOUR_MS = 3_600_000


class Setting(NamedTuple):
    """One key: where it stands, how it is read, what it is for."""

    section: str
    key: str
    attribute: str
    kind: Kind[Any]
    default: Any
    reason: str
    planned: bool

    @property
    def path(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"SHARDNODE_{self.section}_{self.key}".upper()


def setting(default: T, kind: Kind[T], reason: str, *, planned: bool = False) -> T:
    """A field of a section. A planned one keeps its default until the node can act on it."""
    metadata = {"kind": kind, "reason": reason, "planned": planned}
    made: T = field(default=default, metadata=metadata)
    return made


@dataclass(frozen=True, slots=True)
class Node:
    """This process and this machine."""

    id: int = setting(
        1, Integer(1, limits.node_id_max), "Differs on every node of a cluster; never changes."
    )
    data: Path = setting(
        Path("./data"), FilePath(), "The directory that holds everything the node remembers."
    )
    listen: Address = setting(
        Address("127.0.0.1", PORT_DEFAULT),
        HostPort(),
        "The router's port P; HTTP is P+80, shards are P+100+N, their peers P+200+N. Port 0: any"
        " free ones. When unset and `peers` names this node, its address there.",
    )
    advertise: Address | str = setting(
        "auto",
        OrWord(("auto",), HostPort(port_min=1)),
        "What others are told to connect to; auto: this node's address in `peers`, else `listen`.",
    )
    cpus: tuple[int, ...] | str = setting(
        "all",
        OrWord(("all", "none"), CpuList()),
        'Where workers are pinned, round robin: all CPUs of this process, "0-3,6", or none.',
    )
    stop_timeout_ms: int = setting(
        10_000, DurationMs(0, _HOUR_MS), "How long a clean stop may take before workers are killed."
    )
    hang_timeout_ms: int = setting(
        10_000,
        DurationMs(1_000, _HOUR_MS),
        "A worker without a sign of life for this long is restarted; ten slow fsyncs fit into it.",
    )
    log_level: str = setting(
        "info", Choice(("debug", "info", "warning", "error")), "What is worth a line on stderr."
    )


@dataclass(frozen=True, slots=True)
class Sharding:
    """How the key space is divided. Fixed when the data directory is made."""

    enabled: bool = setting(
        False,
        Switch(),
        "Off: one shard. Setting `shards` turns it on, unless `enabled` is set beside it.",
    )
    shards: int = setting(
        1,
        Integer(1, limits.shards_max),
        "One worker process and one consensus group each; one per core is a good number.",
    )
    local_shards: tuple[int, ...] = setting(
        (), ShardList(), "The shards that this node holds; empty: all of them."
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Who belongs together."""

    name: str = setting(
        "main", Name(), "Part of the cluster's identity; nodes of another name are not answered."
    )
    peers: tuple[Peer, ...] = setting(
        (),
        PeerList(),
        "The founding members, this one included; empty: a cluster of one. Only read at first"
        " start; afterwards the log says who is a member.",
    )
    join: Address | str = setting(
        "",
        OrWord(("",), HostPort(port_min=1)),
        "A node of a running cluster to join, instead of founding one with `peers`.",
    )


@dataclass(frozen=True, slots=True)
class Raft:
    """Consensus: times and windows of every shard's group."""

    election_timeout_ms: int = setting(
        1_000,
        DurationMs(50, 60_000),
        "Without a leader for one to two of these, a member stands for election.",
    )
    heartbeat_ms: int = setting(
        100,
        DurationMs(5, 10_000),
        "A tenth of the election timeout: several may be lost before anybody doubts the leader.",
    )
    resend_ms: int = setting(
        400, DurationMs(10, 60_000), "An append without an answer for this long counts as lost."
    )
    snapshot_resend_ms: int = setting(
        1_000,
        DurationMs(10, 600_000),
        "A snapshot is offered again this often until the follower has it.",
    )
    lease_margin_percent: int = setting(
        10,
        Integer(1, 50),
        "How much faster one node's clock may run than another's before a lease read could lie.",
    )
    append_bytes_max: int = setting(
        1 * _MIB,
        Size(4 * _KIB, limits.frame_bytes_max),
        "One message to a follower: room for a full batch, and heartbeats need not wait for it.",
    )
    inflight_appends_max: int = setting(
        32, Integer(1, 1_024), "Messages under way to a follower before the leader waits."
    )
    uncommitted_bytes_max: int = setting(
        64 * _MIB,
        Size(limits.frame_bytes_max, 64 * _GIB),
        "Writes beyond this are refused as Overloaded, so a stalled quorum costs no memory.",
    )
    cache_bytes_max: int = setting(
        8 * _MIB, Size(0, 64 * _GIB), "Recent entries kept in memory for followers that lag."
    )


@dataclass(frozen=True, slots=True)
class Storage:
    """Files of every shard."""

    engine: str = setting(
        "lmdb",
        Choice(("lmdb", "memory")),
        "memory: for tests and throw-away nodes only; everything is gone when the node stops.",
    )
    segment_bytes: int = setting(
        64 * _MIB,
        Size(1 * _MIB, 4 * _GIB),
        "One file of the log; also about what is read again after a crash.",
    )
    index_every_bytes: int = setting(
        64 * _KIB,
        Size(4 * _KIB, 16 * _MIB),
        "Distance of entries in a segment's index: a lookup reads this much at most.",
    )
    zero_ahead_bytes: int = setting(
        1 * _MIB,
        Size(0, 64 * _MIB),
        "Zeros written ahead of small batches: an fsync over them is faster. 0B turns it off.",
    )
    table_bytes: int = setting(
        64 * _MIB,
        Size(1 * _MIB, 64 * _GIB),
        "Effects kept in memory before they are flushed; while one table is flushed another fills,"
        " so a shard needs twice this. Also about what is redone after a crash.",
    )
    snapshot_entries: int = setting(
        0, Integer(0, 1 << 30), "A snapshot every so many entries; 0: only when a member needs one."
    )
    keep_entries: int = setting(
        8_192,
        Integer(0, 1 << 30),
        "Entries kept behind durable effects, so that a member slightly behind needs only the log.",
    )
    keep_bytes_max: int = setting(
        256 * _MIB,
        Size(0, 1024 * _GIB),
        "Those are kept while the log is smaller than this; who lags more is sent a snapshot.",
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """What this node accepts: the protocol's ceilings or less, never more."""

    value_bytes: int = setting(
        limits.value_bytes_max,
        Size(1, limits.value_bytes_max),
        "The largest value; larger things belong in an object store.",
    )
    batch_keys: int = setting(
        limits.batch_keys_max,
        Integer(1, limits.batch_keys_max),
        "Keys of one request: applying them holds up the shard's other requests.",
    )
    batch_messages: int = setting(
        limits.batch_messages_max,
        Integer(1, limits.batch_messages_max),
        "Messages of one append.",
    )
    batch_bytes: int = setting(
        limits.batch_bytes_max,
        Size(1, limits.batch_bytes_max),
        "One append as it is sent.",
    )
    inflight_requests: int = setting(
        8_192,
        Integer(1, 1 << 20),
        "Writes under way in one partition, such as all keys of a shard; more are Overloaded.",
    )
    partitions: int = setting(
        10_000,
        Integer(1, limits.partitions_max),
        "Stream partitions of one shard: each has files of its own.",
    )
    sessions: int = setting(
        10_000,
        Integer(1, 1 << 20),
        "Clients that one shard remembers to recognise repeats.",
    )


@dataclass(frozen=True, slots=True)
class Http:
    """Health, metrics and the console."""

    listen: Address | str = setting(
        "auto",
        OrWord(("auto", "off"), HostPort()),
        "auto: the host of [node] listen, its port + 80. off: no HTTP at all.",
    )
    threads: int = setting(4, Integer(1, 64), "Requests answered at once.")


@dataclass(frozen=True, slots=True)
class Security:
    """Who may connect. Without keys, only this machine."""

    plaintext_network: bool = setting(
        False,
        Switch(),
        "Allows addresses that other machines reach although nothing is encrypted or checked.",
    )
    keys: Path | str = setting(
        "",
        OrWord(("",), FilePath()),
        "Directory with this node's CURVE keys and those it trusts.",
        planned=True,
    )
    users: bool = setting(
        False, Switch(), "Refuses everything that no role of a user allows.", planned=True
    )


@dataclass(frozen=True, slots=True)
class Tiering:
    """Sealed stream segments in an object store."""

    enabled: bool = setting(False, Switch(), "Copies sealed segments to `store`.", planned=True)
    store: str = setting(
        "", Text(), "The object store: a directory that every node sees, or a URL.", planned=True
    )
    local_bytes: int = setting(
        1 * _GIB,
        Size(0, 1 << 50),
        "Of each partition this much stays local after it was copied.",
        planned=True,
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one node. Its properties answer what several of them mean together."""

    node: Node = field(default_factory=Node)
    sharding: Sharding = field(default_factory=Sharding)
    cluster: Cluster = field(default_factory=Cluster)
    raft: Raft = field(default_factory=Raft)
    storage: Storage = field(default_factory=Storage)
    limits: Limits = field(default_factory=Limits)
    http: Http = field(default_factory=Http)
    security: Security = field(default_factory=Security)
    tiering: Tiering = field(default_factory=Tiering)

    @property
    def shard_count(self) -> int:
        """Shards of the whole cluster."""
        return self.sharding.shards if self.sharding.enabled else 1

    @property
    def local_shard_ids(self) -> tuple[int, ...]:
        """Shards of this node, in order."""
        chosen = self.sharding.local_shards if self.sharding.enabled else ()
        return chosen or tuple(range(self.shard_count))

    def with_shards(self, shards: int) -> Config:
        """The same for that many shards: a node that joined a cluster follows it."""
        return replace(self, sharding=replace(self.sharding, enabled=shards > 1, shards=shards))

    @property
    def http_address(self) -> Address | None:
        """Where HTTP listens, if it does. Follows a router port of 0: any free one."""
        listen = self.http.listen
        if isinstance(listen, Address):
            return listen
        if listen == "off":
            return None
        return self.node.listen.plus(HTTP_PORT_OFFSET)

    @property
    def advertised(self) -> Address:
        """What others are told to connect to."""
        if isinstance(self.node.advertise, Address):
            return self.node.advertise
        own = (peer.address for peer in self.cluster.peers if peer.id == self.node.id)
        return next(own, self.node.listen)

    @property
    def join_address(self) -> Address | None:
        """The node of a running cluster to join, if that is wanted."""
        return self.cluster.join if isinstance(self.cluster.join, Address) else None

    def value(self, of: Setting) -> Any:
        """The value of one setting."""
        return getattr(getattr(self, of.section), of.attribute)


SECTIONS = {part.name: cast(type[Any], part.default_factory) for part in fields(Config)}


def _settings() -> Iterator[Setting]:
    for section, cls in SECTIONS.items():
        for part in fields(cls):
            key = part.name.removesuffix("_ms").removesuffix("_max")
            yield Setting(section, key, part.name, default=part.default, **part.metadata)


SETTINGS: dict[str, Setting] = {each.path: each for each in _settings()}
"""Every setting by its path, such as `sharding.shards`, in the order of the reference."""
