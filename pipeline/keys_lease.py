"""Holding what a job reads, while it reads.

One rule: a lease that cannot be renewed ends no job. What was opened stays readable; what is opened
later says itself that it has gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shardnode.client.cuts import CutReader
from shardnode.pipeline.keys_source import PIN_MS, Pin, hold
from shardnode.wire.errors import ShardnodeError

EVERY_S = PIN_MS / 4_000
TIMEOUT_S = 2.0

log = logging.getLogger("shardnode.pipeline")


@contextmanager
def holding(connect: tuple[str, ...], pins: Sequence[Pin]) -> Iterator[None]:
    """Renew all leases now, and again as long as this lasts."""
    if not pins:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(
        target=_renew_until, args=(done, connect, pins), name="leases", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(TIMEOUT_S)


def _renew_until(done: threading.Event, connect: tuple[str, ...], pins: Sequence[Pin]) -> None:
    reader = CutReader(connect, timeout_s=TIMEOUT_S)
    try:
        while not done.is_set():
            for pin in pins:
                _renew(reader, pin)
            done.wait(EVERY_S)
    finally:
        reader.finish()


def _renew(reader: CutReader, pin: Pin) -> None:
    try:
        hold(reader, pin)
    except ShardnodeError as error:
        log.warning("shard %d: its lease is not renewed: %s", pin.shard, error.message)
