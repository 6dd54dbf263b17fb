"""Keys as record batches: whole blocks as they lie in memory, single items where they must.

One rule: a column that nobody asked for is not made, and a block is copied only where rows of it
are hidden by something newer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from shardnode.pipeline.columns import record_batch, timestamps_ms
from shardnode.storage.engine_values import split_header, value_of
from shardnode.storage.keyfile import Block
from shardnode.wire.placement import slots_of_keys

_BINARY = pa.binary()


def block_batch(block: Block, shard: int, schema: pa.Schema) -> pa.RecordBatch:
    """All rows of a block."""
    return record_batch(
        schema,
        {
            "key": lambda: keys_of_block(block),
            "value": lambda: _binary(block.keys, block.value_offsets, block.value_bytes),
            "version": lambda: _numbers(pa.int64(), block.keys, block.versions),
            "expires_at": lambda: _times(_numbers(pa.int64(), block.keys, block.expiries)),
            "shard": lambda: _constant(shard, block.keys),
            "slot": lambda: _numbers(pa.uint16(), block.keys, block.slots),
        },
    )


def item_batch(
    keys: Sequence[bytes], kept: Sequence[bytes], shard: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Keys, and what is kept of each."""
    columns: Mapping[str, Callable[[], pa.Array]] = {
        "key": lambda: pa.array(keys, _BINARY),
        "value": lambda: pa.array(map(value_of, kept), _BINARY),
        "version": lambda: pa.array([split_header(each)[0] for each in kept], pa.int64()),
        "expires_at": lambda: _times(
            pa.array([split_header(each)[1] for each in kept], pa.int64())
        ),
        "shard": lambda: _constant(shard, len(keys)),
        "slot": lambda: _slots(keys),
    }
    return record_batch(schema, columns)


def without(batch: pa.RecordBatch, keys: pa.Array, hidden: Sequence[bytes]) -> pa.RecordBatch:
    """The batch less the rows of some of its `keys`, which are a column beside it."""
    return batch.filter(pc.invert(pc.is_in(keys, value_set=pa.array(hidden, _BINARY))))


def keys_of_block(block: Block) -> pa.Array:
    """The column of keys."""
    return _binary(block.keys, block.key_offsets, block.key_bytes)


def _binary(count: int, offsets: memoryview, data: memoryview) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BINARY, count, buffers)


def _numbers(kind: pa.DataType, count: int, data: memoryview) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _constant(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int32()), count)


def _times(expiries_ms: pa.Array) -> pa.Array:
    """0 stands for never, which is no time."""
    if pc.max(expiries_ms).as_py() in (0, None):
        return pa.nulls(len(expiries_ms), pa.timestamp("us", "UTC"))
    known = pc.if_else(pc.equal(expiries_ms, 0), pa.scalar(None, pa.int64()), expiries_ms)
    return timestamps_ms(known)


def _slots(keys: Sequence[bytes]) -> pa.Array:
    slots: array[int] = slots_of_keys(keys)
    return pa.Array.from_buffers(pa.uint16(), len(slots), [None, pa.py_buffer(slots)])
