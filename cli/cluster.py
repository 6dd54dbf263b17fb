"""`shardnode cluster`: its nodes, and who leads what.

The one rule: a command that changes something returns when the cluster has agreed to the wish, and
`cluster members` shows how far it has come true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardnode.cli import output
from shardnode.cli.connection import connected
from shardnode.cli.options import CONTEXT, client_options, version_option, wants_json

if TYPE_CHECKING:
    from shardnode.client.sync import Client


class Member(click.ParamType[tuple[int, str]]):
    """ID@HOST:PORT."""

    name = "ID@HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, str]:
        node, at, address = str(value).partition("@")
        host, _, port = address.rpartition(":")
        if not (at and node.isascii() and node.isdigit() and host and port.isdigit()):
            self.fail(f"expected ID@HOST:PORT, such as 4@10.0.0.4:7400, found {value}", param, ctx)
        return int(node), address


@click.group("cluster", context_settings=CONTEXT)
@version_option
@client_options
def command() -> None:
    """Show and change the nodes of a cluster."""


@command.command("members", context_settings=CONTEXT)
@client_options
def members() -> None:
    """Show every node, and in how many shards it leads, follows or still learns."""
    with connected() as client:
        rows = [_member(client, *node) for node in sorted(client.topology().nodes.items())]
    if wants_json():
        output.write_json({"members": rows})
        return
    columns = {"node": "id", "address": "address", "state": "state", "leads": "leads"}
    columns |= {"follows": "follows", "learns": "learns"}
    output.table(list(columns), [[row[name] for name in columns.values()] for row in rows])


def _member(client: Client, node: int, endpoint: str) -> dict[str, Any]:
    """One node, as it sees itself; `unreachable` when it does not answer."""
    from shardnode.wire.errors import ShardnodeError

    address = endpoint.removeprefix("tcp://")
    row: dict[str, Any] = {"id": node, "address": address, "state": "unreachable"}
    roles: list[str] = []
    try:
        with type(client)(address, timeout=2.0) as direct:
            status = direct.status()
    except ShardnodeError:
        states = {"unreachable"}
    else:
        states = {shard.state for shard in status.shards}
        roles = [shard.role for shard in status.shards]
    row["state"] = states.pop() if len(states) == 1 else ", ".join(sorted(states))
    row["leads"] = roles.count("leader")
    row["learns"] = roles.count("learner")
    row["follows"] = len(roles) - row["leads"] - row["learns"]
    return row


@command.command("add", context_settings=CONTEXT)
@click.argument("member", type=Member())
@client_options
def add(member: tuple[int, str]) -> None:
    """Let a node be a member: it learns, and votes when it has caught up.

    The node itself is started with `shardnode start --join`, which does the same.
    """
    with connected() as client:
        version = client.add_member(*member)
    _tell(f"node {member[0]} is wanted at {member[1]}", version)


@command.command("remove", context_settings=CONTEXT)
@click.argument("node", type=click.IntRange(min=1), metavar="ID")
@client_options
def remove(node: int) -> None:
    """Take a node out of every shard's group. Stop it when it leads and follows nothing."""
    with connected() as client:
        version = client.remove_member(node)
    _tell(f"node {node} is not wanted any more", version)


@command.command("transfer", context_settings=CONTEXT)
@click.option("--shard", type=click.IntRange(min=0), required=True, help="Of which shard.")
@click.option("--to", "node", type=click.IntRange(min=1), required=True, help="To which node.")
@client_options
def transfer(shard: int, node: int) -> None:
    """Let a node lead a shard; it keeps the lead until the next election."""
    with connected() as client:
        term = client.transfer_leader(shard, node)
    if wants_json():
        output.write_json({"shard": shard, "leader": node, "term": term})
    else:
        output.write_line(f"node {node} leads shard {shard} in term {term}".encode())


@command.command("rebalance", context_settings=CONTEXT)
@client_options
def rebalance() -> None:
    """Let the lead of every shard go back to where it belongs."""
    with connected() as client:
        version = client.rebalance()
    _tell("leaders return to their nodes", version)


def _tell(what: str, version: int) -> None:
    if wants_json():
        output.write_json({"version": version})
    else:
        output.write_line(f"{what} (version {version}); see: shardnode cluster members".encode())
