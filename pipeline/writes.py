"""Rows to keys and to topics, in batch and in streams, each row once.

One rule: a task that is run again writes nothing that it has written before, and loses nothing that
it has not. How that is so:

A task may be run again because it failed, because Spark speculates, because its executor was lost,
or, in a stream, because the driver died before it noted a micro-batch as done; then all of that
micro-batch comes again, perhaps days later. Every request of a task has a name that follows from
who writes (the job, or the query and its sink; the Spark partition), from the micro-batch and from
the rows in it (`write_identity`). The node knows names that it has seen, in two ways:

    sessions     The task opens a session of its own name on each shard, and the request's name is
                 its number there. A shard answers a repeat with its first reply and does nothing.
                 This is replicated, and remembered until the job commits or the query is at a later
                 micro-batch; else for a day after the task was last heard of. When a batch write
                 has committed, its sessions are closed: what a lost copy of a task still sends is
                 refused. When a stream goes on, so are requests of earlier micro-batches.
    producers    Appends of streams also have a producer (the query, the Spark partition, the how
                 manieth append to a partition of the topic), whose sequence is the micro-batch and
                 part of the digest. A partition remembers the last thousand producers that appended
                 to it, for ever, through fail-over and snapshots.

A batch write to a topic that has the option `identity` is named by it, and by nothing drawn: run
again under that name, in this job or in a later one, it appends what is not there. Its sessions
are not closed; they end a day after they were last heard of, and then producers still know.

Requests are cut by the rows and their order alone (`write_chunks`), and their digests do not look
at the order inside. So the second run makes the requests of the first, if Spark gives it the same
rows in the same Spark partitions, up to the order of those that share a request.

If it does not (a source that is not repeatable, random numbers, another order in tasks of more than
10,000 rows for one place behind a shuffle, files split for another number of cores), other rows
have other names and are written. No row is lost. What is written twice then:

    keys         nothing to see: the same value again, with a new version. A change that somebody
                 else made of such a key in between is overwritten, as it is when a half-written
                 micro-batch is repeated after more than a day.
    topics       rows of requests that were cut otherwise are there twice. `pipeline.by_shard` sorts
                 by the key, which makes batches repeatable behind a shuffle; topics and files, read
                 by the same options, are repeatable by themselves.

Also: of one key that two tasks write, either may be the last; of one that comes twice in a task,
the last row counts. When slots have moved between shards, or a topic was given more partitions,
between two runs of a task, its shards do not know each other's sessions: as above. A checkpoint
that was deleted makes another query of it, which writes everything again. `foreachBatch` with a
batch write inside is a job of its own for each call.

What `abort` leaves: all that was written stays. Run the job again; keys end up right, and a topic
has the rows of the first attempt besides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from shardnode.client import topics
from shardnode.pipeline.options import Options
from shardnode.pipeline.schemas import arrow_schema
from shardnode.pipeline.write_columns import Rows
from shardnode.pipeline.write_identity import Author, job_of_query
from shardnode.pipeline.write_input import connection_to_spark, whole
from shardnode.pipeline.write_keys import KeyWriter
from shardnode.pipeline.write_schema import used_columns
from shardnode.pipeline.write_sender import Sender
from shardnode.pipeline.write_topics import TopicWriter
from shardnode.wire.errors import InvalidRequest, ShardnodeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamBase
    from pyspark.sql.types import StructType
else:  # before 4.1 streams hand over rows
    _StreamBase = getattr(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
    )

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"

_ROWS = 10_000
"""In a record batch that is made of rows."""


@dataclass(frozen=True)
class Wrote(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int = 0
    sessions: tuple[tuple[int, bytes], ...] = ()
    """(shard, client id)"""


def batch_writer(options: Options, schema: StructType) -> BatchWriter:
    """For `df.write`."""
    return BatchWriter(options, schema)


def stream_writer(options: Options, schema: StructType) -> StreamWriter:
    """For `df.writeStream`."""
    return StreamWriter(options, schema)


class _Writing:
    """What both writers do in a task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.columns = used_columns(schema, options)

    def _write(self, author: Author, given: Iterable[Any]) -> Wrote:
        """All rows of a task, as they come."""
        batches = (batch for batch in self._batches(given) if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return Wrote()
        with Sender(self.options, author) as sender:
            to_topic = self.options.topic is not None
            writer = (TopicWriter if to_topic else KeyWriter)(sender, self.options)
            writer.add(Rows(first, 0, author.partition))
            for batch in batches:
                writer.add(Rows(batch, writer.rows, author.partition))
            writer.finish()
            sessions = [(shard, client_id) for (shard, _), client_id in sender.sessions.items()]
            return Wrote(writer.rows, tuple(sessions))

    def _sink(self) -> str:
        topic = self.options.topic
        return "keys" if topic is None else f"topic {topics.to_topic_name(topic)}"

    def _batches(self, given: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Record batches of the columns that are used."""
        rows = iter(given)
        for each in rows:
            if isinstance(each, Row):
                yield from self._from_rows(each, rows)
            else:
                yield each.select(list(self.columns))

    def _from_rows(self, first: Row, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = arrow_schema(self.schema)
        some = [first, *islice(rows, _ROWS - 1)]
        while some:
            columns = list(zip(*some, strict=True))
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, names=schema.names)
            yield batch.select(list(self.columns))
            some = list(islice(rows, _ROWS))


class BatchWriter(_Writing, DataSourceArrowWriter):
    """One `df.write`. With an identity it writes as the first micro-batch of a stream of that name
    would, which may be repeated."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._is_named = options.identity is not None
        self._job = os.urandom(16)
        if options.identity is not None:
            self._job = job_of_query(options.identity, self._sink())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        author = Author(self._job, _task().partitionId(), is_stream=self._is_named)
        return self._write(author, whole(iterator, connection_to_spark()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing more comes of this job: copies of its tasks that are still about are refused. If
        that cannot be said, the sessions end by themselves."""
        sessions = {s for m in messages if isinstance(m, Wrote) for s in m.sessions}
        if not sessions or self._is_named:
            return
        try:
            with Sender(self.options, Author(self._job, 0)) as sender:
                sender.close_sessions(sorted(sessions))
        except ShardnodeError:
            return  # every row is written; see above


class StreamWriter(_Writing, _StreamBase):
    """One micro-batch of `df.writeStream`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise InvalidRequest(
                f"expected {QUERY_ID} and {BATCH_ID} among the properties of a task of a stream,"
                f" found {query!r} and {batch!r}; use a trigger that makes micro-batches"
            )
        job = job_of_query(query, self._sink())
        author = Author(job, task.partitionId(), int(batch), is_stream=True)
        return self._write(author, whole(iterator, connection_to_spark()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Every request was answered, so there is nothing left to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was written stays, and is not written again when the micro-batch is repeated."""


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "Spark calls this in a task"
    return task
