"""What several settings must be together, said before anything is started.

The one rule: a check looks at a `Config` alone, never at this machine, so that a file can be
checked anywhere before it is copied to where it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

from shardnode.node.config import SETTINGS, Config
from shardnode.node.config_kinds import Address, Peer
from shardnode.node.config_units import BadValue, shown
from shardnode.wire import limits
from shardnode.wire.ports import (
    DIRECT_PORT_OFFSET,
    HTTP_PORT_OFFSET,
    PEER_PORT_OFFSET,
    PORT_MAX,
)


class Finding(NamedTuple):
    """A setting that does not go with the others."""

    path: str
    bad: BadValue


def findings(config: Config) -> Iterator[Finding]:
    """Everything that does not go together; nothing for a configuration that can be started."""
    for check in CHECKS:
        yield from check(config)


def shards_exist(config: Config) -> Iterator[Finding]:
    beyond = [shard for shard in config.local_shard_ids if shard >= config.shard_count]
    if beyond:
        expected = f"shards from 0 to {config.shard_count - 1}"
        remedy = f"there are {config.shard_count} shards: raise sharding.shards, or leave it out"
        yield Finding("sharding.local_shards", BadValue(expected, str(beyond[0]), remedy))


def every_shard_has_a_holder(config: Config) -> Iterator[Finding]:
    alone = len(config.cluster.peers) < 2 and config.join_address is None
    missing = sorted({*range(config.shard_count)} - {*config.local_shard_ids})
    if alone and missing:
        remedy = "leave local_shards out, or name the other nodes in cluster.peers"
        bad = BadValue("all shards on the only node", f"no shard {missing[0]}", remedy)
        yield Finding("sharding.local_shards", bad)


def membership_is_clear(config: Config) -> Iterator[Finding]:
    peers, own = config.cluster.peers, config.node.id
    if peers and config.join_address is not None:
        remedy = "keep peers to found a cluster, or join to enter a running one"
        yield Finding("cluster.join", BadValue("peers or join", "both", remedy))
    elif peers and own not in {peer.id for peer in peers}:
        found = f"node {own} and peers {', '.join(str(peer.id) for peer in peers)}"
        remedy = "add this node to cluster.peers, or correct node.id (--node-id)"
        yield Finding("cluster.peers", BadValue("this node among the peers", found, remedy))
    replicas = len(peers) * config.shard_count
    if replicas > limits.replicas_max:
        found = f"{len(peers)} peers of {config.shard_count} shards"
        expected = f"at most {limits.replicas_max} replicas"
        yield Finding("cluster.peers", BadValue(expected, found, "use fewer peers or shards"))


def node_can_be_reached(config: Config) -> Iterator[Finding]:
    listen, advertise = config.node.listen, config.node.advertise
    others = [peer for peer in config.cluster.peers if peer.id != config.node.id]
    own = [peer for peer in config.cluster.peers if peer.id == config.node.id]
    if isinstance(advertise, Address) and advertise.is_wildcard:
        bad = BadValue("an address of one machine", str(advertise), "name one that others reach")
        yield Finding("node.advertise", bad)
    elif config.join_address is not None and config.advertised.is_wildcard:
        bad = BadValue("an address that others reach", str(config.advertised), "set it")
        yield Finding("node.advertise", bad)
    if others and listen.port == 0:
        remedy = "the other nodes must know it: choose a port"
        yield Finding("node.listen", BadValue("a port", "0", remedy))
    elif others and own and advertise == "auto" and listen.port != own[0].address.port:
        expected = f"port {own[0].address.port} as in cluster.peers"
        remedy = "correct one of them; if ports are translated, set node.advertise"
        yield Finding("node.listen", BadValue(expected, str(listen.port), remedy))
    far = [peer for peer in others if not peer.address.is_loopback]
    if far and listen.is_loopback:
        remedy = f"{far[0]} cannot reach this machine's own address: listen on 0.0.0.0 or its name"
        yield Finding("node.listen", BadValue("an address for the network", str(listen), remedy))


def ports_fit(config: Config) -> Iterator[Finding]:
    highest = PEER_PORT_OFFSET + config.shard_count - 1
    named = [("node.listen", config.node.listen)]
    named += [("cluster.peers", peer.address) for peer in config.cluster.peers]
    for path, address in named:
        if address.port + highest > PORT_MAX:
            expected = f"a port of at most {PORT_MAX - highest}"
            remedy = f"with {config.shard_count} shards the ports up to +{highest} are used"
            yield Finding(path, BadValue(expected, str(address.port), remedy))
            return


def ports_are_free_of_each_other(config: Config) -> Iterator[Finding]:
    http, listen = config.http.listen, config.node.listen
    if isinstance(http, Address) and http.port and listen.port and _share_a_host(http, listen):
        used = {*_ports(config, listen)} - {listen.port + HTTP_PORT_OFFSET}
        if http.port in used:
            remedy = "the router or a shard needs it: choose another, or auto"
            yield Finding("http.listen", BadValue("a free port", str(http.port), remedy))
    for one, other in combinations(config.cluster.peers, 2):
        if clash := _clash(config, one, other):
            remedy = f"both would use port {clash}: give them ports 1000 apart, as 7400 and 8400"
            found = f"{one} and {other}"
            bad = BadValue("nodes that share a host to have ports of their own", found, remedy)
            yield Finding("cluster.peers", bad)
            return


def network_is_protected(config: Config) -> Iterator[Finding]:
    if config.security.plaintext_network or config.security.keys:
        return
    remedy = (
        "there, anybody could read and write: keep to 127.0.0.1, or say that the network is"
        " trusted with security.plaintext_network = true"
    )
    for path, address in (("node.listen", config.node.listen), ("http.listen", config.http.listen)):
        if isinstance(address, Address) and not address.is_loopback:
            bad = BadValue("an address that only this machine reaches", str(address), remedy)
            yield Finding(path, bad)


def leaders_are_heard_in_time(config: Config) -> Iterator[Finding]:
    raft = config.raft
    if raft.heartbeat_ms * 3 > raft.election_timeout_ms:
        expected = f"at most a third of raft.election_timeout ({raft.election_timeout_ms}ms)"
        remedy = "or a single lost heartbeat starts an election"
        yield Finding("raft.heartbeat", BadValue(expected, f"{raft.heartbeat_ms}ms", remedy))


def nothing_planned_is_asked_for(config: Config) -> Iterator[Finding]:
    for each in SETTINGS.values():
        if each.planned and (value := config.value(each)) != each.default:
            default = shown(each.kind.to_toml(each.default))
            remedy = "this version cannot do it yet: leave it out"
            bad = BadValue(default, shown(each.kind.to_toml(value)), remedy)
            yield Finding(each.path, bad)


CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    shards_exist,
    every_shard_has_a_holder,
    membership_is_clear,
    node_can_be_reached,
    ports_fit,
    ports_are_free_of_each_other,
    network_is_protected,
    leaders_are_heard_in_time,
    nothing_planned_is_asked_for,
)


def _ports(config: Config, router: Address) -> Iterator[int]:
    """Every port that a node with this router's port uses."""
    yield router.port
    yield router.port + HTTP_PORT_OFFSET
    for shard in range(config.shard_count):
        yield router.port + DIRECT_PORT_OFFSET + shard
        yield router.port + PEER_PORT_OFFSET + shard


def _share_a_host(one: Address, other: Address) -> bool:
    same = one.host == other.host or (one.is_loopback and other.is_loopback)
    return same or one.is_wildcard or other.is_wildcard


def _clash(config: Config, one: Peer, other: Peer) -> int | None:
    """A port that two peers on one host would both use."""
    if not _share_a_host(one.address, other.address):
        return None
    common = {*_ports(config, one.address)} & {*_ports(config, other.address)}
    return min(common, default=None)
