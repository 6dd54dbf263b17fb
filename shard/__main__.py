"""`python -m shardnode.shard`: one worker process. Its supervisor writes the settings to stdin.

The one rule: the real clocks, signals and the process's own fate are here and nowhere below.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time

import setproctitle

from shardnode.shard.channel import Channel, SupervisorGone
from shardnode.shard.settings import WorkerSettings
from shardnode.shard.worker import Worker

# Counts while the machine sleeps, so a lease cannot outlive a suspend. macOS has no such name.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


_GARBAGE = (20_000, 20, 50)
"""Objects made, and younger rounds, before the collector looks. What a request makes is gone when
it is answered, without it; the default of 700 looks at everything under way several times a
drain."""


def main() -> int:
    """Work until told to stop, or until the supervisor is gone."""
    channel = Channel(os.dup(0), os.dup(1))
    os.dup2(2, 1)  # a stray print must not end up between the lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        settings = WorkerSettings.decode(channel.first_line())
        setproctitle.setproctitle(settings.title)
        if settings.core is not None and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # a mask that changed meanwhile: unpinned, reported
                os.sched_setaffinity(0, {settings.core})
        gc.freeze()
        gc.set_threshold(*_GARBAGE)
        worker = Worker(settings, channel, now_ms=_now_ms, wall_ms=_wall_ms)
        signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "stopping", True))
        worker.run()
    except SupervisorGone:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
