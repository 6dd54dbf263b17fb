"""What `pip install "shardnode[spark]"` brings: Spark finds the data source by itself."""

from __future__ import annotations

from pathlib import Path

from tests.wheels import copy_tree, install, opener, put_strangers, run

UNREGISTERED = """
from shardnode.pipeline.spark import prepare
prepare()
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
try:
    spark.read.format("shardnode").option("bogus", "1").load()
except Exception as error:
    print(error)
spark.stop()
"""


def test_installed_wheel_is_found_by_a_plain_session_among_foreign_folders(tmp_path: Path) -> None:
    """The folders are called like our rooms, and nobody has registered anything."""
    with opener() as builder:
        wheel = builder(copy_tree(tmp_path / "tree")).build("wheel", tmp_path / "wheel")
    programs = install(Path(wheel), tmp_path / "installed", "spark")
    (foreign := tmp_path / "foreign").mkdir()
    said = run([programs / "python", "-c", UNREGISTERED], put_strangers(foreign))
    assert "unknown option 'bogus'" in said
    assert "a stranger" not in said
