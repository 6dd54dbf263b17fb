"""configs/three-node.toml as it ships: three nodes on one machine, one file for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from shardnode import Client
from shardnode.configs import example
from shardnode.node.config import Config, Node, Sharding
from shardnode.node.config_kinds import Address
from shardnode.node.ports import choose_ports
from tests.cli.kit import Running
from tests.system.kit import folder, until

DOCUMENTED = ("127.0.0.1:7400", "127.0.0.1:8400", "127.0.0.1:9400")
APART = 400
"""Ports that one node of two shards uses, and some room."""


def free_addresses(count: int) -> list[str]:
    """Routers whose shards' and peers' ports are free too, and nobody else's of the list."""
    wanted = Config(node=Node(listen=Address("127.0.0.1", 0)), sharding=Sharding(True, 2))
    ports: list[int] = []
    while len(ports) < count:
        port = choose_ports(wanted).listen.port
        if all(abs(port - other) > APART for other in ports):
            ports.append(port)
    return [f"127.0.0.1:{port}" for port in ports]


@contextmanager
def three_nodes(place: Path) -> Iterator[list[str]]:
    """The commands at the top of the file, with ports that are free here; their addresses."""
    text = example("three-node")
    addresses = free_addresses(3)
    for documented, address in zip(DOCUMENTED, addresses, strict=True):
        assert text.count(documented) == 1
        text = text.replace(documented, address)
    (place / "three-node.toml").write_text(text)
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                Running(
                    *("start", "--config", "three-node.toml"),
                    *("--node-id", str(number), "--data", f"./data-{number}"),
                    cwd=place,
                )
            )
            for number in (1, 2, 3)
        ]
        assert [node.ready() for node in nodes] == [(2, address) for address in addresses]
        yield addresses


def leaders(address: str) -> tuple[int | None, ...]:
    with Client(address) as db:
        return tuple(shard.leader for shard in db.status().shards)


def test_every_node_of_the_example_takes_and_gives_every_key() -> None:
    with folder() as place, three_nodes(place) as addresses:
        written: dict[bytes, bytes] = {}
        for number, address in enumerate(addresses, 1):
            with Client(address, timeout=10) as db:
                batch = {b"node-%d/%d" % (number, n): b"%d" % n for n in range(20)}
                assert len({db.explain(key).shard for key in batch}) == 2
                db.put_many(batch)
                written |= batch
        for address in addresses:
            with Client(address, timeout=10) as db:
                assert db.get_many(list(written)) == list(written.values())
                assert len(list(db.scan(prefix=b"node-"))) == len(written)
        # Each node was told by a member of each group, so they agree sooner or later.
        until(lambda: len({leaders(address) for address in addresses}) == 1)
        assert {*leaders(addresses[0])} <= {1, 2, 3}
        assert sorted(path.name for path in place.glob("data-*")) == ["data-1", "data-2", "data-3"]
