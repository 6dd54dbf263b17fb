"""A node joins by command, leads by command and leaves by command; the keys stay."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shardnode import Client
from tests.cli.kit import Running, run
from tests.system.kit import folder, until
from tests.system.test_three_nodes import free_addresses


def members(address: str) -> dict[int, dict[str, Any]]:
    """Node → how it stands."""
    done = run("cluster", "members", "--connect", address, "--json")
    assert done.returncode == 0, done.stderr
    return {each["id"]: each for each in json.loads(done.stdout)["members"]}


def command(*words: str, address: str) -> None:
    done = run("cluster", *words, "--connect", address)
    assert done.returncode == 0, done.stderr


def started(place: Path, node: int, address: str, *words: str) -> Running:
    data = str(place / f"data-{node}")
    return Running(
        *("start", "--node-id", str(node), "--data", data, "--listen", address), *words, cwd=place
    )


def test_node_joins_leads_and_leaves_while_the_keys_stay() -> None:
    with folder() as place:
        one, two = free_addresses(2)
        with ExitStack() as stack:
            first = started(place, 1, one, "--shards", "2", "--peer", f"1@{one}")
            stack.enter_context(first).ready()
            second = stack.enter_context(started(place, 2, two, "--join", one))
            with Client(one, timeout=10) as db:
                written = {b"key-%d" % n: b"%d" % n for n in range(100)}
                db.put_many(written)
                second.ready()
                until(lambda: members(one).get(2, {}).get("follows") == 2)
                command("transfer", "--shard", "0", "--to", "2", address=one)
                until(lambda: members(one)[2]["leads"] >= 1)
                db.put_many({key: value + b"!" for key, value in written.items()})
                command("rebalance", address=one)
                until(lambda: members(one)[1]["leads"] == 1 == members(one)[2]["leads"])
                command("remove", "2", address=one)
                until(lambda: members(one).keys() == {1} and members(one)[1]["leads"] == 2)
                assert db.get_many(list(written)) == [value + b"!" for value in written.values()]
