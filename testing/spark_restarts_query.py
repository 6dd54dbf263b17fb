"""The query of `spark_restarts`: from a topic to a topic, or to keys, until it is told to stop.

One rule: it says "running" on its output once it has done a micro-batch; SIGTERM ends it in order.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

from shardnode.pipeline import session

ROWS = 400
"""Of a micro-batch: several of them in each run."""

ROWS_ONCE = 10 * ROWS
"""Of a micro-batch of the last run, which takes what has gathered."""

REQUEST_ROWS = 50
"""Of a request: several of them in each task."""


def start(settings: dict[str, Any], spark: Any) -> Any:
    """The query."""
    source = spark.readStream.format("shardnode").option("connect", settings["connect"])
    source = source.option("topic", settings["source"]).option("startingOffsets", "earliest")
    frame = source.option("maxRowsPerTrigger", ROWS_ONCE if settings["once"] else ROWS).load()
    if settings["sink"]:
        frame = frame.selectExpr("value as key", "value")
    else:
        frame = frame.selectExpr(
            f"concat('{settings['prefix']}', cast(value as string)) as key", "value"
        )
    sink = frame.writeStream.format("shardnode").option("connect", settings["connect"])
    sink = sink.option("batchRows", REQUEST_ROWS)
    if settings["sink"]:
        sink = sink.option("topic", settings["sink"])
    sink = sink.option("checkpointLocation", settings["checkpoint"])
    trigger = {"availableNow": True} if settings["once"] else {"processingTime": "0 seconds"}
    return sink.trigger(**trigger).start()


def main() -> int:
    settings = json.loads(sys.argv[1])
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    spark = session(**{"spark.master": "local[2]", "spark.ui.showConsoleProgress": "false"})
    query = start(settings, spark)
    if settings["once"]:
        query.awaitTermination()
    else:
        while not query.recentProgress and query.isActive and not over.wait(0.05):
            continue
        sys.stdout.write("running\n")
        sys.stdout.flush()
        while query.isActive and not over.wait(0.2):
            continue
        query.stop()
    failed = query.exception() is not None
    if failed:
        sys.stderr.write(f"{query.exception()}\n")
    spark.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
