"""The SparkSession of a command, and the errors of its tasks as our own.

One rule: what Spark says for itself goes to a file. Standard error is for people and for one JSON
object, and Spark has a lot to say; the file is named when a job fails, else it is removed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shardnode.pipeline.java import NoJava
from shardnode.wire import errors
from shardnode.wire.errors import InvalidRequest, ShardnodeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_JOBS = {
    "spark.app.name": "shardnode job",
    "spark.ui.showConsoleProgress": "false",
}

LOCAL = "local[*]"

_OURS = re.compile(r"^(?:\w+Exception: )?shardnode(?:\.\w+)+\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a traceback that ends with an error of ours."""


def require_spark() -> None:
    """Raise `InvalidRequest` where Spark is not installed."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise InvalidRequest(
            "expected the packages pyspark and pyarrow, which jobs need, found no"
            f" {' and no '.join(missing)}; pip install 'shardnode[spark]'"
        )


class SparkFailed(ShardnodeError):
    """Something failed in Spark that is no error of ours."""


@contextmanager
def job_session(master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for one job; it is stopped at the end."""
    require_spark()
    fd, path = tempfile.mkstemp(prefix="shardnode-job-", suffix=".log")
    os.close(fd)
    keep = False
    try:
        spark = _started(master, conf, path)
        try:
            with own_errors():
                yield spark
        finally:
            spark.stop()
    except SparkFailed as error:
        keep = True
        raise SparkFailed(f"{error.message}; what Spark said is in {path}") from error
    finally:
        if not keep:
            os.unlink(path)


def _started(master: str | None, conf: Mapping[str, str], path: str) -> SparkSession:
    from shardnode.pipeline.spark import session

    settings = {**OF_JOBS, **conf}
    if master is not None or "spark.master" not in settings:
        settings["spark.master"] = master or os.environ.get("MASTER", LOCAL)
    try:
        with _streams_to(path):
            return session(**settings)
    except NoJava as error:
        raise InvalidRequest(str(error)) from error
    except Exception as error:
        raise _failed(error, "Spark did not start") from error


@contextmanager
def own_errors() -> Iterator[None]:
    """What our code raised in a task, or in a worker that plans, is raised again here."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _failed(error, "Spark failed") from error


def _failed(error: Exception, what: str) -> ShardnodeError:
    text = str(error)
    found = _OURS.search(text)
    if found is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return SparkFailed(f"{what}: {' '.join(lines[:3])[:600] or type(error).__name__}")
    kind = errors.Corrupt if found[1] == "Damaged" else getattr(errors, found[1], ShardnodeError)
    try:
        made = kind(found[2])
    except TypeError:  # one that wants to know more than its message
        return InvalidRequest(found[2])
    assert isinstance(made, ShardnodeError), "the module of errors has nothing else of such names"
    return made


@contextmanager
def _streams_to(path: str) -> Iterator[None]:
    """Processes that are started meanwhile write there, in place of our own two streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError):
            stream.flush()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    kept = [(number, os.dup(number)) for number in (1, 2) if _is_open(number)]
    try:
        for number, _ in kept:
            os.dup2(fd, number)
        yield
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
        os.close(fd)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
