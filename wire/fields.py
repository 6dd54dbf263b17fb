"""The types a body is made of, each with its check.

One rule: a check names the field, what was expected and what was found, and it looks at a column
only with functions that loop in C.

The names at the end (`Key`, `Values`, …) annotate the dataclasses of `requests` and `replies`.
Types are exact: neither a bool for an int, nor text for bytes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import NoneType
from typing import Annotated, Any

from shardnode.wire import limits
from shardnode.wire.errors import InvalidRequest, limit_exceeded, malformed
from shardnode.wire.kinds import ChangeKind, Compare, Consistency, Operation

U64_MAX = (1 << 64) - 1


def _limit(name: str) -> int:
    """A limit by its name; the empty name stands for what 64 bits hold."""
    return getattr(limits, name) if name else U64_MAX


def _wrong_type(name: str, about: str, types: set[type]) -> InvalidRequest:
    found = ", ".join(sorted(type_.__name__ for type_ in types))
    return malformed(f"{name} as {about}", found, "send exactly these types")


def _wrong_value(name: str, about: str, found: object) -> InvalidRequest:
    return malformed(f"{name} as {about}", f"{found!r}", "send a value in that range")


def _too_large(name: str, limit_name: str, found: int) -> InvalidRequest:
    return limit_exceeded(limit_name, _limit(limit_name), found, f"send smaller {name}")


@dataclass(frozen=True, slots=True)
class Bytes:
    """A binary string within a length limit."""

    limit: str
    length_min: int = 0
    optional: bool = False

    column_limit = ""

    @property
    def about(self) -> str:
        return f"bin {self.length_min}..{self.limit}" + " or nil" * self.optional

    def take(self, name: str, value: Any, size_max: int) -> Any:
        if value is None and self.optional:
            return None
        if type(value) is not bytes:
            raise _wrong_type(name, self.about, {type(value)})
        if size_max > _limit(self.limit) < len(value):
            raise _too_large(name, self.limit, len(value))
        if len(value) < self.length_min:
            raise _wrong_value(name, self.about, value)
        return value


@dataclass(frozen=True, slots=True)
class BytesColumn:
    """Binary strings within a length limit. Distinct where each may be written only once."""

    limit: str
    column_limit: str
    length_min: int = 0
    optional: bool = False
    distinct: bool = False

    def __post_init__(self) -> None:
        assert not (self.optional and self.length_min), "filter() below drops empty strings too"

    @property
    def about(self) -> str:
        item = f"bin {self.length_min}..{self.limit}" + " or nil" * self.optional
        return f"array of {'distinct ' * self.distinct}{item}, at most {self.column_limit}"

    def take(self, name: str, value: Any, size_max: int) -> Any:
        _check_column(name, self.about, self.column_limit, value)
        types = set(map(type, value))
        present = value
        if types - {bytes}:
            if not (self.optional and types <= {bytes, NoneType}):
                raise _wrong_type(name, self.about, types)
            present = list(filter(None, value))
        if size_max > _limit(self.limit):
            longest = max(map(len, present), default=0)
            if longest > _limit(self.limit):
                raise _too_large(name, self.limit, longest)
        if self.length_min and not all(present):
            raise _wrong_value(name, self.about, b"")
        if self.distinct and len(set(value)) != len(value):
            raise malformed(
                f"{name} that are distinct",
                "one of them twice",
                "send the second operation on a key in a later request",
            )
        return value


@dataclass(frozen=True, slots=True)
class Int:
    """A whole number from `low` to a limit, or to what 64 bits hold."""

    limit: str = ""
    low: int = 0
    optional: bool = False

    column_limit = ""

    @property
    def about(self) -> str:
        return f"int {self.low}..{self.limit or '2^64-1'}" + " or nil" * self.optional

    def take(self, name: str, value: Any, _size_max: int) -> Any:
        if value is None and self.optional:
            return None
        if type(value) is not int:
            raise _wrong_type(name, self.about, {type(value)})
        if value > _limit(self.limit):
            raise _too_large(name, self.limit, value)
        if value < self.low:
            raise _wrong_value(name, self.about, value)
        return value


@dataclass(frozen=True, slots=True)
class IntColumn:
    """Whole numbers from `low` to a limit, or to what 64 bits hold."""

    column_limit: str
    limit: str = ""
    low: int = 0
    optional: bool = False

    @property
    def about(self) -> str:
        item = f"int {self.low}..{self.limit or '2^64-1'}" + " or nil" * self.optional
        return f"array of {item}, at most {self.column_limit}"

    def take(self, name: str, value: Any, _size_max: int) -> Any:
        _check_column(name, self.about, self.column_limit, value)
        types = set(map(type, value))
        present = value
        if types - {int}:
            if not (self.optional and types <= {int, NoneType}):
                raise _wrong_type(name, self.about, types)
            present = [number for number in value if number is not None]
        if present:
            if max(present) > _limit(self.limit):
                raise _too_large(name, self.limit, max(present))
            if min(present) < self.low:
                raise _wrong_value(name, self.about, min(present))
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A short UTF-8 string."""

    limit: str

    column_limit = ""

    @property
    def about(self) -> str:
        return f"str 0..{self.limit}"

    def take(self, name: str, value: Any, _size_max: int) -> Any:
        _check_texts(name, self.about, self.limit, [value])
        return value


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Short UTF-8 strings."""

    limit: str
    column_limit: str

    @property
    def about(self) -> str:
        return f"array of str 0..{self.limit}, at most {self.column_limit}"

    def take(self, name: str, value: Any, _size_max: int) -> Any:
        _check_column(name, self.about, self.column_limit, value)
        _check_texts(name, self.about, self.limit, value)
        return value


@dataclass(frozen=True, slots=True)
class Name:
    """A name of ours, or a stream's and a topic's with `/` between: safe as a file name."""

    parts: int = 1
    optional: bool = False

    column_limit = ""

    @property
    def about(self) -> str:
        return ("name" if self.parts == 1 else "stream/topic") + " or nil" * self.optional

    def take(self, name: str, value: Any, _size_max: int) -> Any:
        if value is None and self.optional:
            return None
        if type(value) is not str:
            raise _wrong_type(name, self.about, {type(value)})
        pieces = value.split("/", self.parts)
        longest = max(map(len, pieces))
        if longest > limits.name_bytes_max:
            raise _too_large(name, "name_bytes_max", longest)
        if len(pieces) != self.parts or not all(map(_NAME.fullmatch, pieces)):
            raise _wrong_value(name, f"{self.about} of letters, digits, '.', '_' and '-'", value)
        return value


_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Bool:
    """True or false."""

    column_limit = ""
    about = "bool"

    def take(self, name: str, value: Any, _size_max: int) -> Any:
        if type(value) is not bool:
            raise _wrong_type(name, self.about, {type(value)})
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """A member of an enumeration, as its number."""

    of: type[IntEnum]

    column_limit = ""

    @property
    def about(self) -> str:
        return f"int, one of {self.of.__name__}"

    def take(self, name: str, value: Any, _size_max: int) -> Any:
        if type(value) not in (int, self.of):
            raise _wrong_type(name, self.about, {type(value)})
        try:
            return self.of(value)
        except ValueError as problem:
            raise _wrong_value(name, self.about, value) from problem


@dataclass(frozen=True, slots=True)
class Codes:
    """Members of an enumeration as a binary string with one byte each: a column without objects."""

    of: type[IntEnum]
    count_limit: str

    column_limit = ""

    @property
    def about(self) -> str:
        return f"bin 0..{self.count_limit}, each byte one of {self.of.__name__}"

    def take(self, name: str, value: Any, _size_max: int) -> Any:
        if type(value) is not bytes:
            raise _wrong_type(name, self.about, {type(value)})
        if len(value) > _limit(self.count_limit):
            raise _too_large(name, self.count_limit, len(value))
        unknown = set(value).difference(self.of)
        if unknown:
            raise _wrong_value(name, self.about, sorted(unknown))
        return value


@dataclass(frozen=True, slots=True)
class OperandColumn:
    """What comparisons compare with: versions as int, values as bin."""

    column_limit: str

    @property
    def about(self) -> str:
        return f"array of int or bin 0..value_bytes_max, at most {self.column_limit}"

    def take(self, name: str, value: Any, size_max: int) -> Any:
        _check_column(name, self.about, self.column_limit, value)
        for operand in value:
            if type(operand) is bytes:
                Bytes("value_bytes_max").take(name, operand, size_max)
            else:
                Int().take(name, operand, size_max)
        return value


def _check_column(name: str, about: str, column_limit: str, value: Any) -> None:
    if type(value) not in (list, tuple):
        raise _wrong_type(name, about, {type(value)})
    if len(value) > _limit(column_limit):
        raise limit_exceeded(
            column_limit, _limit(column_limit), len(value), f"send fewer {name} at once"
        )


def _check_texts(name: str, about: str, limit: str, texts: Sequence[Any]) -> None:
    types = set(map(type, texts))
    if types - {str}:
        raise _wrong_type(name, about, types)
    try:
        longest = max(map(len, map(str.encode, texts)), default=0)
    except UnicodeEncodeError as problem:
        raise _wrong_value(name, about, problem.object) from problem
    if longest > _limit(limit):
        raise _too_large(name, limit, longest)


Flag = Annotated[bool, Bool()]
Number = Annotated[int, Int()]
OptionalNumber = Annotated[int | None, Int(optional=True)]
TtlMs = Annotated[int, Int("ttl_ms_max")]
Level = Annotated[Consistency, Choice(Consistency)]

OneName = Annotated[str, Name()]
TopicName = Annotated[str, Name(parts=2)]
Namespace = Annotated[int, Int("namespace_max")]
Namespaces = Annotated[Sequence[int], IntColumn("group_partitions_max", "namespace_max")]

Key = Annotated[bytes, Bytes("key_bytes_max", length_min=limits.key_bytes_min)]
Bound = Annotated[bytes | None, Bytes("key_bytes_max", optional=True)]
Prefix = Annotated[bytes, Bytes("key_bytes_max")]
Value = Annotated[bytes, Bytes("value_bytes_max")]
OptionalValue = Annotated[bytes | None, Bytes("value_bytes_max", optional=True)]

Keys = Annotated[
    Sequence[bytes],
    BytesColumn("key_bytes_max", "batch_keys_max", length_min=limits.key_bytes_min),
]
DistinctKeys = Annotated[
    Sequence[bytes],
    BytesColumn("key_bytes_max", "batch_keys_max", limits.key_bytes_min, distinct=True),
]
Values = Annotated[Sequence[bytes], BytesColumn("value_bytes_max", "batch_keys_max")]
OptionalValues = Annotated[
    Sequence[bytes | None], BytesColumn("value_bytes_max", "batch_keys_max", optional=True)
]
Numbers = Annotated[Sequence[int], IntColumn("batch_keys_max")]
ChangeKinds = Annotated[bytes, Codes(ChangeKind, "batch_keys_max")]

CompareKinds = Annotated[bytes, Codes(Compare, "transact_operations_max")]
Operands = Annotated[Sequence[int | bytes], OperandColumn("transact_operations_max")]
OperationKinds = Annotated[bytes, Codes(Operation, "transact_operations_max")]
