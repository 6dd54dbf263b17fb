"""`shardnode doctor`: is this machine, and the directory, fit for the node of a configuration?

The one rule: whatever is found comes with what to do about it. A problem is what will cost data,
speed or the start; a note is worth knowing. Nothing is changed and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from shardnode.node.config import Config
from shardnode.offline.advice import Advice, note
from shardnode.offline.doctor_directory import look_at_directory
from shardnode.offline.doctor_disk import look_at_disk
from shardnode.offline.doctor_java import look_at_java
from shardnode.offline.doctor_machine import (
    look_at_clock,
    look_at_cpus,
    look_at_libraries,
    look_at_limits,
    look_at_memory,
    look_at_system,
)
from shardnode.offline.doctor_ports import look_at_ports, look_at_sockets

Look = Callable[[], Iterator[Advice]]


def examine(config: Config) -> Iterator[Advice]:
    """One finding after the other, as they are made."""
    data, shards = config.node.data, len(config.local_shard_ids)
    looks: list[tuple[str, Look]] = [
        ("system", look_at_system),
        ("libraries", look_at_libraries),
        ("cpus", lambda: look_at_cpus(shards, config.node.cpus)),
        ("memory", lambda: look_at_memory(shards, config.storage.table_bytes)),
        ("limits", look_at_limits),
        ("clock", lambda: look_at_clock(data)),
        ("ports", lambda: look_at_ports(config)),
        ("sockets", look_at_sockets),
        ("disk", lambda: look_at_disk(nearest(data))),
        ("directory", lambda: look_at_directory(config)),
        ("java", look_at_java),
    ]
    for about, look in looks:
        try:
            yield from look()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            found = f"could not be looked at: {where}{error.strerror or error}"
            yield note(about, found, "run it as the user that runs the node")


def nearest(path: Path) -> Path:
    """The directory itself, or the one in which it would be made."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
