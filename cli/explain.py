"""`shardnode explain`: where a key is, and why.

The one rule: the answer is the node's own, by the table it routes with; nothing is computed here
but the part of the key that counts.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from shardnode.cli import encodings, output
from shardnode.cli.connection import connected
from shardnode.cli.options import (
    CONTEXT,
    DataCommand,
    client_options,
    encoding_option,
    version_option,
    wants_json,
)


@click.command("explain", cls=DataCommand, context_settings=CONTEXT)
@version_option
@click.argument("key")
@encoding_option
@client_options
def command(key: str, encoding: str) -> None:
    """Show where KEY is: its hash, slot and shard, and the process that leads there."""
    name = encodings.argument(key, encoding)
    with connected() as client:
        route = asdict(client.explain(name))
    from shardnode.wire.placement import tag_of

    tag = tag_of(name)
    if wants_json():
        keys = {"key": encodings.to_json(name, encoding), "tag": encodings.to_json(tag, encoding)}
        output.write_json({**keys, **route})
        return
    why = "the part in braces" if tag != name else "the whole key"
    facts: dict[str, object] = {
        "key": encodings.printable(name),
        "hashed": f"{encodings.printable(tag)} ({why})",
        "hash": f"{route['hash']:#018x}",
        "slot": f"{route['slot']} of 16384",
        "shard": route["shard"],
        "leader": "none" if route["leader"] is None else f"node {route['leader']}",
        "pid": route["pid"],
        "core": route["core"],
        "epoch": route["epoch"],
    }
    for fact, value in facts.items():
        shown = "-" if value is None else value
        output.write_line(f"{fact:<7} {shown}".encode())
