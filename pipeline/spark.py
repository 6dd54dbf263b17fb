"""A SparkSession that works: a Java is found, and Python is the one that runs.

One rule: what the user has set stays. Spark's own names are the arguments' names:
`session(**{"spark.master": "local[4]", "spark.sql.shuffle.partitions": "4"})`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from shardnode.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS = {
    "spark.app.name": "shardnode",
    "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""For sessions that say nothing else; the master is local[*]."""


def session(**conf: str) -> SparkSession:
    """The running SparkSession, or a new one with these settings."""
    prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if "spark.master" not in conf and "MASTER" not in os.environ:
        builder = builder.master("local[*]")
    for name, value in {**DEFAULTS, **conf}.items():
        builder = builder.config(name, str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Tell a session of the data source, where Spark does not find it by itself."""
    from shardnode.pipeline.source import ShardnodeSource

    spark.dataSource.register(ShardnodeSource)


def prepare(environ: dict[str, str] | None = None) -> None:
    """Set what Spark needs and nobody has set: a Java, and this Python for its workers."""
    env = os.environ if environ is None else environ
    env.setdefault("PYSPARK_PYTHON", sys.executable)
    env.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    env["JAVA_HOME"] = find_java(env).home
