"""Load around a fault, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from shardnode.testing.cluster import Cluster
from shardnode.testing.load import Load
from shardnode.testing.load_judge import judge

RESUME_S = 3.0
"""After a fault that takes one election."""

SPLIT_S = 2.0
"""When two members stand at the same moment nobody wins, and all wait for another one to two
election timeouts. The terms tell how often that happened; two followers draw from the same second,
so on a busy machine it does, now and then."""


@contextmanager
def trial(cluster: Cluster, name: str, *, elections: int = 1) -> Iterator[Load]:
    """Load around a fault that takes so many elections at most: nothing wrong is seen, and no shard
    stops for longer than allowed."""
    with Load(cluster.addresses, prefix=name) as load:
        load.wait_acknowledged(20)
        before = terms(cluster)
        begin_ns = time.monotonic_ns()
        yield load
        load.wait_acknowledged(20)
        gaps = load.longest_gap_s(begin_ns)
        findings = judge(cluster, load)
    assert findings == [], "\n".join(map(str, findings[:10]))
    after = terms(cluster)
    splits = {shard: max(0, after[shard] - before[shard] - elections) for shard in before}
    late = {shard: gap for shard, gap in gaps.items() if gap > RESUME_S + SPLIT_S * splits[shard]}
    assert not late, f"seconds without an acknowledged write: {gaps}; split votes: {splits}"
    assert sum(operation.status == "ok" for operation in load.operations) > 200


def terms(cluster: Cluster) -> dict[int, int]:
    """Shard → the highest term that any node knows of."""
    found = dict.fromkeys(range(cluster.shards), 0)
    for status in cluster.statuses().values():
        for shard in status.shards:
            found[shard.id] = max(found[shard.id], shard.term)
    return found
