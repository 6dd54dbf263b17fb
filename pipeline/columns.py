"""Record batches of exactly the columns that somebody wants.

One rule: a column that nobody asked for is never made, and what is made has the type of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

_MANY = 1 << 16
_COUNTING = pa.array(range(_MANY), pa.int64())


def record_batch(
    schema: pa.Schema, columns: Mapping[str, Callable[[], pa.Array]]
) -> pa.RecordBatch:
    """A batch with this schema. `columns` says how each column is made that could be wanted."""
    arrays = []
    for field in schema:
        array = columns[field.name]()
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def counting(first: int, count: int) -> pa.Array:
    """first, first + 1, … as int64."""
    numbers = _COUNTING if count <= _MANY else pa.array(range(count), pa.int64())
    return pc.add(numbers.slice(0, count), pa.scalar(first, pa.int64()))


def timestamps_ms(milliseconds: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as the times that Spark knows."""
    return milliseconds.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
