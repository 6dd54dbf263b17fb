"""`shardnode inspect`: what a node's directory, or one of its files, says.

The one rule: a row on stdout for each thing, as it is read; JSON lines with `--json`. Damage ends
the rows with exit code 7 and the place; `shardnode verify` looks for all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import click

from shardnode.cli import output
from shardnode.cli.encodings import argument, encode, printable, to_json
from shardnode.cli.options import (
    CONTEXT,
    DataCommand,
    encoding_option,
    json_option,
    version_option,
    wants_json,
)

_SHOWN_BYTES = 80
_PARTITIONS = "keys, control, groups, raft, or STREAM/TOPIC/PARTITION by their numbers"


@click.command("inspect", cls=DataCommand, context_settings=CONTEXT)
@version_option
@click.argument("path", metavar="DIR|FILE")
@click.option("--shard", type=click.IntRange(0), help="One shard of a directory.")
@click.option("--partition", metavar="P", help=f"Records of one partition: {_PARTITIONS}.")
@click.option("--from", "first", type=click.IntRange(1), metavar="INDEX", help="Records from here.")
@click.option("--to", "last", type=click.IntRange(1), metavar="INDEX", help="… through here.")
@click.option("--key", help="What was asked of one key, by the log, and what it is.")
@click.option("--limit", type=click.IntRange(1), help="So many rows at most.")
@encoding_option
@json_option
def command(
    path: str,
    shard: int | None,
    partition: str | None,
    first: int | None,
    last: int | None,
    key: str | None,
    limit: int | None,
    encoding: str,
) -> None:
    """Show what DIR or FILE holds: the directory of a stopped node, one shard-N of it, or any file.

    A directory is summed up: superblocks, log, keys, sessions, topics, partitions, snapshots. With
    --from, --to or --partition it is records of the log, with --key the history of one key. A file
    is shown whole, whatever its kind.
    """
    from shardnode.offline.inspect import Wanted, inspect
    from shardnode.storage.errors import StorageError
    from shardnode.wire.errors import Corrupt

    wanted = Wanted(
        shard=shard,
        partition=None if partition is None else _partition(partition),
        first=first,
        last=last,
        key=None if key is None else argument(key, encoding),
    )
    try:
        for row in islice(inspect(Path(path), wanted), limit):
            output.write(_json(row, encoding) if wants_json() else _text(row, encoding))
    except StorageError as error:
        raise Corrupt(str(error)) from error


def _partition(text: str) -> int:
    """The number of a partition that was named."""
    from shardnode.offline.rows import NAMES
    from shardnode.wire.errors import InvalidRequest
    from shardnode.wire.placement import pack_namespace

    if text in NAMES:
        return NAMES[text]
    parts = text.split("/")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() for part in parts):
        stream, topic, partition = map(int, parts)
        return pack_namespace(stream, topic, partition)
    raise InvalidRequest(f"expected {_PARTITIONS}, found {text!r}")


def _json(row: dict[str, Any], encoding: str) -> bytes:
    return output.json_line(_plain(row, encoding))


def _plain(value: Any, encoding: str) -> Any:
    if isinstance(value, bytes):
        return to_json(value, encoding)
    if isinstance(value, dict):
        return {key: _plain(each, encoding) for key, each in value.items()}
    return [_plain(each, encoding) for each in value] if isinstance(value, list) else value


def _text(row: dict[str, Any], encoding: str) -> bytes:
    return f"{'  '.join(_words(row, encoding))}\n".encode()


def _words(row: dict[str, Any], encoding: str) -> Iterator[str]:
    for name, value in row.items():
        yield str(value).ljust(10) if name == "row" else f"{name}={_word(value, encoding)}"


def _word(value: Any, encoding: str) -> str:
    if isinstance(value, bytes):
        cut = value[:_SHOWN_BYTES]
        text = printable(cut if encoding == "utf8" else encode(cut, encoding))
        return text + "…" * (len(value) > len(cut))
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(_word(each, encoding) for each in value)
    if isinstance(value, dict):
        return ",".join(f"{key}:{_word(each, encoding)}" for key, each in value.items())
    return printable(str(value).encode())
