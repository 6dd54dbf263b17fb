"""Addresses for a cluster on one machine: where each node is, and where others reach it.

    127.1.0.J    node J itself
    127.1.I.J    the proxy through which node I reaches node J

All of 127.0.0.0/8 is this machine on Linux. Every node has ports of its own: nodes that share a
machine must differ in them.

The one rule: two clusters never get the same ports, however many tests run at once. A range is
claimed by a socket that its cluster keeps bound.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from random import Random

from shardnode.node.config_kinds import Address
from shardnode.node.ports import BASES, is_free
from shardnode.wire.ports import DIRECT_PORT_OFFSET, HTTP_PORT_OFFSET, PEER_PORT_OFFSET

RANGE = 300
"""Ports of one node: up to 100 shards from P + 200."""

_CLAIM_HOST = "127.1.255.254"


def host_of(node: int) -> str:
    """Where a node listens."""
    return f"127.1.0.{node}"


def proxy_host(source: int, target: int) -> str:
    """Where `source` believes `target` to be."""
    return f"127.1.{source}.{target}"


def ports_of(base: int, shards: int) -> tuple[list[int], list[int]]:
    """(ports for clients, ports for peers) of a node."""
    clients = [base, *(base + DIRECT_PORT_OFFSET + shard for shard in range(shards))]
    return clients, [base + PEER_PORT_OFFSET + shard for shard in range(shards)]


class Claims:
    """A range of ports for each of some nodes, kept until `close`."""

    def __init__(self, nodes: int, shards: int) -> None:
        self.bases: dict[int, int] = {}
        """Node → its port P."""
        self._sockets: list[socket.socket] = []
        starts = list(range(BASES.start, BASES.stop, RANGE))
        Random(int.from_bytes(os.urandom(8), "big")).shuffle(starts)
        for base in starts:
            node = len(self.bases) + 1
            if node > nodes:
                return
            if self._claim(base):
                if all(is_free(address) for address in _needed(base, node, nodes, shards)):
                    self.bases[node] = base
                else:
                    self._sockets.pop().close()
        self.close()
        raise RuntimeError(
            f"expected {nodes} ranges of {RANGE} free ports in {BASES}, found {len(self.bases)};"
            " stop some of the clusters on this machine"
        )

    def _claim(self, base: int) -> bool:
        claim = socket.socket()
        try:
            claim.bind((_CLAIM_HOST, base))
        except OSError:
            claim.close()
            return False
        self._sockets.append(claim)
        return True

    def close(self) -> None:
        """Give the ranges back."""
        while self._sockets:
            self._sockets.pop().close()


def _needed(base: int, node: int, nodes: int, shards: int) -> Iterator[Address]:
    clients, peers = ports_of(base, shards)
    hosts = [host_of(node), *(proxy_host(i, node) for i in range(1, nodes + 1) if i != node)]
    for host in hosts:
        yield from (Address(host, port) for port in [*clients, *peers, base + HTTP_PORT_OFFSET])
