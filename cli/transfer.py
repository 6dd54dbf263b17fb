"""`shardnode kv import` and `export`: keys and values as JSON lines.

    {"key": "user:1", "value": "Ada"}
    {"key": {"base64": "/wA="}, "value": "…", "expires_at": "2030-01-01T00:00:00Z"}

`key` and `value` are text, or {"base64": "…"} where they are not UTF-8; `expires_at` may be missing
or null. An export also has `version`, which an import reads over: versions are the node's to give.

The one rule: whatever an export writes, an import reads back as the same keys and values. Both go
through the file once and hold one batch of it at a time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click
import orjson

from shardnode.cli import encodings, output
from shardnode.cli.connection import connected
from shardnode.cli.options import client_options, encoding_option, version_option, wants_json

if TYPE_CHECKING:
    from shardnode.client.sync import Client

BATCH_KEYS = 1_000
BATCH_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20
"""The largest value in JSON, with every byte escaped, is well below."""

STANDARD = "-"
PARTIAL = ".partial"


class Record(NamedTuple):
    """One line."""

    key: bytes
    value: bytes
    expires_at: datetime | None


@click.command("export", short_help="Write all keys to a file of JSON lines.")
@version_option
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), metavar="F")
@click.option("--prefix", default="", metavar="P", help="Only keys that begin with P.")
@encoding_option
@client_options
def export_command(file: str, prefix: str, encoding: str) -> None:
    """Write all keys and values to F as JSON lines (`-` is stdout).

    F appears when it is complete. Each key is as it was at some moment during the export; the
    whole is not one moment.
    """
    count = 0
    name = encodings.argument(prefix, encoding)
    with connected() as client, _written(file) as out, output.progress("keys exported") as advance:
        lines: list[bytes] = []
        for entry in client.scan(prefix=name):
            line: dict[str, object] = {
                "key": encodings.to_json(entry.key, encoding),
                "value": encodings.to_json(entry.value, encoding),
                "version": entry.version,
            }
            if entry.expires_at is not None:
                line["expires_at"] = entry.expires_at
            lines.append(output.json_line(line))
            count += 1
            if len(lines) >= BATCH_KEYS:
                out.write(b"".join(lines))
                advance(len(lines))
                lines.clear()
        out.write(b"".join(lines))
        advance(len(lines))
    if wants_json() and file != STANDARD:
        output.write_json({"exported": count, "file": file})
    output.note(f"exported {count} keys")


@click.command("import", short_help="Put the keys of a file of JSON lines.")
@version_option
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="F")
@encoding_option
@client_options
def import_command(file: str, encoding: str) -> None:
    """Put the keys and values of F, which has JSON lines (`-` is stdin).

    A key that exists is replaced; one that has expired since the export is left out. After a
    failure the same import can be run again.
    """
    imported = expired = 0
    with connected() as client, _read(file) as lines, output.progress("keys imported") as advance:
        try:
            for batch in _batches(_records(lines, file, encoding)):
                put = _put(client, batch)
                imported += put
                expired += len(batch) - put
                advance(len(batch))
        except Exception:
            output.note(f"{imported} keys were imported before it failed")
            raise
    if wants_json():
        output.write_json({"imported": imported, "expired": expired})
    ending = f"; {expired} had expired and were left out" if expired else ""
    output.note(f"imported {imported} keys{ending}")


def _put(client: Client, batch: dict[bytes, Record]) -> int:
    """Put one batch; how many had not expired. Keys of one time to live travel together."""
    by_time: dict[datetime | None, dict[bytes, bytes]] = {}
    for record in batch.values():
        by_time.setdefault(record.expires_at, {})[record.key] = record.value
    count = 0
    for expires_at, pairs in by_time.items():
        ttl = None if expires_at is None else expires_at - datetime.now(UTC)
        if ttl is None or ttl >= timedelta(milliseconds=1):
            client.put_many(pairs, ttl=ttl)
            count += len(pairs)
    return count


def _batches(records: Iterator[Record]) -> Iterator[dict[bytes, Record]]:
    """Runs of records by key, the last of each key, small enough for one round."""
    batch: dict[bytes, Record] = {}
    size = 0
    for record in records:
        batch[record.key] = record
        size += len(record.key) + len(record.value)
        if len(batch) >= BATCH_KEYS or size >= BATCH_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _records(lines: BinaryIO, name: str, encoding: str) -> Iterator[Record]:
    from shardnode.wire.errors import InvalidRequest

    for number in range(1, sys.maxsize):
        line = lines.readline(LINE_BYTES_MAX)
        if not line:
            return
        if line.isspace():
            continue
        try:
            yield record_of(line, encoding)
        except ValueError as error:
            raise InvalidRequest(
                f"{name}:{number}: {error}; found {encodings.printable(line[:80].strip())}"
            ) from None


def record_of(line: bytes, encoding: str) -> Record:
    """One line; raises a `ValueError` that says what was expected."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"expected a line of JSON ({error})") from None
    if not isinstance(fields, dict) or not {"key", "value"} <= fields.keys():
        raise ValueError('expected an object with "key" and "value"')
    parts = {}
    for part in ("key", "value"):
        try:
            parts[part] = encodings.from_json(fields[part], encoding)
        except ValueError as error:
            raise ValueError(f'in "{part}": {error}') from None
    return Record(parts["key"], parts["value"], _time(fields.get("expires_at")))


def _time(text: object) -> datetime | None:
    if text is None:
        return None
    with suppress(ValueError, TypeError):
        time = datetime.fromisoformat(text)  # type: ignore[arg-type]  # TypeError is caught
        if time.tzinfo is not None:
            return time
    raise ValueError('in "expires_at": expected a time such as "2030-01-01T00:00:00Z"')


@contextmanager
def _read(file: str) -> Iterator[BinaryIO]:
    if file == STANDARD:
        yield sys.stdin.buffer
        return
    with open(file, "rb") as opened:
        yield opened


@contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    """A file that gets its name when it is complete; devices and pipes are written as they are."""
    if file == STANDARD:
        yield sys.stdout.buffer
    elif os.path.exists(file) and not os.path.isfile(file):
        with open(file, "wb") as opened:
            yield opened
    else:
        partial = file + PARTIAL
        try:
            with open(partial, "wb") as opened:
                yield opened
            os.replace(partial, file)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(partial)
            raise
