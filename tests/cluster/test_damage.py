"""Messages between nodes that arrive damaged: a cluster of its own, because this can wreck one."""

from __future__ import annotations

import time

from shardnode.testing.cluster import Cluster
from shardnode.testing.proxy_stream import Faults
from tests.cluster.kit import trial


def test_damaged_messages_are_harmless(cluster: Cluster) -> None:
    with trial(cluster, "damage"):
        cluster.disturb(Faults(corrupt=0.02))
        time.sleep(2.0)
        counts = cluster.proxy.counts()
        cluster.heal()
    assert counts["corrupted"] > 10
