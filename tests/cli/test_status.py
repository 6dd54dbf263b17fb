"""`status`, `health` and `explain`: the documented names, and exit codes for scripts."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import psutil
import pytest

from shardnode.wire.cluster import StatusFound
from shardnode.wire.codec import Body
from shardnode.wire.placement import hash_of_key, initial_table, slot_of_key
from tests.cli.conftest import Kv
from tests.cli.kit import run, run_on_terminal
from tests.client.fake import FakeNode

SHARD = {
    "id",
    "pid",
    "core",
    "role",
    "leader",
    "term",
    "commit_index",
    "applied_index",
    "durable_index",
    "truncation_index",
    "state",
    "restarts",
    "needed_index",
    "snapshot_index",
    "log_bytes",
    "error",
    "partitions",
}


DAMAGE = "log/1.seg is damaged: restore the shard"


class Unwell(FakeNode):
    """A node of which one shard is damaged and another has no leader."""

    def _of_node(self, body: Body) -> Body:
        answer = super()._of_node(body)
        if isinstance(answer, StatusFound):
            states, leaders = ["serving", "fenced", "serving"], [1, 1, None]
            errors = ["", DAMAGE, ""]
            return replace(answer, states=states, leaders=leaders, errors=errors)
        return answer


def test_status_in_json_has_the_documented_names(shardnode: Kv) -> None:
    status = json.loads(shardnode("status", "--json").stdout)
    assert status.keys() >= {"node_id", "cluster", "epoch", "shards"}
    assert (status["node_id"], status["cluster"]) == (1, "main")
    assert [shard["id"] for shard in status["shards"]] == [0, 1]
    for shard in status["shards"]:
        assert shard.keys() >= SHARD
        assert (shard["role"], shard["leader"], shard["state"]) == ("leader", 1, "serving")
        assert psutil.pid_exists(shard["pid"])
        assert shard["truncation_index"] < shard["needed_index"] <= shard["durable_index"] + 1
        for mark in shard["partitions"]:
            assert mark["durable_index"] <= mark["applied_index"]
            assert not mark["required_index"] or mark["required_index"] >= shard["needed_index"]
        if shard["core"] is not None:
            assert os.sched_getaffinity(shard["pid"]) == {shard["core"]}


def test_status_for_people(shardnode: Kv, address: str) -> None:
    about, headings, *rows = shardnode("status").stdout.decode().splitlines()
    assert about.startswith("node 1 of cluster main, epoch ")
    assert headings.split()[:4] == ["shard", "state", "role", "leader"]
    assert [row.split()[:4] for row in rows] == [
        ["0", "serving", "leader", "1"],
        ["1", "serving", "leader", "1"],
    ]
    code, drawn = run_on_terminal(["status", "--connect", address], which="stdout")
    assert code == 0
    assert "│".encode() in drawn
    words = ["status", "--connect", address]
    code, plain = run_on_terminal(words, which="stdout", env={"NO_COLOR": "1"})
    assert code == 0
    assert b"\x1b[3" not in plain


def test_healthy_node_ends_with_0(shardnode: Kv) -> None:
    done = shardnode("health")
    assert (done.returncode, done.stdout) == (0, b"healthy: 2 of 2 shards serve\n")
    told = json.loads(shardnode("--json", "health").stdout)
    assert told == {"healthy": True, "node_id": 1, "shards": 2, "problems": []}


def test_unhealthy_node_ends_with_7_and_says_why() -> None:
    with Unwell(shards=3) as node:
        words = ("health", "--connect", node.address)
        done = run(*words)
        problems = ["shard 1 is fenced", "shard 2 has no leader"]
        assert done.stdout.decode().splitlines() == ["unhealthy", *problems]
        assert done.returncode == 7
        done = run(*words, "--json")
        assert done.returncode == 7
        assert json.loads(done.stdout)["problems"] == problems


def test_status_names_the_damage() -> None:
    with Unwell(shards=3) as node:
        done = run("status", "--connect", node.endpoint.removeprefix("tcp://"))
    assert done.stdout.decode().splitlines()[-1] == f"shard 1 is fenced: {DAMAGE}"


def test_node_out_of_reach_is_not_called_unhealthy() -> None:
    assert run("health", "--connect", "127.0.0.1:1").returncode == 4


@pytest.mark.parametrize("key", [b"user:1", b"{user:1}:cart", b"\xff", b"-k"])
def test_explain_agrees_with_the_placement(shardnode: Kv, key: bytes) -> None:
    route = json.loads(shardnode("explain", "--json", key).stdout)
    assert route.keys() >= {"key", "hash", "slot", "shard", "leader", "epoch", "pid", "core"}
    assert (route["hash"], route["slot"]) == (hash_of_key(key), slot_of_key(key))
    assert route["shard"] == initial_table(2).shard_of_key(key)
    status = json.loads(shardnode("status", "--json").stdout)
    shard = status["shards"][route["shard"]]
    assert (route["pid"], route["core"], route["leader"]) == (shard["pid"], shard["core"], 1)


def test_explain_for_people_says_what_is_hashed(shardnode: Kv) -> None:
    facts = dict(
        line.split(maxsplit=1)
        for line in shardnode("explain", "{user:1}:cart").stdout.decode().splitlines()
    )
    assert facts["hashed"] == "user:1 (the part in braces)"
    assert facts["slot"] == f"{slot_of_key(b'user:1')} of 16384"


def test_status_of_a_shard_is_what_its_process_does(shardnode: Kv) -> None:
    shards = json.loads(shardnode("status", "--json").stdout)["shards"]
    key = next(f"k{n}" for n in range(99) if initial_table(2).shard_of_key(b"k%d" % n) == 1)
    before = shards[1]["commit_index"]
    assert shardnode("kv", "put", key, "1").returncode == 0
    # The router hears of indexes once a second.
    for _ in range(50):
        now = json.loads(shardnode("status", "--json").stdout)["shards"][1]
        if now["commit_index"] > before:
            break
    assert now["commit_index"] > before
    assert now["durable_index"] >= now["commit_index"]
