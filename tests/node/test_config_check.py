"""Settings that are each right and do not go together are refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardnode.node.config import SETTINGS
from shardnode.node.config_check import CHECKS
from tests.node.kit import config_of, problem_of, problems_of

THREE = '["1@127.0.0.1:7400", "2@127.0.0.1:8400", "3@127.0.0.1:9400"]'
NETWORK = "[security]\nplaintext_network = true\n"

BAD = {
    "shards_exist": (
        "[sharding]\nshards = 2\nlocal_shards = [0, 1, 2]",
        "sharding.local_shards: expected shards from 0 to 1, found 2",
    ),
    "every_shard_has_a_holder": (
        "[sharding]\nshards = 4\nlocal_shards = [0, 1]",
        "sharding.local_shards: expected all shards on the only node, found no shard 2",
    ),
    "membership_is_clear": (
        f"[node]\nid = 4\n[cluster]\npeers = {THREE}",
        "cluster.peers: expected this node among the peers, found node 4 and peers 1, 2, 3",
    ),
    "node_can_be_reached": (
        f'[node]\nlisten = "127.0.0.1:7500"\n[cluster]\npeers = {THREE}',
        "node.listen: expected port 7400 as in cluster.peers, found 7500",
    ),
    "ports_fit": (
        '[node]\nlisten = "127.0.0.1:65500"',
        "node.listen: expected a port of at most 65335, found 65500",
    ),
    "ports_are_free_of_each_other": (
        '[http]\nlisten = "127.0.0.1:7500"',
        "http.listen: expected a free port, found 7500",
    ),
    "network_is_protected": (
        '[node]\nlisten = "0.0.0.0:7400"',
        "node.listen: expected an address that only this machine reaches, found 0.0.0.0:7400",
    ),
    "leaders_are_heard_in_time": (
        '[raft]\nheartbeat = "500ms"',
        "raft.heartbeat: expected at most a third of raft.election_timeout (1000ms), found 500ms",
    ),
    "nothing_planned_is_asked_for": (
        "[tiering]\nenabled = true",
        "tiering.enabled: expected false, found true; this version cannot do it yet",
    ),
}


def test_every_check_has_a_bad_sample() -> None:
    assert [check.__name__ for check in CHECKS] == list(BAD)


@pytest.mark.parametrize("check", BAD)
def test_bad_sample_is_found_on_its_line(check: str, tmp_path: Path) -> None:
    text, said = BAD[check]
    problem = problem_of(tmp_path, text)
    assert said in problem
    assert problem.startswith("node.toml:")


@pytest.mark.parametrize(
    "text",
    [
        "[sharding]\nshards = 100",
        f"[sharding]\nshards = 4\nlocal_shards = [0, 1]\n[cluster]\npeers = {THREE}",
        f"[sharding]\nshards = 100\n[cluster]\npeers = {THREE}",
        '[node]\nlisten = "127.0.0.1:65335"',
        '[node]\nlisten = "[::1]:7400"\n[http]\nlisten = "[::1]:7480"',
        '[http]\nlisten = "127.0.0.1:80"',
        f'{NETWORK}[node]\nlisten = "0.0.0.0:7400"',
        f'{NETWORK}[node]\nlisten = "0.0.0.0:7400"\n[cluster]\npeers = ["1@a:7400", "2@b:7400"]',
        '[cluster]\njoin = "127.0.0.1:8400"\n[node]\nid = 4',
        '[cluster]\npeers = ["1@127.0.0.1:7400"]',
    ],
)
def test_good_sample_is_left_alone(text: str, tmp_path: Path) -> None:
    config_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'[cluster]\npeers = {THREE}\njoin = "127.0.0.1:1"', "expected peers or join, found both"),
        (f'[node]\nlisten = "127.0.0.1:0"\n[cluster]\npeers = {THREE}', "choose a port"),
        ('[cluster]\npeers = ["1@127.0.0.1:7400", "2@127.0.0.1:7500"]', "both would use port 7500"),
        ('[cluster]\npeers = ["1@127.0.0.1:7400", "2@localhost:7400"]', "use port 7400"),
        ('[node]\nadvertise = "0.0.0.0:7400"', "node.advertise: expected an address of one"),
        (
            f'{NETWORK}[node]\nlisten = "0.0.0.0:1"\n[cluster]\njoin = "a:7400"',
            "node.advertise: expected an address that others reach, found 0.0.0.0:1",
        ),
        (
            '[node]\nlisten = "127.0.0.1:7400"\n[cluster]\npeers = ["1@a:7400", "2@b:7400"]',
            "2@b:7400 cannot reach this machine's own address",
        ),
        ('[http]\nlisten = "0.0.0.0:80"', "http.listen: expected an address that only"),
        ('[cluster]\npeers = ["1@127.0.0.1:65400"]', "expected a port of at most 65335"),
    ],
)
def test_what_else_does_not_go_together(text: str, said: str, tmp_path: Path) -> None:
    assert any(said in problem for problem in problems_of(tmp_path, text))


def test_more_replicas_than_a_reply_can_name_are_refused(tmp_path: Path) -> None:
    peers = [f"{n}@127.0.0.1:{n}000" for n in range(1, 11)]
    text = f"[sharding]\nshards = 100\n[cluster]\npeers = {peers}".replace("'", '"')
    assert "at most 900 replicas, found 10 peers of 100 shards" in problem_of(tmp_path, text)


def test_nothing_that_protects_is_accepted_without_effect() -> None:
    """A planned setting that is accepted would be a promise that nobody keeps."""
    planned = {path for path, each in SETTINGS.items() if each.planned}
    assert planned >= {"security.keys", "security.users"}
