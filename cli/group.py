"""`shardnode group`: consumer groups, how far behind they are, and moving one.

The one rule: looking changes nothing, and a move says where the group is then.
"""

from __future__ import annotations

from typing import Any

import click

from shardnode.cli import output
from shardnode.cli.connection import connected
from shardnode.cli.options import CONTEXT, DataCommand, client_options, version_option, wants_json


class Place(click.ParamType[tuple[str, int]]):
    """TOPIC:PARTITION."""

    name = "TOPIC:PARTITION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        topic, colon, number = str(value).rpartition(":")
        if not (colon and topic and number.isascii() and number.isdigit()):
            self.fail(f"expected TOPIC:PARTITION, such as shop/orders:3, found {value}", param, ctx)
        return topic, int(number)


@click.group("group", context_settings=CONTEXT)
@version_option
@client_options
def command() -> None:
    """Show consumer groups, and move them."""


@command.command("list", context_settings=CONTEXT)
@version_option
@client_options
def list_() -> None:
    """List the names of all groups."""
    with connected() as client:
        for name in client.list_groups():
            if wants_json():
                output.write_json({"name": name})
            else:
                output.write_line(name.encode())


@command.command("describe", context_settings=CONTEXT)
@version_option
@click.argument("group", metavar="G")
@client_options
def describe(group: str) -> None:
    """Show who reads which partition, how far the group is, and how far behind.

    The lag is unknown (-) where the group has never committed.
    """
    with connected() as client:
        info = client.describe_group(group)
    if wants_json():
        rows = [{**each._asdict(), "lag": each.lag} for each in info.partitions]
        output.write_json(
            {
                "name": info.name,
                "generation": info.generation,
                "members": list(info.members),
                "partitions": rows,
            }
        )
        return
    headings = ["topic", "partition", "member", "committed", "end", "lag"]
    output.note(f"{info.name}: {len(info.members)} members, generation {info.generation}")
    output.table(headings, [[*each, each.lag] for each in info.partitions])


@command.command("seek", cls=DataCommand, context_settings=CONTEXT)
@version_option
@click.argument("group", metavar="G")
@click.argument("place", type=Place())
@click.argument("offset")
@client_options
def seek(group: str, place: tuple[str, int], offset: str) -> None:
    """Let a group go on elsewhere in a partition, and print the offset.

    OFFSET is a number, earliest, latest, last, -10m (ms, s, m, h, d), or a time as RFC 3339. Who
    reads the partition goes on there with its next heartbeat.
    """
    topic, partition = place
    with connected() as client:
        found = client.seek_group(group, topic, partition, offset)
    if wants_json():
        output.write_json({"group": group, "topic": topic, "partition": partition, "offset": found})
    else:
        output.write_line(b"%d" % found)
