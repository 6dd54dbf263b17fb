"""Bodies: msgpack, read by asking for what is expected.

One rule: containers are opened only by code that expects them there. The unpacker itself may
build none (its limits for arrays and maps are 0), so a body can nest no deeper than its class
says, and a list that declares more than it holds allocates nothing: elements are taken one by one
until they or the bytes end.

A body is one array: the fields of its class, in order. A field is a scalar or a *column*, a flat
array of scalars; many-requests are parallel columns, so no object is made per record and the
loops run in C. `Body` classes are dataclasses whose annotations carry the check of each field
(`fields`); the same checks run where a request is written and where it is read.

Growth: a request must have exactly the fields its version knows, since a field that is ignored
may change what was meant. A reply may have more at its end, which older clients skip.
"""

import sys
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Protocol, Self, get_type_hints

import msgpack

from shardnode.wire import limits
from shardnode.wire.errors import limit_exceeded, malformed

_PEER = "the peer that sent it breaks the protocol"


class Field(Protocol):
    """The check of one field; `fields` has them."""

    @property
    def about(self) -> str:
        """The type in words, as the documentation writes it."""

    @property
    def column_limit(self) -> str:
        """The name in `limits` of how many elements a column may have; empty for a scalar."""

    def take(self, name: str, value: Any, size_max: int) -> Any:
        """What the attribute becomes; raises an `InvalidRequest`. Nothing in `value` is longer
        than `size_max` bytes: where that is no more than the limit, lengths need no look."""


class Part(NamedTuple):
    """One field of a body class."""

    name: str
    field: Field


_PARTS: dict[type["Body"], tuple[Part, ...]] = {}


def parts_of(cls: type["Body"]) -> tuple[Part, ...]:
    """The fields of a body class in the order of the wire, from its annotations."""
    if cls not in _PARTS:
        hints = get_type_hints(cls, include_extras=True)
        _PARTS[cls] = tuple(Part(f.name, hints[f.name].__metadata__[0]) for f in fields(cls))
    return _PARTS[cls]


@dataclass(frozen=True, slots=True)
class Body:
    """What all bodies can do."""

    grows: ClassVar[bool] = False
    """Whether fields of a newer version may follow the known ones."""

    def validate(self) -> None:
        """Checks between fields; raises an `InvalidRequest`."""

    def encode(self) -> bytes:
        """The body as bytes. A value that a receiver would refuse raises the same error here."""
        values = [
            field.take(name, getattr(self, name), sys.maxsize)
            for name, field in parts_of(type(self))
        ]
        self.validate()
        packed: bytes = msgpack.packb(values)
        if len(packed) > limits.body_bytes_max:
            raise limit_exceeded(
                "body_bytes_max", limits.body_bytes_max, len(packed), "send it in several parts"
            )
        return packed

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Self:
        """The value of a body; raises an `InvalidRequest` for anything but a valid one."""
        reader = BodyReader(body)
        parts = parts_of(cls)
        count = reader.array_size(cls.__name__)
        further = count - len(parts)
        if further and not (cls.grows and further > 0):
            raise malformed(f"{len(parts)} fields of {cls.__name__}", f"{count}", _PEER)
        values = []
        for name, field in parts:
            if field.column_limit:
                value = reader.column(name, field.column_limit)
            else:
                value = reader.scalar(name)
            values.append(field.take(name, value, len(body)))
        reader.skip(further)
        reader.end()
        decoded = cls(*values)
        decoded.validate()
        return decoded


@dataclass(frozen=True, slots=True)
class Answer(Body):
    """What all replies share: they may grow."""

    grows: ClassVar[bool] = True


class BodyReader:
    """Takes the values of one body in order; whatever is wrong is an `InvalidRequest`."""

    def __init__(self, body: bytes | memoryview) -> None:
        size = len(body)
        if size > limits.body_bytes_max:
            raise limit_exceeded(
                "body_bytes_max", limits.body_bytes_max, size, "send it as several requests"
            )
        self._size = size
        self._unpacker = msgpack.Unpacker(
            max_buffer_size=size or 1,
            max_str_len=limits.error_message_bytes_max,  # no text may be longer
            max_bin_len=size,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
        self._unpacker.feed(body)

    def scalar(self, name: str) -> Any:
        """The next value, which cannot be a container with anything in it."""
        try:
            return self._unpacker.unpack()
        except (ValueError, msgpack.UnpackException) as problem:
            raise self._not_readable(name, problem) from problem

    def array_size(self, name: str) -> int:
        """Open an array. Its size is only a claim until that many values have been taken."""
        try:
            return int(self._unpacker.read_array_header())
        except (ValueError, msgpack.UnpackException) as problem:
            raise self._not_readable(f"{name} as an array", problem) from problem

    def map_size(self, name: str) -> int:
        """Open a map, to be taken as that many pairs of scalars."""
        try:
            return int(self._unpacker.read_map_header())
        except (ValueError, msgpack.UnpackException) as problem:
            raise self._not_readable(f"{name} as a map", problem) from problem

    def column(self, name: str, limit_name: str) -> list[Any]:
        """A flat array of scalars, as many as a limit allows."""
        count = self.array_size(name)
        count_max: int = getattr(limits, limit_name)
        if count > count_max:
            raise limit_exceeded(limit_name, count_max, count, f"send fewer {name} at once")
        try:
            values = list(islice(self._unpacker, count))
        except (ValueError, msgpack.UnpackException) as problem:
            raise self._not_readable(f"{name} as a flat array", problem) from problem
        if len(values) != count:
            raise malformed(f"{count} {name}", f"the end of the body after {len(values)}", _PEER)
        return values

    def skip(self, count: int) -> None:
        """Pass over values of a newer version, building none of them."""
        try:
            for _ in range(count):
                self._unpacker.skip()
        except (ValueError, msgpack.UnpackException) as problem:
            raise self._not_readable("further fields", problem) from problem

    def end(self) -> None:
        """Nothing may follow."""
        rest = self._size - self._unpacker.tell()
        if rest:
            raise malformed("the end of the body", f"{rest} more bytes", _PEER)

    def _not_readable(self, expected: str, problem: Exception) -> Exception:
        if isinstance(problem, msgpack.OutOfData):
            return malformed(expected, f"the end of a body of {self._size} bytes", _PEER)
        # Not repr: that of a decoding error repeats all the bytes it failed on.
        found = f"msgpack that does not fit ({type(problem).__name__}: {problem})"
        return malformed(expected, found, _PEER)
