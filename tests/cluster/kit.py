"""Load around a fault, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from shardnode.testing.cluster import Cluster
from shardnode.testing.load import Load
from shardnode.testing.load_judge import judge

RESUME_S = 3.0
"""After any fault, also when votes split."""


@contextmanager
def trial(cluster: Cluster, name: str) -> Iterator[Load]:
    """Load around a fault: nothing wrong is seen, and no shard stops for longer than allowed."""
    with Load(cluster.addresses, prefix=name) as load:
        load.wait_acknowledged(20)
        begin_ns = time.monotonic_ns()
        yield load
        load.wait_acknowledged(20)
        gaps = load.longest_gap_s(begin_ns)
        findings = judge(cluster, load)
    assert findings == [], "\n".join(map(str, findings[:10]))
    late = {shard: gap for shard, gap in gaps.items() if gap > RESUME_S}
    assert not late, f"seconds without an acknowledged write: {gaps}"
    assert sum(operation.status == "ok" for operation in load.operations) > 200
