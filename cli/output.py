"""Where answers go: data to stdout, everything else to stderr.

The one rule: colour, tables, bars and escaped characters are for terminals. Anything else gets
plain bytes that do not depend on who reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import orjson

from shardnode.cli.errors import write_note
from shardnode.cli.options import wants_json


class Advance(Protocol):
    """Moves a bar on; without a terminal it does nothing."""

    def __call__(self, done: int) -> None: ...


class Transfer(NamedTuple):
    """Moves a display of bytes on, and changes what it is called."""

    advance: Callable[[int], None]
    say: Callable[[str], None]


def stdout_is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def write(data: bytes) -> None:
    """Exactly these bytes to stdout."""
    if sys.stdout is not None:
        sys.stdout.buffer.write(data)


def flush() -> None:
    """Whoever reads gets what there is: for answers that come one by one."""
    if sys.stdout is not None:
        sys.stdout.flush()


def write_line(data: bytes) -> None:
    write(data + b"\n")


def json_line(value: object) -> bytes:
    """One line of JSON; times as RFC 3339 with a Z."""
    return orjson.dumps(value, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)


def write_json(value: object) -> None:
    write(json_line(value))


def note(text: str) -> None:
    """Words for a person beside the data; left out where stderr is for one JSON object alone."""
    if not wants_json():
        write_note(text)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table: drawn on a terminal, otherwise columns of plain text."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if stdout_is_terminal():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(*headings)
        for row in cells:
            drawn.add_row(*map(Text, row))
        Console().print(drawn)
        return
    lines = [list(headings), *cells]
    widths = [max(len(line[place]) for line in lines) for place in range(len(headings))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        write_line("  ".join(padded).rstrip().encode())


def size_text(count: int) -> str:
    """Bytes for people."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >> shift:
            return f"{count / (1 << shift):.1f} {unit}"
    return f"{count} bytes"


@contextmanager
def progress(what: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Advance]:
    """A bar on stderr while something long goes on, if a person looks at it."""
    if wants_json() or not stderr_is_terminal():
        yield lambda done: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    count = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count)
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, advance=done)


@contextmanager
def transfer(what: str) -> Iterator[Transfer]:
    """Bytes that move, and how fast, on stderr, if a person looks at it."""
    if wants_json() or not stderr_is_terminal():
        yield Transfer(lambda _: None, lambda _: None)
        return
    from rich.console import Console
    from rich.progress import (
        FileSizeColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    columns = (SpinnerColumn(), TextColumn("{task.description}"), FileSizeColumn())
    more = (TransferSpeedColumn(), TimeElapsedColumn())
    with Progress(*columns, *more, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield Transfer(
            lambda done: bar.update(task, advance=done),
            lambda text: bar.update(task, description=text),
        )


def size(count: int) -> str:
    """Bytes as people read them: 12.3 MB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1_000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} TB"
