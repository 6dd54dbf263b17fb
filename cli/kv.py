"""`shardnode kv`: keys and values.

The one rule: stdout has the answer and nothing else, so that it can be a pipe or a file. Keys and
values leave as the bytes they are, unless `--encoding` or `--json` asks for another form; only a
terminal gets line ends and escapes that were not asked for.
"""

from __future__ import annotations

import click

from shardnode.cli import encodings, output
from shardnode.cli.connection import connected
from shardnode.cli.errors import write_note
from shardnode.cli.options import (
    CONTEXT,
    DataCommand,
    client_options,
    encoding_option,
    version_option,
    wants_json,
)
from shardnode.cli.transfer import export_command, import_command

TTL_HELP = "The key expires after this many seconds."


@click.group("kv", context_settings=CONTEXT)
@version_option
@client_options
def command() -> None:
    """Put, get, delete, scan and watch keys.

    A KEY or VALUE may begin with a dash; behind `--` nothing is taken for an option.
    """


command.add_command(import_command)
command.add_command(export_command)


@command.command("put", cls=DataCommand, short_help="Set a key.")
@version_option
@click.argument("key")
@click.argument("value")
@click.option("--ttl", type=float, metavar="S", help=TTL_HELP)
@encoding_option
@client_options
def put(key: str, value: str, ttl: float | None, encoding: str) -> None:
    """Set KEY to VALUE and print its new version. A VALUE of `-` is read from stdin."""
    name = encodings.argument(key, encoding)
    data = encodings.value_argument(value, encoding)
    with connected() as client:
        _write_version(name, client.put(name, data, ttl=ttl), encoding)


@command.command("cas", cls=DataCommand, short_help="Set a key if it has the expected version.")
@click.argument("key")
@click.argument("value")
@click.option(
    "--version",
    type=click.IntRange(min=0),
    metavar="V",
    required=True,
    help="The version that KEY must have; 0: it must not exist.",
)
@click.option("--ttl", type=float, metavar="S", help=TTL_HELP)
@encoding_option
@client_options
def cas(key: str, value: str, version: int, ttl: float | None, encoding: str) -> None:
    """Set KEY to VALUE if KEY has version V, and print its new version.

    If it has another one, nothing changes and the exit code is 6.
    """
    name = encodings.argument(key, encoding)
    data = encodings.value_argument(value, encoding)
    with connected() as client:
        _write_version(name, client.cas(name, data, version=version, ttl=ttl), encoding)


@command.command("get", cls=DataCommand, short_help="Write the value of a key.")
@version_option
@click.argument("key")
@encoding_option
@client_options
def get(key: str, encoding: str) -> None:
    """Write the value of KEY, exactly; if there is none, the exit code is 3."""
    name = encodings.argument(key, encoding)
    with connected() as client:
        entry = client.get_entry(name)
    if entry is None:
        from shardnode.wire.errors import NotFound

        raise NotFound(f"expected a key {encodings.printable(name)!r}, found none")
    if wants_json():
        output.write_json(
            {
                "key": encodings.to_json(name, encoding),
                "value": encodings.to_json(entry.value, encoding),
                "version": entry.version,
                "expires_at": entry.expires_at,
            }
        )
        return
    end = b"\n" if output.stdout_is_terminal() else b""
    output.write(encodings.encode(entry.value, encoding) + end)


@command.command("del", cls=DataCommand, short_help="Delete keys.")
@version_option
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@encoding_option
@client_options
def delete(keys: tuple[str, ...], encoding: str) -> None:
    """Delete every KEY, and print how many of them existed."""
    names = [encodings.argument(key, encoding) for key in keys]
    with connected() as client:
        deleted = client.delete_many(names)
    if wants_json():
        output.write_json({"deleted": deleted})
    else:
        output.write_line(b"%d" % deleted)


@command.command("scan", cls=DataCommand, short_help="List keys and values in order.")
@version_option
@click.option("--prefix", default="", metavar="P", help="Only keys that begin with P.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="At most N keys.")
@click.option("--keys", "keys_only", is_flag=True, help="Only keys, without their values.")
@encoding_option
@client_options
def scan(prefix: str, limit: int | None, keys_only: bool, encoding: str) -> None:
    """List keys and values in the order of keys, one per line with a tab between.

    Where keys or values may hold tabs or line ends, use --json or --encoding hex.
    """
    name = encodings.argument(prefix, encoding)
    as_json = wants_json()
    show = _shown if output.stdout_is_terminal() else encodings.encode
    with connected() as client:
        for entry in client.scan(prefix=name, limit=limit, keys_only=keys_only):
            if as_json:
                line: dict[str, object] = {"key": encodings.to_json(entry.key, encoding)}
                if not keys_only:
                    line["value"] = encodings.to_json(entry.value, encoding)
                output.write_json(line | {"version": entry.version, "expires_at": entry.expires_at})
            elif keys_only:
                output.write_line(show(entry.key, encoding))
            else:
                output.write_line(show(entry.key, encoding) + b"\t" + show(entry.value, encoding))


@command.command("watch", cls=DataCommand, short_help="Show changes as they happen.")
@version_option
@click.option("--prefix", default="", metavar="P", help="Only keys that begin with P.")
@click.option("--from", "start", metavar="CURSOR", help="Go on behind this cursor.")
@encoding_option
@client_options
def watch(prefix: str, start: str | None, encoding: str) -> None:
    """Show changes as they happen, until Ctrl-C: kind, version, key and value with tabs between.

    Without --from it begins now. With --json every change has a `cursor` to go on from; otherwise
    the last one is told at the end.
    """
    name = encodings.argument(prefix, encoding)
    as_json = wants_json()
    show = _shown if output.stdout_is_terminal() else encodings.encode
    last = None
    with connected() as client:
        changes = client.watch(prefix=name, start=start)
        output.note("watching; Ctrl-C ends it")
        try:
            for change in changes:
                if as_json:
                    value = change.value
                    line = {
                        "kind": change.kind,
                        "key": encodings.to_json(change.key, encoding),
                        "value": None if value is None else encodings.to_json(value, encoding),
                        "version": change.version,
                        "cursor": change.cursor,
                    }
                    output.write_json(line)
                else:
                    fields = [change.kind.encode(), b"%d" % change.version]
                    fields += [show(change.key, encoding), show(change.value or b"", encoding)]
                    output.write_line(b"\t".join(fields))
                output.flush()
                last = change
        finally:
            if last is not None and not as_json:
                write_note(f"go on with: shardnode kv watch --from {last.cursor}")


def _shown(data: bytes, encoding: str) -> bytes:
    """For a terminal: in its encoding, and harmless."""
    return encodings.printable(encodings.encode(data, encoding)).encode()


def _write_version(key: bytes, version: int, encoding: str) -> None:
    if wants_json():
        output.write_json({"key": encodings.to_json(key, encoding), "version": version})
    else:
        output.write_line(b"%d" % version)
