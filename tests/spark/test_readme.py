"""The README's program for Spark works as it stands there."""

from __future__ import annotations

import pytest

from shardnode import Client
from shardnode.testing.node import NodeUnderTest
from tests.cli.test_readme import PYTHON


@pytest.mark.usefixtures("spark")
def test_frames_are_read_and_written_as_shown(
    node: NodeUnderTest, db: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    [program] = [text for text in PYTHON if "pipeline" in text]
    db.put_many({b"user:%d" % number: b"v" for number in range(20)})
    db.create_topic("shop/orders", partitions=2, exist_ok=True).append([b"tea", b"cake"])
    exec(program.replace("127.0.0.1:7400", node.address), {})
    shown = capfd.readouterr().out.splitlines()
    assert shown[1].split("|")[1:3] == ["shard", "count"]
    counts = [int(line.split("|")[2]) for line in shown if line.startswith("|") and "c" not in line]
    assert sum(counts) == 20
    assert shown[-1] == "2"
    assert {e.key: e.value for e in db.scan(prefix=b"score:")} == {
        b"score:%d" % number: b"%d" % number**2 for number in range(1000)
    }
