"""One job from its session to its summary: progress on stderr, what came of it on stdout.

The one rule: a summary is told when the job is done and never before, so whoever reads it may
believe it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardnode.cli import output
from shardnode.cli.errors import EXIT_UNHEALTHY
from shardnode.cli.job_options import CONF, MASTER, SUMMARY
from shardnode.cli.options import wants_json

if TYPE_CHECKING:
    from shardnode.pipeline.jobs import Bars, Job, Say, Section, Summary
    from shardnode.pipeline.jobs_progress import Tasks

BAR_WIDTH = 50


def run(name: str, job: Job) -> int:
    """Run a job in a session of its own; the exit code."""
    from shardnode.pipeline.jobs_session import job_session

    meta = click.get_current_context().meta
    with _progress(name) as (say, shown):
        say("starting Spark")
        with job_session(meta.get(MASTER), meta.get(CONF) or {}) as spark:
            with _watched(spark, shown):
                summary = job(spark, say)
            say("stopping Spark")
    tell(summary, meta.get(SUMMARY))
    return EXIT_UNHEALTHY if summary.differs else 0


def tell(summary: Summary, file: str | None) -> None:
    """In words, or as JSON; and to the file, if there is one."""
    if file is not None:
        Path(file).write_bytes(output.json_line(summary.to_json()))
    if wants_json():
        output.write_json(summary.to_json())
        return
    from shardnode.pipeline.jobs import Bars, Table

    for place, section in enumerate(summary.sections):
        if isinstance(section, str):
            output.write_line(section.encode())
        elif isinstance(section, Table):
            output.table(section.headings, section.rows)
        else:
            assert isinstance(section, Bars), "there are three kinds"
            _bars(section)
        if _is_apart(summary.sections, place):
            output.write_line(b"")


def _is_apart(sections: Sequence[Section], place: int) -> bool:
    """An empty line goes between parts, unless both are text."""
    if place + 1 == len(sections):
        return False
    return not (isinstance(sections[place], str) and isinstance(sections[place + 1], str))


def _bars(bars: Bars) -> None:
    """A histogram: drawn on a terminal, otherwise of plain characters."""
    highest = max((count for _, count in bars.counts), default=0) or 1
    if output.stdout_is_terminal():
        from rich.bar import Bar
        from rich.console import Console
        from rich.table import Table

        grid = Table(title=bars.title, title_justify="left", box=None, show_header=False)
        for label, count in bars.counts:
            grid.add_row(label, str(count), Bar(highest, 0, count, width=BAR_WIDTH, color="cyan"))
        Console().print(grid)
        return
    output.write_line(bars.title.encode())
    wide = max((len(label) for label, _ in bars.counts), default=0)
    for label, count in bars.counts:
        length = max(round(BAR_WIDTH * count / highest), 1 if count else 0)
        output.write_line(f"  {label:>{wide}}  {count:>12}  {'#' * length}".rstrip().encode())


# -- progress -------------------------------------------------------------------------------------


@contextmanager
def _progress(name: str) -> Iterator[tuple[Say, Callable[[Tasks], None] | None]]:
    """What a job does now and how far Spark is with it, if a person looks at it."""
    if wants_json() or not output.stderr_is_terminal():
        yield lambda _: None, None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    more = (MofNCompleteColumn(), TextColumn("tasks"), TimeElapsedColumn())
    with Progress(*columns, *more, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def say(what: str) -> None:
            bar.update(task, description=f"{name}: {what}", total=None, completed=0)

        def shown(tasks: Tasks) -> None:
            bar.update(task, total=tasks.total or None, completed=tasks.done)

        yield say, shown


@contextmanager
def _watched(spark: Any, shown: Callable[[Tasks], None] | None) -> Iterator[None]:
    if shown is None:
        yield
        return
    from shardnode.pipeline.jobs_progress import watched

    with watched(spark, shown):
        yield
