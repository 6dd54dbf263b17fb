"""`shardnode topic`: topics, and what is in them.

The one rule: a command that changes a topic returns when its partitions have followed, so the next
one can use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardnode.cli import output
from shardnode.cli.connection import connected
from shardnode.cli.messages import append_command, read_command
from shardnode.cli.options import CONTEXT, client_options, version_option, wants_json

if TYPE_CHECKING:
    from shardnode.client.values import TopicInfo


@click.group("topic", context_settings=CONTEXT)
@version_option
@client_options
def command() -> None:
    """Create, change, fill and read topics.

    NAME is stream/topic; without a slash the stream is `default`.
    """


command.add_command(append_command)
command.add_command(read_command)

retention_options = [
    click.option(
        "--retention-time",
        type=click.FloatRange(min=0),
        metavar="S",
        help="Delete messages that are older than this many seconds; 0: none for their age.",
    ),
    click.option(
        "--retention-bytes",
        type=click.IntRange(min=0),
        metavar="B",
        help="Delete the oldest messages of a partition that is larger; 0: none for its size.",
    ),
]


def _with_retention(function: Any) -> Any:
    for option in reversed(retention_options):
        function = option(function)
    return function


@command.command("create", context_settings=CONTEXT)
@version_option
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many; there can be more later, never fewer.",
)
@_with_retention
@client_options
def create(
    name: str, partitions: int, retention_time: float | None, retention_bytes: int | None
) -> None:
    """Create a topic and print its full name; if there is one, the exit code is 6."""
    with connected() as client:
        topic = client.create_topic(
            name,
            partitions,
            retention_time=retention_time,
            retention_bytes=retention_bytes,
        )
        info = client.describe_topic(topic.name)
    _write(info)


@command.command("alter", context_settings=CONTEXT)
@version_option
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="As many as before, or more: then a key may go to another one than before.",
)
@_with_retention
@client_options
def alter(
    name: str,
    partitions: int | None,
    retention_time: float | None,
    retention_bytes: int | None,
) -> None:
    """Give a topic more partitions, or another retention."""
    if partitions is None and retention_time is None and retention_bytes is None:
        raise click.UsageError("expected something to change, found nothing; see -h")
    with connected() as client:
        info = client.alter_topic(
            name,
            partitions=partitions,
            retention_time=retention_time,
            retention_bytes=retention_bytes,
        )
    _write(info)


@command.command("list", context_settings=CONTEXT)
@version_option
@client_options
def list_() -> None:
    """List the names of all topics; with --json, what each of them is."""
    with connected() as client:
        for name in client.list_topics():
            if wants_json():
                from shardnode.wire.errors import NotFound

                try:
                    output.write_json(_described(client.describe_topic(name)))
                except NotFound:
                    continue  # it was deleted meanwhile
            else:
                output.write_line(name.encode())


@command.command("describe", context_settings=CONTEXT)
@version_option
@click.argument("name")
@client_options
def describe(name: str) -> None:
    """Show what a topic is, and from where to where its partitions go."""
    with connected() as client:
        info = client.describe_topic(name)
        bounds = client.topic(name).all_bounds()
    if wants_json():
        offsets = [
            {"partition": number, "first": first, "end": end}
            for number, (first, end) in enumerate(bounds)
        ]
        output.write_json(_described(info) | {"offsets": offsets})
        return
    time = "for ever" if info.retention_time is None else f"for {info.retention_time}"
    size = "" if info.retention_bytes is None else f", up to {info.retention_bytes} bytes each"
    about = f"{info.name}: {info.partitions} partitions, messages kept {time}{size}"
    output.note(about)
    rows = [(number, first, end, end - first) for number, (first, end) in enumerate(bounds)]
    output.table(["partition", "first", "end", "messages"], rows)


@command.command("delete", context_settings=CONTEXT)
@version_option
@click.argument("name")
@client_options
def delete(name: str) -> None:
    """Delete a topic with its messages and the offsets of its groups."""
    with connected() as client:
        client.delete_topic(name)
    if wants_json():
        output.write_json({"deleted": name})


def _write(info: TopicInfo) -> None:
    if wants_json():
        output.write_json(_described(info))
    else:
        output.write_line(info.name.encode())


def _described(info: TopicInfo) -> dict[str, object]:
    time = info.retention_time
    return {
        "name": info.name,
        "partitions": info.partitions,
        "retention_time": None if time is None else time.total_seconds(),
        "retention_bytes": info.retention_bytes,
        "created_at": info.created_at,
    }
