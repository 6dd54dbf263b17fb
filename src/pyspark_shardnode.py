"""What Spark looks for: it takes a source from every top-level module named `pyspark_*`."""

from shardnode.pipeline.source import ShardnodeSource as DefaultSource

__all__ = ["DefaultSource"]
