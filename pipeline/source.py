"""The door that Spark knocks at: a data source for reading and writing, in batch and in streams.

One rule: nothing is decided here. Options say what is meant, and each of the four uses has a module
of its own, which is loaded when it is needed: Spark imports this one in every session that looks
for data sources, and one that fails would disable those of others.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from shardnode.pipeline.options import Options, check, parse
from shardnode.pipeline.schemas import check_schema, ddl_of
from shardnode.wire.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class ShardnodeSource(DataSource):
    """`spark.read.format("shardnode")` and its siblings."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return "shardnode"

    def schema(self) -> str:
        return ddl_of(parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._reading(schema, "read")
        if options.changes:
            raise InvalidRequest("changes are a stream: use spark.readStream")
        if options.topic is not None:
            from shardnode.pipeline.topics_scan import TopicReader

            return TopicReader(options, schema)
        from shardnode.pipeline.keys_scan import KeyReader

        return KeyReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._reading(schema, "readStream")
        if options.path is not None:
            raise InvalidRequest("a stream is read from a running node: give connect, not path")
        if options.topic is not None:
            from shardnode.pipeline.topics_stream import TopicStreamReader

            return TopicStreamReader(options, schema)
        if options.changes:
            from shardnode.pipeline.changes_stream import ChangesStreamReader

            return ChangesStreamReader(options, schema)
        raise InvalidRequest(
            'a stream is of a topic or of changes: give option("topic", …) or'
            ' option("changes", "true")'
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from shardnode.pipeline.writes import batch_writer

        return batch_writer(self._writing(overwrite, "write"), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from shardnode.pipeline.writes import stream_writer

        return stream_writer(self._writing(overwrite, "writeStream"), schema)

    def _reading(self, schema: StructType, use: str) -> Options:
        options = parse(self.options)
        check(self.options, "readStream" if use == "readStream" else "read")
        check_schema(schema, options)
        return options

    def _writing(self, overwrite: bool, use: str) -> Options:
        options = parse(self.options)
        check(self.options, "writeStream" if use == "writeStream" else "write")
        if overwrite:
            raise InvalidRequest(
                'rows are only added: use mode("append"), which puts each key anew; delete what'
                " must not stay, by `shardnode kv del` or `Client.delete_many`"
            )
        return options
