"""A directory with files of every kind, written by a real node that was stopped cleanly.

The one rule: it is small, because it is looked at hundreds of times; so segments, tables and
snapshots are as small as they may be.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from shardnode.client import Client
from shardnode.testing.cluster import Cluster

SHARD = "shard-1"
"""Of the two, the one whose files are flipped: the other one shows that it is left alone."""

SETTINGS = {
    "storage": {
        "segment_bytes": "1MiB",
        "table_bytes": "1MiB",
        "zero_ahead_bytes": "64KiB",
        "snapshot_entries": 40,
    }
}
TOPIC = "verify/stream"
RETENTION_BYTES = 1 << 20
WAIT_S = 60.0
_WHOLE_SNAPSHOT = "snapshots/*[0-9]/stream-*"


def write_directory(path: Path) -> Path:
    """Fill a node, stop it, and copy its directory to `path`."""
    with Cluster(nodes=1, shards=2, settings=SETTINGS, proxied=False) as cluster:
        node = cluster.nodes[1]
        with cluster.client(timeout=20) as db:
            _fill(db)
            deadline = time.monotonic() + WAIT_S
            for number in range(1_000):
                if all(list(node.data.glob(f"shard-{n}/{_WHOLE_SNAPSHOT}")) for n in (0, 1)):
                    break
                assert time.monotonic() < deadline, "no snapshots with streams were built"
                db.put_many({b"more/%d" % each: b"%d" % number for each in range(40)})
                time.sleep(0.02)
            _fill_more(db)
        node.stop()
        shutil.copytree(node.data, path)
    return path


def _fill(db: Client) -> None:
    """Small and large values, some that expire, some that are deleted; a topic with messages."""
    topic = db.create_topic(TOPIC, partitions=4, retention_bytes=RETENTION_BYTES)
    for number in range(40):
        pairs = {b"key/%d/%d" % (number, each): b"%d " % each * (each * 7) for each in range(60)}
        db.put_many(pairs, ttl=3_600 if number % 4 == 0 else None)
        db.delete_many(list(pairs)[::7])
        db.put(b"large/%d" % number, b"l" * 9_000)
    for number in range(120):
        topic.append([b"message %d " % number * 500] * 4, partition=number % 4)


def _fill_more(db: Client) -> None:
    """Keys are written again, so that pages of LMDB become free and are used again."""
    for number in range(30):
        db.put_many({b"key/%d/%d" % (number, each): b"again %d" % each for each in range(0, 60, 3)})
    with db.topic(TOPIC).consumer(group="readers", start="earliest") as consumer:
        messages = consumer.poll(timeout=10.0)
        assert messages, "a group found nothing to read"
        consumer.commit(messages[-1])
