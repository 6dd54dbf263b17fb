"""The machine: system, libraries, processors, memory, limits and clock.

The one rule: what is judged is handed in, so a test can hand in any machine; what is looked up is
one line each.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from shardnode.node.affinity import allowed_cpus
from shardnode.offline.advice import Advice, note, ok, problem

PYTHON_MIN = (3, 11)
FILES_MIN = 1_024
FILES_WANTED = 4_096
MAP_BYTES = 64 << 30
"""The address space of LMDB in each worker; see `EngineOptions.map_bytes`."""

WORKER_BYTES = 15 << 20
OTHERS_BYTES = 100 << 20
CLOCK_SLACK_S = 120.0

_CGROUP = Path("/sys/fs/cgroup")
_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)")
_NOT_SYNCHRONIZED = 5
"""What adjtimex answers then."""


# -- system and libraries -------------------------------------------------------------------------


def look_at_system() -> Iterator[Advice]:
    found = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < PYTHON_MIN:
        yield problem("system", found, "use Python 3.11 or newer")
    elif sys.platform != "linux":
        yield note("system", found, "production is for Linux; workers are not pinned here")
    else:
        yield ok("system", found)


def look_at_libraries() -> Iterator[Advice]:
    wanted = importlib.metadata.requires("shardnode") or []
    needed = [each for each in wanted if "extra ==" not in each]
    yield from judge_libraries(needed, _installed(needed))


def _installed(requirements: Sequence[str]) -> dict[str, str]:
    found = {}
    for match in filter(None, map(_REQUIREMENT.match, requirements)):
        try:
            found[match[1]] = importlib.metadata.version(match[1])
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def judge_libraries(requirements: Sequence[str], installed: Mapping[str, str]) -> Iterator[Advice]:
    """Each package that is required, against the version that is there."""
    good = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None or ";" in requirement:
            continue
        name, least = match[1], match[2]
        found = installed.get(name)
        if found is None:
            yield problem("libraries", f"{name} is not installed", "pip install shardnode again")
        elif _numbers(found) < _numbers(least):
            do = f"pip install '{name}>={least}'"
            yield problem("libraries", f"{name} {found} is older than {least}", do)
        else:
            good.append(f"{name} {found}")
    yield ok("libraries", ", ".join(good))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


# -- processors and memory ------------------------------------------------------------------------


def look_at_cpus(shards: int, wanted: tuple[int, ...] | str) -> Iterator[Advice]:
    yield judge_cpus(shards, wanted, allowed_cpus(), os.cpu_count() or 1, _quota())


def _quota() -> float | None:
    """How many processors the container may use; None where nobody says."""
    try:
        most, period = (_CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if most == "max" else int(most) / int(period)


def judge_cpus(
    shards: int,
    wanted: tuple[int, ...] | str,
    allowed: Sequence[int] | None,
    there: int,
    quota: float | None,
) -> Advice:
    if allowed is None:
        return note("cpus", f"{there} processors, and no pinning on this system")
    found = f"{len(allowed)} of {there} processors may be used, for {shards} shards and a router"
    if not isinstance(wanted, str) and (outside := sorted(set(wanted) - set(allowed))):
        do = "correct node.cpus, or start the node with a wider mask"
        return problem("cpus", f"{found}; node.cpus names {outside}, which are not among them", do)
    if quota is not None and quota < shards:
        do = "raise the quota of the container, or use fewer shards"
        return note("cpus", f"{found}; the container may use {quota:.1f} of them", do)
    if len(allowed) < shards:
        return note("cpus", found, "shards share processors then: use fewer, or more processors")
    return ok("cpus", found)


def look_at_memory(shards: int, table_bytes: int) -> Iterator[Advice]:
    yield judge_memory(shards, table_bytes, _memory())


def _memory() -> int:
    total = psutil.virtual_memory().total
    try:
        return min(total, int((_CGROUP / "memory.max").read_text()))
    except (OSError, ValueError):
        return total


def judge_memory(shards: int, table_bytes: int, total: int) -> Advice:
    need = OTHERS_BYTES + shards * (WORKER_BYTES + 2 * table_bytes)
    found = (
        f"{total / (1 << 30):.1f} GiB, of which {need / (1 << 30):.1f} are for the node's writes"
    )
    if total < need:
        do = "lower storage.table_bytes, use fewer shards, or more memory"
        return problem("memory", found, do)
    if total < 2 * need:
        return note("memory", found, "little is left to cache the files in")
    return ok("memory", found)


# -- limits ---------------------------------------------------------------------------------------


def look_at_limits() -> Iterator[Advice]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield from judge_limits(files, space, size)


def judge_limits(files: int, space: int, size: int) -> Iterator[Advice]:
    """Soft limits of this process, which the node would inherit; -1: none."""
    endless = resource.RLIM_INFINITY
    found = "no limit of open files" if files == endless else f"at most {files} open files"
    if files != endless and files < FILES_MIN:
        do = f"ulimit -n {FILES_WANTED}, or LimitNOFILE= of the service"
        yield problem("limits", f"{found}: too few for partitions and connections", do)
    elif files != endless and files < FILES_WANTED:
        do = f"for many partitions or clients: ulimit -n {FILES_WANTED} or more"
        yield note("limits", found, do)
    else:
        yield ok("limits", found)
    if space != endless and space < MAP_BYTES:
        found = f"at most {space >> 20} MiB of address space, LMDB maps {MAP_BYTES >> 20}"
        yield problem("limits", found, "ulimit -v unlimited, or LimitAS=infinity")
    if size != endless and size < MAP_BYTES:
        found = f"files of at most {size >> 20} MiB"
        yield problem("limits", found, "ulimit -f unlimited, or LimitFSIZE=infinity")


# -- clock ----------------------------------------------------------------------------------------


def look_at_clock(data: Path) -> Iterator[Advice]:
    beside = [data / name for name in ("config.toml", "node.json", "members.json")]
    newest = max((path.stat().st_mtime for path in beside if path.exists()), default=0.0)
    yield judge_clock(time.time(), newest, _kernel_clock())


def _kernel_clock() -> int | None:
    """What the kernel thinks of its clock; None where it does not say."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return None
    state = int(adjtimex(ctypes.create_string_buffer(1024)))
    return state if state >= 0 else None


def judge_clock(now: float, written: float, kernel: int | None) -> Advice:
    """`written`: when the node last started, by the clock as it was then."""
    found = f"it is {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if now + CLOCK_SLACK_S < written:
        behind = written - now
        do = "set the clock: until it has caught up, keys expire late and times stand still"
        return problem("clock", f"{found}, {behind:.0f} s before the node last started", do)
    if kernel == _NOT_SYNCHRONIZED:
        do = "run chrony or another NTP client: expiry and the times of messages go by this clock"
        return note("clock", f"{found}, and the kernel is not told the right time by anybody", do)
    return ok("clock", found)
