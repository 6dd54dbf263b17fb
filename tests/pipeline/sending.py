"""Partitions on their way to tasks: pickled and back, as Spark sends them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.serializers import CloudPickleSerializer


def as_sent(partitions: Iterable[object]) -> list[Any]:
    """What tasks get of them."""
    serializer: Any = CloudPickleSerializer
    sent = serializer()
    return [sent.loads(sent.dumps(each)) for each in partitions]
