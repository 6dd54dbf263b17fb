"""Record batches as lists of rows' parts, checked.

One rule: everything is looked at by column, in C; only a row that is wrong is looked for, and the
error names it: its number in the task, its key, what was expected and what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shardnode.wire import limits
from shardnode.wire.errors import InvalidRequest, LimitExceeded

_KEY_SHOWN = 64


class Rows:
    """The rows of one record batch. `first`: how many the task had before it."""

    def __init__(self, batch: pa.RecordBatch, first: int, partition: int) -> None:
        self._batch = batch
        self._first = first
        self._partition = partition
        self.count = batch.num_rows

    def has(self, name: str) -> bool:
        return name in self._batch.schema.names

    def keys(self) -> list[bytes]:
        """None of them missing, empty or too long."""
        keys = self._bytes("key", optional=False)
        lengths = pc.min_max(pc.binary_length(keys)).as_py()
        if lengths["min"] < limits.key_bytes_min or lengths["max"] > limits.key_bytes_max:
            self._refuse_length("key", keys, limits.key_bytes_min, "key_bytes_max")
        found: list[bytes] = keys.to_pylist()
        return found

    def optional_keys(self) -> list[bytes | None] | None:
        """None where no row has one."""
        if not self.has("key") or self._column("key").null_count == self.count:
            return None
        keys = self._bytes("key", optional=True)
        lengths = pc.min_max(pc.binary_length(keys)).as_py()
        if lengths["min"] < limits.key_bytes_min or lengths["max"] > limits.key_bytes_max:
            self._refuse_length("key", keys, limits.key_bytes_min, "key_bytes_max")
        found: list[bytes | None] = keys.to_pylist()
        return found

    def values(self) -> list[bytes]:
        """None of them missing or too large."""
        values = self._bytes("value", optional=False)
        if pc.max(pc.binary_length(values)).as_py() > limits.value_bytes_max:
            self._refuse_length("value", values, 0, "value_bytes_max")
        found: list[bytes] = values.to_pylist()
        return found

    def ttls_ms(self, default_ms: int) -> list[int]:
        """Of the column `ttl`, in seconds; a row without has the default."""
        seconds = self._column("ttl").cast(pa.float64())
        wrong = pc.fill_null(
            pc.invert(
                pc.and_(pc.greater(seconds, 0), pc.less_equal(seconds, limits.ttl_ms_max / 1000))
            ),
            False,
        )
        self._refuse_where(
            wrong,
            "ttl",
            f"seconds above 0 and up to {limits.ttl_ms_max // 1000}",
            lambda at: f"{seconds[at].as_py()}",
            "leave it null for what stays",
        )
        whole = pc.max_element_wise(pc.round(pc.multiply(seconds, 1000.0)), 1.0, skip_nulls=False)
        found: list[int] = pc.fill_null(whole.cast(pa.int64()), default_ms).to_pylist()
        return found

    def expiries_ms(self) -> list[int]:
        """Of the column `expires_at`, since 1970; 0 where a row stays."""
        millis = self._column("expires_at").cast(pa.timestamp("ms", tz="UTC"), safe=False)
        found: list[int] = pc.fill_null(millis.cast(pa.int64()), 0).to_pylist()
        return found

    def partitions(self, count: int, topic: str) -> list[int | None] | None:
        """The partitions that rows ask for; None where none does."""
        if not self.has("partition") or self._column("partition").null_count == self.count:
            return None
        column = self._column("partition")
        outside = pc.or_(pc.less(column, 0), pc.greater_equal(column, count))
        self._refuse_where(
            pc.fill_null(outside, False),
            "partition",
            f"0 to {count - 1}, the partitions of {topic}",
            lambda at: f"{column[at].as_py()}",
            "drop the column, and keys choose; or give the topic more partitions",
        )
        found: list[int | None] = column.to_pylist()
        return found

    def headers(self) -> Headers | None:
        """None where no row has any."""
        if not self.has("headers"):
            return None
        column = self._column("headers")
        flat = column.flatten()
        if not len(flat):
            return None
        names, values = flat.field("key"), flat.field("value")
        if flat.null_count or names.null_count or values.null_count:
            raise InvalidRequest(
                f"column 'headers' of partition {self._partition} of Spark: expected a key and a"
                " value in each header, found null; leave out such headers"
            )
        counts = pc.fill_null(pc.list_value_length(column), 0)
        sizes = pc.add(pc.binary_length(names), pc.binary_length(values))
        return Headers(
            counts.to_pylist(),
            names.to_pylist(),
            values.cast(pa.binary()).to_pylist(),
            sizes.to_pylist(),
        )

    def _column(self, name: str) -> Any:
        return self._batch.column(name)

    def _bytes(self, name: str, *, optional: bool) -> Any:
        column = self._column(name)
        if column.null_count and not optional:
            self._refuse_where(
                column.is_null(),
                name,
                "bytes or text",
                lambda _: "null",
                "filter such rows out; deletes are made by `Client.delete_many`",
            )
        if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
            return column.cast(pa.large_binary())
        return column.cast(pa.binary())

    def _refuse_length(self, name: str, column: Any, low: int, limit_name: str) -> None:
        limit = getattr(limits, limit_name)
        for at, length in enumerate(pc.binary_length(column).to_pylist()):
            if length is not None and not low <= length <= limit:
                raise LimitExceeded(
                    f"column {name!r}, {self._where(at)}: expected {low} to {limit} bytes"
                    f" ({limit_name}), found {length}; shorten it, or filter such rows out",
                    limit_name=limit_name,
                    limit=limit,
                    found=length,
                )

    def _refuse_where(
        self, mask: Any, name: str, expected: str, found: Callable[[int], str], remedy: str
    ) -> None:
        at = pc.index(mask, True).as_py()
        if at >= 0:
            raise InvalidRequest(
                f"column {name!r}, {self._where(at)}: expected {expected}, found {found(at)};"
                f" {remedy}"
            )

    def _where(self, at: int) -> str:
        where = f"row {self._first + at} of partition {self._partition} of Spark"
        if not self.has("key") or not self._column("key")[at].is_valid:
            return where
        key = self._column("key").cast(pa.binary())[at].as_py()
        shown = repr(key[:_KEY_SHOWN]) + ("…" if len(key) > _KEY_SHOWN else "")
        return f"{where} with key {shown}"


class Headers(NamedTuple):
    """Those of all rows, one after the other."""

    counts: Sequence[int]
    names: Sequence[str]
    values: Sequence[bytes]
    sizes: Sequence[int]
    """The bytes of each header."""

    def by_row(self) -> list[list[tuple[str, bytes, int]]]:
        """(name, value, bytes) of the headers of each row."""
        headers = iter(zip(self.names, self.values, self.sizes, strict=True))
        return [[next(headers) for _ in range(count)] for count in self.counts]
