"""One SparkSession and one node for all tests with Spark; they run one after the other.

No Java is on the path here, whatever the machine has: the one from the wheel must do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardnode import Client
from shardnode.testing.node import NodeUnderTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARDS = 3

SHORT_LIVED = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
}
"""For a session that does little: compiling what it runs once would cost more than running it."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as users get it, with a Java that nobody had to install."""
    from shardnode.pipeline import session

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAVA_HOME", raising=False)
        links = tmp_path_factory.mktemp("path")
        patch.setenv("PATH", path_without_java(os.environ["PATH"], links))
        assert shutil.which("java") is None
        # Two cores; a task may fail three times, as on a cluster.
        conf = {"spark.master": "local[2,4]", "spark.sql.shuffle.partitions": "2", **SHORT_LIVED}
        running = session(**conf)
        running.sparkContext.setLogLevel("ERROR")
        yield running
        running.stop()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeUnderTest]:
    """A node that all tests share: each uses keys and topics of its own names."""
    with NodeUnderTest(SHARDS, folder=tmp_path_factory.mktemp("spark-node")) as running:
        yield running


@pytest.fixture
def db(node: NodeUnderTest) -> Iterator[Client]:
    with node.client() as client:
        yield client


def path_without_java(path: str, folder: Path) -> str:
    """The same programs but `java`: a folder that has it is replaced by links to the others."""
    found = []
    for number, name in enumerate(path.split(os.pathsep)):
        if shutil.which("java", path=name) is not None:
            links = folder / str(number)
            links.mkdir()
            for program in Path(name).iterdir():
                if program.name != "java":
                    (links / program.name).symlink_to(program)
            name = str(links)
        found.append(name)
    return os.pathsep.join(found)
