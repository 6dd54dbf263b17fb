"""What users are promised when nodes and links fail: real processes under load, every answer
recorded and judged.

Writes must go on within 3 s of each fault. A follower stands for election after one to two election
timeouts of 1 s, and a client that waits asks again at least every quarter of a second.
"""

from __future__ import annotations

import time

from shardnode.testing.cluster import Cluster
from shardnode.testing.proxy_stream import Faults
from shardnode.testing.stream_load import StreamLoad, judge_stream
from tests.cluster.kit import trial


def test_killed_leader_is_replaced_and_comes_back(cluster: Cluster) -> None:
    with trial(cluster, "kill"):
        leader = cluster.nodes[cluster.leader(0)]
        leader.kill()
        time.sleep(2.0)
        leader.start()


def test_paused_leader_tells_no_lies_when_it_goes_on(cluster: Cluster) -> None:
    with trial(cluster, "pause"):
        leader = cluster.nodes[cluster.leader(1)]
        leader.pause()
        time.sleep(2.5)
        leader.resume()
        time.sleep(0.5)


def test_isolated_leader_is_replaced(cluster: Cluster) -> None:
    with trial(cluster, "isolate"):
        cluster.isolate(cluster.leader(0))
        time.sleep(3.0)
        cluster.heal()
        time.sleep(0.5)


def test_leader_that_nobody_hears_is_replaced(cluster: Cluster) -> None:
    with trial(cluster, "mute"):
        leader = cluster.leader(0)
        for node in set(cluster.nodes) - {leader}:
            cluster.cut(leader, node)
        time.sleep(3.0)
        cluster.heal()
        time.sleep(0.5)


def test_rolling_restart_loses_nothing(cluster: Cluster) -> None:
    with trial(cluster, "roll") as load:
        for node in cluster.nodes.values():
            assert node.stop() == 0
            node.start()
            load.wait_acknowledged(10)


def test_messages_lost_doubled_reordered_and_late_are_harmless(cluster: Cluster) -> None:
    with trial(cluster, "noise"):
        cluster.disturb(Faults(drop=0.05, duplicate=0.1, reorder=0.1, jitter_ms=5))
        time.sleep(2.0)
        counts = cluster.proxy.counts()
        cluster.heal()
    assert min(counts["dropped"], counts["duplicated"]) > 10


def test_streams_keep_order_and_lose_nothing_when_leaders_die_or_are_cut_off(
    cluster: Cluster,
) -> None:
    with StreamLoad(cluster.addresses, prefix="streams") as load:
        load.wait_acknowledged(20)
        leader = cluster.nodes[cluster.leader(0)]
        leader.kill()
        load.wait_acknowledged(20)
        leader.start()
        cluster.isolate(cluster.leader(1))
        load.wait_acknowledged(20)
        cluster.heal()
        findings = judge_stream(cluster, load)
    assert findings == [], "\n".join(map(str, findings[:10]))
    assert sum(each.status == "ok" for each in load.history.appended) > 200
    assert load.history.seen
