"""How far Spark is with what it does now, for who draws a bar.

One rule: it only looks. A thread asks Spark's tracker now and then; if that fails, the bar stands
still and the job goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

EVERY_S = 0.2


class Tasks(NamedTuple):
    """Of all stages that run now."""

    done: int
    total: int


@contextmanager
def watched(spark: SparkSession, shown: Callable[[Tasks], None]) -> Iterator[None]:
    """Tell `shown` how many tasks are done, as long as this lasts."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    thread = threading.Thread(
        target=_watch, args=(tracker, shown, ended), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(tracker: StatusTracker, shown: Callable[[Tasks], None], ended: threading.Event) -> None:
    while not ended.wait(EVERY_S):
        try:
            shown(tasks_of(tracker))
        except Exception:  # the session may be on its way out
            return


def tasks_of(tracker: StatusTracker) -> Tasks:
    """As of now."""
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    there = [stage for stage in stages if stage is not None]
    return Tasks(
        sum(stage.numCompletedTasks for stage in there), sum(stage.numTasks for stage in there)
    )
