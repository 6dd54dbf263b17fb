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
from shardnode.testing.fixtures import RunningNode, running_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


def path_without_java(path: str) -> str:
    return os.pathsep.join(
        folder for folder in path.split(os.pathsep) if shutil.which("java", path=folder) is None
    )
