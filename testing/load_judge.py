"""The end of a trial: stop the load, let everything heal, and ask every judge what was seen.

The one rule: the faults are over first. A verdict is about what happened during them; that the
cluster comes back and its replicas agree is part of it.
"""

from __future__ import annotations

from shardnode.testing.checkers import Finding, check_by_index
from shardnode.testing.checkers_search import check_by_search
from shardnode.testing.cluster import Cluster
from shardnode.testing.load import Load, read_all


def judge(cluster: Cluster, load: Load) -> list[Finding]:
    """Everything that is wrong; the load is stopped by it."""
    recover(cluster)
    load.stop()
    with cluster.client(timeout=30.0) as client:
        read_all(load, client)
    findings = check_by_index(load.operations) + check_by_search(load.operations)
    return findings + compare_replicas(cluster)


def recover(cluster: Cluster) -> None:
    """All links whole, all nodes running."""
    if cluster.proxied:
        cluster.heal()
    for node in cluster.nodes.values():
        if node.is_paused:
            node.resume()
        if not node.is_running:
            node.launch()
    for node in cluster.nodes.values():
        node.wait_ready()
    cluster.wait_writable()


def compare_replicas(cluster: Cluster) -> list[Finding]:
    """Replicas that have applied the same entries and differ."""
    findings = []
    for shard, replicas in cluster.digests().items():
        if len({replica.digest for replica in replicas.values()}) > 1:
            findings.append(Finding("replicas", f"shard {shard} differs: {replicas}"))
    return findings
