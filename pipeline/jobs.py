"""What `shardnode job run` does: its jobs by name, and what each of them tells at its end.

    export         keys or a topic → Parquet, by shard, and a manifest of the cut
    import         Parquet → keys or a topic
    stats          how large keys and values are, by shard, and a picture of it
    verify         replicas with each other; a backup, a directory or an export with the node
    reshard-plan   which rows would move, from which shard to which, if there were N

One rule: a job is a function of a SparkSession and what was asked for, and it returns a `Summary`.
It prints nothing and ends no process, so tests and other programs run jobs as the command does.

    jobs_session, jobs_progress       the session of a command, and how far Spark is
    jobs_frames                       a frame whose cut is known to who asked for it
    jobs_manifest, jobs_place         what an export says of itself, and where it lies
    jobs_export … jobs_reshard        the jobs
    jobs_sizes, jobs_svg              distributions and pictures of them, pure

Importing this costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = {
    "export": "Write keys, or a topic, as Parquet by shard, with the cut in a manifest.",
    "import": "Bring Parquet back: keys, or messages of a topic.",
    "stats": "Show how large keys and values are in each shard, with a picture.",
    "verify": "Compare replicas, or a backup, a directory or an export, with the node.",
    "reshard-plan": "Count the rows that each shard would give to each other one.",
}
"""Name → what `job list` says of it."""

Say = Callable[[str], None]
"""Told what a job is about to do."""


def silent(_what: str) -> None:
    """For who does not want to know."""


class Table(NamedTuple):
    """A part of a summary: rows of cells."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]


class Bars(NamedTuple):
    """A part of a summary: how many of each."""

    title: str
    counts: Sequence[tuple[str, int]]


Section = str | Table | Bars


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job has done or found."""

    job: str
    facts: Mapping[str, Any]
    """The whole of it, as JSON."""
    sections: Sequence[Section] = field(default=())
    """… and for people."""
    differs: bool = False
    """Whether something was compared and is not equal."""

    def to_json(self) -> dict[str, Any]:
        return {"job": self.job, **self.facts}


Job = Callable[["SparkSession", Say], Summary]


def shown_bytes(count: float) -> str:
    """Bytes as people read them."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.1f} {unit}"
    return f"{count:.0f} B"


def shown_key(key: bytes) -> str:
    """A key on one line: text where it is text, else in hexadecimal digits."""
    text = key.decode("utf-8", "replace")
    return text if "\ufffd" not in text and text.isprintable() else f"0x{key.hex()}"
