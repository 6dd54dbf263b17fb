"""`shardnode topic append` and `read`: messages as lines.

The one rule: what is read is on its way before it is committed, and what is appended leaves as soon
as it is there. So a pipe of `read --group` and whatever follows it loses nothing, and `tail -f |
shardnode topic append` appends each line when it comes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from shardnode.cli import encodings, output
from shardnode.cli.connection import connected
from shardnode.cli.options import (
    CONTEXT,
    client_options,
    encoding_option,
    version_option,
    wants_json,
)

if TYPE_CHECKING:
    from shardnode.client.consumer import Consumer
    from shardnode.client.messages import Message

BATCH_MESSAGES = 1_000
BATCH_BYTES = 1 << 20
CHUNK_BYTES = 1 << 20
POLL_S = 1.0
LOOK_S = 0.05
"""How often to look whether the end is reached."""


@click.command("append", context_settings=CONTEXT, short_help="Append lines of stdin.")
@version_option
@click.argument("name")
@click.option("--partition", type=click.IntRange(min=0), metavar="P", help="Append there.")
@click.option("--key", metavar="K", help="The key of all messages, which chooses the partition.")
@click.option("--compression", type=click.Choice(["zstd"]), help="Compress each batch.")
@encoding_option
@client_options
def append_command(
    name: str, partition: int | None, key: str | None, compression: str | None, encoding: str
) -> None:
    """Append messages, one per line on stdin, and print how many there were.

    Without --partition and --key batches go to one partition after another.
    """
    if partition is not None and key is not None:
        raise click.UsageError("expected --partition or --key, found both")
    data = None if key is None else encodings.argument(key, encoding)
    count = 0
    with connected() as client:
        topic = client.topic(name)
        try:
            for lines in _batches(_chunks()):
                values = [encodings.decode(line, encoding) for line in lines]
                topic.append(
                    values,
                    key=data,
                    partition=partition,
                    compression="zstd" if compression else None,
                )
                count += len(values)
        except Exception:
            output.note(f"{count} messages were appended before it failed")
            raise
    if wants_json():
        output.write_json({"appended": count})
    else:
        output.write_line(b"%d" % count)


def _chunks() -> Iterator[bytes]:
    """What stdin has, as it comes."""
    if sys.stdin is None:
        raise click.UsageError("expected messages on stdin, found stdin closed")
    while chunk := os.read(sys.stdin.fileno(), CHUNK_BYTES):
        yield chunk


def _batches(chunks: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Lines in batches; whatever is complete is not kept waiting for more."""
    from shardnode.wire.limits import value_bytes_max

    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from _cut(lines)
        if len(rest) > 4 * value_bytes_max:  # in hex it takes twice its size; it is refused anyway
            break
    if rest:
        yield [rest]


def _cut(lines: list[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == BATCH_MESSAGES or size + len(line) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield batch


@click.command("read", context_settings=CONTEXT, short_help="Write messages as lines.")
@version_option
@click.argument("name")
@click.option("--partition", type=click.IntRange(min=0), metavar="P", help="Only this one.")
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help="earliest, latest, an offset, -10m (ms, s, m, h, d), or a time as RFC 3339.",
)
@click.option("--group", metavar="G", help="As a member of this group, and commit what is written.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="At most N messages.")
@click.option("--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@encoding_option
@client_options
def read_command(
    name: str,
    partition: int | None,
    start: str,
    group: str | None,
    count: int | None,
    follow: bool,
    encoding: str,
) -> None:
    """Write messages, one per line: all that are there, of all partitions in turns.

    With --group it goes on where the group is, and --from is for partitions that the group never
    committed. With --json a line has the key, headers, offset and time too.
    """
    if group is not None and partition is not None:
        raise click.UsageError("expected --group or --partition, found both; a group assigns them")
    with connected() as client:
        partitions = None if partition is None else [partition]
        consumer = client.topic(name).consumer(group, start, partitions)
        if follow:
            output.note("following; Ctrl-C ends it")
        try:
            _read(consumer, count, follow=follow, encoding=encoding)
        finally:
            consumer.close()  # so that the others of the group need not wait for its session


def _read(consumer: Consumer, count: int | None, *, follow: bool, encoding: str) -> None:
    from shardnode.wire.errors import Conflict

    left = count
    has_group = consumer.group is not None
    while left is None or left > 0:
        limit = BATCH_MESSAGES if left is None else min(left, BATCH_MESSAGES)
        if not follow and consumer.is_at_end:
            break
        messages = consumer.poll(POLL_S if follow else LOOK_S, limit)
        if messages:
            _write(messages, encoding)
            output.flush()
        if left is not None:
            left -= len(messages)
        if has_group and messages:
            try:
                consumer.commit(messages)
            except Conflict as error:
                output.note(f"{error.message}")


def _write(messages: list[Message], encoding: str) -> None:
    if wants_json():
        for message in messages:
            output.write_json(_to_json(message, encoding))
    elif output.stdout_is_terminal():
        for message in messages:
            data = encodings.encode(message.value, encoding)
            output.write_line(encodings.printable(data).encode())
    else:
        lines = [encodings.encode(message.value, encoding) for message in messages]
        output.write(b"\n".join([*lines, b""]))


def _to_json(message: Message, encoding: str) -> dict[str, object]:
    key = message.key
    return {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "key": None if key is None else encodings.to_json(key, encoding),
        "value": encodings.to_json(message.value, encoding),
        "headers": [
            {"key": name, "value": encodings.to_json(value, encoding)}
            for name, value in message.headers.pairs
        ],
    }
