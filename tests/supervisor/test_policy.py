"""Backoff, parking, hangs and readiness, decided without a process or a clock."""

from __future__ import annotations

from typing import Any

import pytest

from shardnode.node.affinity import allowed_cpus, assign_cores, is_pinned
from shardnode.node.supervisor_policy import Pace, Restarts, Watch, not_ready, shard_row
from shardnode.wire.errors import InvalidRequest


def test_first_restart_is_immediate_and_later_ones_wait_longer_up_to_a_cap() -> None:
    restarts = Restarts(Pace(deaths_max=100))
    waits = [restarts.after_death(float(second), 1.0) for second in range(10)]
    assert waits == [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_long_life_is_forgiven_everything_before() -> None:
    restarts = Restarts(Pace())
    for second in range(7):
        restarts.after_death(float(second), 0.1)
    assert restarts.after_death(40.0, 30.0) == 0.0
    assert restarts.after_death(41.0, 1.0) == 0.05


def test_eighth_death_within_a_minute_parks() -> None:
    restarts = Restarts(Pace())
    waits = [restarts.after_death(float(second), 0.1) for second in range(8)]
    assert None not in waits[:7]
    assert waits[7] is None


def test_deaths_that_are_far_apart_do_not_park() -> None:
    restarts = Restarts(Pace())
    waits = [restarts.after_death(10.0 * number, 9.0) for number in range(50)]
    assert None not in waits
    assert max(wait for wait in waits if wait is not None) == 5.0


def test_router_is_never_parked() -> None:
    restarts = Restarts(Pace(), may_park=False)
    assert [restarts.after_death(0.0, 0.0) for _ in range(200)][-1] == 5.0


def test_silence_becomes_lateness_and_then_a_hang() -> None:
    watch = Watch(0.0, hang_s=5.0)
    watch.heard(10.0)
    assert not watch.is_late(10.9)
    assert watch.is_late(11.1)
    assert not watch.is_hung(15.0)
    assert watch.is_hung(15.1)
    watch.heard(15.2)
    assert not watch.is_hung(20.0)


def test_child_that_has_not_spoken_yet_has_more_time() -> None:
    watch = Watch(0.0, hang_s=5.0)
    assert not watch.is_hung(29.0)
    assert watch.is_hung(30.1)


def test_nobody_hangs_because_the_supervisor_was_stopped() -> None:
    watch = Watch(0.0, hang_s=5.0)
    watch.heard(1.0)
    watch.forgive(100.0, now=101.2)
    assert not watch.is_hung(101.2)
    assert watch.is_hung(107.0)
    watch.heard(200.0)
    watch.forgive(100.0, now=200.5)  # heard after it: no time in the future
    assert watch.is_hung(206.0)


LINE = {"state": "serving", "role": "leader", "leader": 1, "term": 2, "commit_index": 9}


def row(shard: int = 0, *, parked: bool = False, **changes: Any) -> dict[str, Any]:
    line = {**LINE, **changes}
    return shard_row(shard, line, pid=7, core=0, restarts=1, parked=parked)


def test_row_has_what_the_worker_said() -> None:
    assert row() == {
        "id": 0,
        "pid": 7,
        "core": 0,
        "role": "leader",
        "leader": 1,
        "term": 2,
        "commit_index": 9,
        "applied_index": 0,
        "durable_index": 0,
        "truncation_index": 0,
        "needed_index": 0,
        "snapshot_index": 0,
        "log_bytes": 0,
        "state": "serving",
        "restarts": 1,
        "digest": "0" * 16,
        "error": "",
        "watermarks": [],
    }


def test_row_of_a_silent_or_confused_worker_is_starting() -> None:
    silent = shard_row(1, {}, pid=None, core=None, restarts=0, parked=False)
    assert (silent["state"], silent["role"], silent["leader"]) == ("starting", "follower", None)
    odd = row(state="dancing", role=3, leader="me", term="x")
    assert (odd["state"], odd["role"], odd["leader"], odd["term"]) == (
        "starting",
        "follower",
        None,
        0,
    )


def test_parked_wins_over_what_was_said() -> None:
    assert row(parked=True)["state"] == "parked"


@pytest.mark.parametrize(
    ("rows", "router", "missing"),
    [
        ([row(0), row(1)], {"state": "serving", "reached": [0, 1]}, ()),
        ([row(0)], {}, ("the router is starting",)),
        ([row(0)], {"state": "stopping", "reached": [0]}, ("the router is starting",)),
        (
            [row(0), row(1)],
            {"state": "serving", "reached": [0]},
            ("shard 1 is not reached by the router yet",),
        ),
        (
            [row(0, leader=None), row(1, state="recovering")],
            {"state": "serving", "reached": [0, 1]},
            ("shard 0 has no leader", "shard 1 is recovering"),
        ),
        (
            [row(0, parked=True)],
            {"state": "serving", "reached": [0]},
            ("shard 0 is parked",),
        ),
    ],
)
def test_readiness_names_what_is_missing(
    rows: list[dict[str, Any]], router: dict[str, Any], missing: tuple[str, ...]
) -> None:
    assert not_ready(rows, router) == missing


@pytest.mark.parametrize(
    ("shards", "wanted", "allowed", "cores"),
    [
        ([0, 1], "all", (0, 1, 2), {0: 0, 1: 1}),
        ([0, 1, 2, 3, 4], "all", (2, 5), {0: 2, 1: 5, 2: 2, 3: 5, 4: 2}),
        ([4, 7], "all", (0, 1), {4: 0, 7: 1}),
        ([0, 1], "none", (0, 1), {0: None, 1: None}),
        ([0, 1], "all", None, {0: None, 1: None}),
        ([0, 1], (1,), (0, 1), {0: 1, 1: 1}),
    ],
)
def test_cores_are_given_round_robin_from_the_own_mask(
    shards: list[int],
    wanted: tuple[int, ...] | str,
    allowed: tuple[int, ...] | None,
    cores: dict[int, int | None],
) -> None:
    assert assign_cores(shards, wanted, allowed) == cores


def test_second_node_of_a_machine_begins_at_another_core() -> None:
    assert assign_cores([0, 1, 2], "all", (2, 3), first=1) == {0: 3, 1: 2, 2: 3}


def test_core_outside_the_mask_is_refused_with_both() -> None:
    with pytest.raises(InvalidRequest, match=r"\(0, 1\), found 7"):
        assign_cores([0], (1, 7), (0, 1))


def test_process_that_is_gone_is_not_pinned() -> None:
    cpus = allowed_cpus()
    assert cpus is None or cpus
    assert not is_pinned(2**22 + 1, 0)
