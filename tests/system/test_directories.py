"""What a data directory remembers, and how nodes start on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardnode import Client
from shardnode.configs import example
from tests.system.kit import NodeProcess, folder, started


def refused(data: Path, *words: str) -> str:
    node = NodeProcess(data, *words)
    code = node.stop()
    assert code != 0
    return "\n".join(node.said)


def test_another_number_of_shards_is_refused_with_both_numbers() -> None:
    with folder() as data:
        with started(data, "--shards", "2"):
            pass
        said = refused(data, "--shards", "4")
        assert "2" in said
        assert "4" in said
        assert "reshard" in said


def test_second_supervisor_on_one_directory_exits() -> None:
    with folder() as data, started(data, "--shards", "1") as node, Client(node.address) as db:
        said = refused(data, "--shards", "1")
        assert str(node.process.pid) in said
        db.put(b"still", b"here")


def test_unsharded_directory_starts_unchanged_with_sharding_code_present() -> None:
    with folder() as place:
        config = place / "off.toml"
        config.write_text("[sharding]\nenabled = false\n")
        data = place / "data"
        for round_ in range(2):
            with started(data, "--config", str(config)) as node, Client(node.address) as db:
                assert node.said[0].startswith("ready: 1 shards on ")
                if round_:
                    assert db.get(b"old") == b"value"
                db.put(b"old", b"value")
        with started(data) as node, Client(node.address) as db:
            assert db.get(b"old") == b"value"


@pytest.mark.parametrize("name", ["single", "sharded", "reference"])
def test_example_configuration_starts(name: str) -> None:
    with folder() as place:
        config = place / f"{name}.toml"
        config.write_text(example(name))
        with started(place / "data", "--config", str(config)) as node, Client(node.address) as db:
            db.put(b"a", b"1")
            assert db.get(b"a") == b"1"


def test_memory_engine_says_loudly_that_it_forgets() -> None:
    with folder() as place:
        config = place / "memory.toml"
        config.write_text('[storage]\nengine = "memory"\n')
        with started(place / "data", "--config", str(config)) as node, Client(node.address) as db:
            db.put(b"a", b"1")
            assert any("memory" in line for line in node.said)


def test_port_that_is_taken_is_named_with_who_has_it_and_what_to_do() -> None:
    with folder() as place, started(place / "one", "--shards", "1") as node:
        command = [sys.executable, "-P", "-m", "shardnode", "start", "--data", str(place / "two")]
        command += ["--listen", node.address, "--shards", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode != 0
        assert node.address.rpartition(":")[2] in done.stderr
        assert "127.0.0.1:0" in done.stderr
