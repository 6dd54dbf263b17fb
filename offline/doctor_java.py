"""The Java that Spark needs, if Spark is to be used at all.

The one rule: a node needs neither, so nothing here is a problem.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping

from shardnode.offline.advice import Advice, note, ok
from shardnode.pipeline.java import NoJava, find_java


def look_at_java() -> Iterator[Advice]:
    if importlib.util.find_spec("pyspark") is None:
        do = "only for Spark jobs on this machine: pip install 'shardnode[spark]'"
        yield note("java", "Spark is not installed", do)
    else:
        yield judge_java()


def judge_java(environ: Mapping[str, str] | None = None) -> Advice:
    """Whether there is one that Spark jobs here would find."""
    try:
        java = find_java(environ)
    except NoJava as error:
        return note("java", str(error), "pip install 'shardnode[spark]', or set JAVA_HOME")
    return ok("java", f"{'.'.join(map(str, java.version))} of {java.source}")
