"""Which ports a node needs (`wire.ports`), whether they are free, and who has them if not.

The one rule: all ports are known and were free before the first process is started, so a node
starts whole or says at once which port is in the way.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import psutil

from shardnode.node.config import Config
from shardnode.node.config_kinds import Address
from shardnode.wire.errors import Unavailable
from shardnode.wire.ports import (
    DIRECT_PORT_OFFSET,
    HTTP_PORT_OFFSET,
    PEER_PORT_OFFSET,
    PORT_MAX,
)

BASES = range(20_000, 32_000)
"""Where `HOST:0` looks: below the range from which systems take ports for outgoing connections."""

ATTEMPTS = 200


class PortTaken(Unavailable):
    """A port that the node needs is not free; `pid` is who has it, if that can be seen."""

    retryable = False

    def __init__(self, address: Address, purpose: str, holder: str, pid: int | None) -> None:
        self.address, self.pid = address, pid
        any_port = Address(address.host, 0)
        super().__init__(
            f"expected port {address.port} on {address.host} ({purpose}) to be free, found it taken"
            f" by {holder}; stop that, or let the node find free ports: --listen {any_port}"
        )


@dataclass(frozen=True, slots=True)
class Ports:
    """The real addresses of one node."""

    listen: Address
    http: Address | None
    direct: Mapping[int, Address]
    peers: Mapping[int, Address]

    def purposes(self) -> Iterator[tuple[str, Address]]:
        """Every address, and what it is for."""
        yield "router", self.listen
        if self.http is not None:
            yield "HTTP", self.http
        yield from ((f"shard {shard}", address) for shard, address in self.direct.items())
        yield from ((f"peers of shard {shard}", each) for shard, each in self.peers.items())


def choose_ports(config: Config) -> Ports:
    """The ports of a node, all of them free a moment ago; raises `PortTaken`."""
    listen = config.node.listen
    if listen.port:
        ports = _layout(listen, config)
        for purpose, address in ports.purposes():
            if not is_free(address):
                raise PortTaken(address, purpose, *holder_of(address))
        return ports
    draw = Random(int.from_bytes(os.urandom(8), "big"))
    for _ in range(ATTEMPTS):
        ports = _layout(Address(listen.host, draw.choice(BASES)), config)
        if all(is_free(address) for _, address in ports.purposes()):
            return ports
    raise Unavailable(
        f"expected free ports on {listen.host} between {BASES.start} and"
        f" {BASES.stop + PEER_PORT_OFFSET}, found none in {ATTEMPTS} attempts; name one with"
        " --listen HOST:PORT, or check the host"
    )


def _layout(listen: Address, config: Config) -> Ports:
    shards: Sequence[int] = config.local_shard_ids
    http = config.http_address
    if http is not None and not http.port:
        http = Address(http.host, listen.port + HTTP_PORT_OFFSET)
    return Ports(
        listen=listen,
        http=http,
        direct={shard: listen.plus(DIRECT_PORT_OFFSET + shard) for shard in shards},
        peers={shard: listen.plus(PEER_PORT_OFFSET + shard) for shard in shards},
    )


def numeric(address: Address) -> Address:
    """The same with the host as a number, which is all that a ZeroMQ socket can bind to."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Unavailable(
            f"expected a host of this machine, found {address.host}: {error}; use its IP address"
        ) from None
    return Address(str(found[0][4][0]), address.port)


def endpoint(address: Address) -> str:
    """As ZeroMQ writes an address."""
    return f"tcp://{address}"


def is_free(address: Address) -> bool:
    """Whether a process of ours could listen there now."""
    if address.port > PORT_MAX:
        return False
    where = numeric(address)
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As our own sockets do: a port that a closed connection still lingers on is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(tuple(where))
            probe.listen(1)
        except OSError:
            return False
    return True


def holder_of(address: Address) -> tuple[str, int | None]:
    """(who listens on a port, in words; its process id), as far as we may see it."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):  # macOS asks for more rights
        connections = []
    for each in connections:
        if each.laddr and each.laddr.port == address.port and each.status == psutil.CONN_LISTEN:
            if each.pid is None:
                return "a process of another user", None
            try:
                return f"{psutil.Process(each.pid).name()} (process {each.pid})", each.pid
            except psutil.Error:
                return f"process {each.pid}", each.pid
    return "another process, or the address is not this machine's", None
