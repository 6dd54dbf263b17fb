"""The disk under a data directory: what kind it is, how much room, how quick, and whether an fsync
does anything.

An acknowledged write waits for one fsync, so its time is the time of a put. One that takes no time
at all reaches no disk: something between swallows it, and then a power failure takes what was
acknowledged.

The one rule: measured is a file without a name, so nothing is left even of a doctor that is killed.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import psutil

from shardnode.offline.advice import Advice, note, ok, problem

FILE_BYTES = 64 << 20
SYNCS = 200
SYNCS_S = 1.5
_PIECE_BYTES = 1 << 20
_PAGE_BYTES = 4096

IN_MEMORY = {"tmpfs", "ramfs"}
OVER_A_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs"}

SWALLOWED_US = 8
"""No device answers sooner: a system call and a trip over the bus take longer."""

QUICK_US = 40
"""Only disks that keep their cache through a power failure are that quick."""

SLOW_US = 20_000
HOPELESS_US = 150_000
ROOM_BYTES = 1 << 30


class Timing(NamedTuple):
    """What was measured."""

    mib_per_s: float
    """Written and synced, in large pieces."""
    sync_us: float
    """Of one page and its fdatasync; the median."""
    sync_worst_us: float


def look_at_disk(folder: Path) -> Iterator[Advice]:
    """Everything about the file system of a folder."""
    kind = kind_of(folder)
    yield judge_kind(kind, folder)
    usage = shutil.disk_usage(folder)
    yield judge_room(usage.free, usage.total)
    if usage.free > 2 * FILE_BYTES and os.access(folder, os.W_OK):
        yield from judge_timing(measure(folder), kind)
    else:
        do = "make room and make the directory writable, then ask again"
        yield note("disk", f"{folder} has no room for a measurement, or is not writable", do)


def kind_of(folder: Path) -> str:
    """The name of the file system that holds a folder."""
    folder = folder.resolve()
    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    found = next((place for place in (folder, *folder.parents) if place in mounts), None)
    return mounts[found] if found is not None else "unknown"


def judge_kind(kind: str, folder: Path) -> Advice:
    if kind in IN_MEMORY:
        do = "put node.data on a disk, unless this node may forget everything"
        return problem("disk", f"{folder} is on {kind}, which is memory: a restart empties it", do)
    if kind in OVER_A_NETWORK:
        do = "put node.data on a disk of this machine"
        found = f"{folder} is on {kind}: its fsync and its locks keep other promises than a disk's"
        return problem("disk", found, do)
    return ok("disk", f"{folder} is on {kind}")


def judge_room(free: int, total: int) -> Advice:
    found = f"{free / (1 << 30):.1f} GiB free of {total / (1 << 30):.1f}"
    if free < ROOM_BYTES:
        return problem("room", found, "free some: writes are refused once the disk is full")
    if free < total // 10:
        return note("room", found, "free some before it is full; writes are refused then")
    return ok("room", found)


def measure(folder: Path) -> Timing:
    """Write a file, then single pages of it, each with an fsync."""
    with _nameless(folder) as fd:
        piece = os.urandom(_PIECE_BYTES)
        begun = perf_counter()
        for offset in range(0, FILE_BYTES, _PIECE_BYTES):
            os.pwrite(fd, piece, offset)
        _sync(fd)
        mib_per_s = FILE_BYTES / (1 << 20) / (perf_counter() - begun)
        times: list[float] = []
        for number in range(SYNCS):
            begun = perf_counter()
            os.pwrite(fd, piece[:_PAGE_BYTES], number * 37 % 1024 * _PAGE_BYTES)
            _sync(fd)
            times.append((perf_counter() - begun) * 1e6)
            if sum(times) > SYNCS_S * 1e6:
                break
    return Timing(mib_per_s, statistics.median(times), max(times))


def judge_timing(timing: Timing, kind: str) -> Iterator[Advice]:
    yield ok("disk", f"writes {timing.mib_per_s:.0f} MiB a second, synced")
    median = timing.sync_us
    found = f"an fsync takes {median:.0f} µs, at worst {timing.sync_worst_us:.0f}"
    if median < SWALLOWED_US and kind not in IN_MEMORY:
        do = (
            "find what swallows it (eatmydata, a virtual disk with an unsafe cache mode, a mount"
            " option such as nobarrier): a power failure would take acknowledged writes"
        )
        yield problem("fsync", f"{found}: no disk is that quick", do)
    elif median < QUICK_US and kind not in IN_MEMORY:
        do = "make sure that the disk keeps its cache through a power failure, and the hypervisor's"
        yield note("fsync", f"{found}: suspiciously quick for a disk", do)
    elif median > HOPELESS_US:
        yield problem("fsync", f"{found}: every put takes at least as long", "use another disk")
    elif median > SLOW_US:
        do = "expect that of every put; a disk of flash takes a hundredth"
        yield note("fsync", found, do)
    else:
        yield ok("fsync", found)


@contextmanager
def _nameless(folder: Path) -> Iterator[int]:
    """An open file that goes with its last handle."""
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except (AttributeError, OSError):  # no such file system, or macOS
        fd, name = tempfile.mkstemp(prefix=".doctor-", dir=folder)
        os.unlink(name)
    try:
        yield fd
    finally:
        os.close(fd)


def _sync(fd: int) -> None:
    getattr(os, "fdatasync", os.fsync)(fd)
