"""Where a scan or a watch over all shards goes on, as text that a caller can keep.

One rule: a cursor is opaque to callers and complete in itself. It has a position for every shard
that is not finished, and the epoch of the table by which those shards owned their slots.

A watch position is one number: the log index in the upper 48 bits and, in the lower 16, how many
changes of that entry come before, since one entry can change many keys. A watch after position p
begins with the first change whose position is greater than p; 0 is before every change.
"""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from shardnode.wire import limits
from shardnode.wire.codec import Body
from shardnode.wire.errors import limit_exceeded, malformed
from shardnode.wire.fields import BytesColumn, IntColumn, Number

_PLACE_BITS = 16
PLACE_MAX = (1 << _PLACE_BITS) - 1
INDEX_MAX = (1 << 64 - _PLACE_BITS) - 1

_ShardColumn = Annotated[Sequence[int], IntColumn("shards_max", "shard_id_max")]


def position_of(index: int, place: int = PLACE_MAX) -> int:
    """The position of a change: its log index and its place within the entry, counted from 0.
    Without a place: behind the whole entry."""
    assert 0 <= index <= INDEX_MAX, "a log index has 48 bits"
    assert 0 <= place <= PLACE_MAX, "an entry changes fewer keys than 16 bits can count"
    return index << _PLACE_BITS | place


def split_position(position: int) -> tuple[int, int]:
    """(log index, place within its entry)."""
    return position >> _PLACE_BITS, position & PLACE_MAX


@dataclass(frozen=True, slots=True)
class _Cursor(Body):
    """What both cursors share: their form as text."""

    letter: ClassVar[str]
    """Begins the text, so that neither cursor is taken for the other."""

    def to_text(self) -> str:
        """Letters, digits, `-` and `_`: safe in a URL and on a command line."""
        return self.letter + urlsafe_b64encode(self.encode()).rstrip(b"=").decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The cursor in a text; raises an `InvalidRequest` if it holds none of this kind."""
        if len(text) > limits.cursor_bytes_max:
            raise limit_exceeded(
                "cursor_bytes_max", limits.cursor_bytes_max, len(text), "pass a cursor unchanged"
            )
        encoded = text.removeprefix(cls.letter)
        if encoded == text:
            raise malformed(
                f"a {cls.__name__}, which begins with {cls.letter!r}",
                repr(text[:1]),
                "pass the cursor that this kind of request gave",
            )
        try:
            body = b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        except ValueError as problem:
            raise malformed("a cursor in base64", str(problem), "pass a cursor unchanged") from None
        return cls.decode(body)


@dataclass(frozen=True, slots=True)
class ScanCursor(_Cursor):
    """Where a scan goes on: for each unfinished shard the key it goes on after."""

    letter = "s"

    epoch: Number
    shards: _ShardColumn
    afters: Annotated[Sequence[bytes], BytesColumn("key_bytes_max", "shards_max")]
    """The empty string where nothing has been read yet: no key is empty."""

    def validate(self) -> None:
        _check_shards(self.shards, self.afters)

    def positions(self) -> Mapping[int, bytes]:
        """Shard → the key to go on after."""
        return dict(zip(self.shards, self.afters, strict=True))


@dataclass(frozen=True, slots=True)
class WatchCursor(_Cursor):
    """Where a watch goes on: for each shard the position it goes on after."""

    letter = "w"

    epoch: Number
    shards: _ShardColumn
    afters: Annotated[Sequence[int], IntColumn("shards_max")]

    def validate(self) -> None:
        _check_shards(self.shards, self.afters)

    def positions(self) -> Mapping[int, int]:
        """Shard → the position to go on after."""
        return dict(zip(self.shards, self.afters, strict=True))


def _check_shards(shards: Sequence[int], afters: Sequence[object]) -> None:
    if len(shards) != len(afters) or len(set(shards)) != len(shards):
        raise malformed(
            "one position for each shard",
            f"{len(set(shards))} shards and {len(afters)} positions",
            "pass a cursor unchanged",
        )
