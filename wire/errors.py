"""What can go wrong, as types and as stable numbers.

    ShardnodeError                  1   something unexpected
    ├── Unavailable                 2   nobody who could answer was reached; also ConnectionError
    ├── DeadlineExceeded            3   time ran out before any effect; also TimeoutError
    ├── OutcomeUnknown              4   it may have had its effect, or may yet
    ├── Overloaded                  5   refused for now: .lag has reached .limit
    ├── Conflict                    6   a comparison failed, or it exists: .key, .version found
    ├── NotFound                    7   what was named is not there
    ├── InvalidRequest              8   the caller's mistake
    │   ├── MalformedFrame              not this protocol, or not well-formed
    │   │   └── UnsupportedVersion      spoken here: .version_min to .version_max
    │   └── LimitExceeded               .limit_name, .limit, .found
    ├── Denied                      9   not allowed for this user
    ├── SessionExpired             10   the session is gone, and with it the guard against repeats
    ├── Compacted                  11   history begins at .first_available
    ├── Corrupt                    12   damaged data, fenced
    ├── WrongShard                 13   internal: ask again with the table of .epoch
    └── NotLeader                  14   internal: ask the node .leader

One rule: `.code` names a class that has a number. The refinements of `InvalidRequest` keep its
code and number, so callers and exit codes need to know only the numbered list.

`WrongShard` and `NotLeader` pass between shards and the client library; callers never see them.
"""

import copy
from collections.abc import Mapping
from typing import ClassVar

from shardnode.wire import limits

Detail = int | str | bytes | bool | None


class ShardnodeError(Exception):
    """The root: what every error of ours can be asked.

    `succeeded` and `failed` are filled when a many-call failed in part: what is known to have
    happened, by key, and the error of each key for which it is not.
    """

    code: str = "shardnode_error"
    number: int = 1
    retryable: bool = False

    refinement: ClassVar[str] = ""
    """Tells classes of one number apart on the wire; a receiver that does not know it uses the
    class of the number."""

    detail_types: ClassVar[Mapping[str, type]] = {}
    """The attributes that travel, and the type each must have on arrival."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.succeeded: Mapping[bytes, object] = {}
        self.failed: Mapping[bytes, ShardnodeError] = {}


class Unavailable(ShardnodeError, ConnectionError):
    """Nobody who could answer was reached; it had no effect."""

    code = "unavailable"
    number = 2
    retryable = True


class DeadlineExceeded(ShardnodeError, TimeoutError):
    """Time ran out before it had any effect."""

    code = "deadline_exceeded"
    number = 3
    retryable = True


class OutcomeUnknown(ShardnodeError):
    """It may have had its effect, or may yet have it; only the caller can decide what to do."""

    code = "outcome_unknown"
    number = 4


class Overloaded(ShardnodeError):
    """Refused for now, because what is waiting has reached a limit; it had no effect."""

    code = "overloaded"
    number = 5
    retryable = True
    detail_types: ClassVar[Mapping[str, type]] = {"lag": int, "limit": int}

    def __init__(
        self, message: str = "", *, lag: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.lag = lag
        self.limit = limit


class Conflict(ShardnodeError):
    """A comparison failed, or what was to be created exists. `version` is the one found."""

    code = "conflict"
    number = 6
    detail_types: ClassVar[Mapping[str, type]] = {"key": bytes, "version": int}

    def __init__(
        self, message: str = "", *, key: bytes | None = None, version: int | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.version = version


class NotFound(ShardnodeError):
    """What was named is not there. (A missing key is an answer, not an error.)"""

    code = "not_found"
    number = 7


class InvalidRequest(ShardnodeError):
    """The caller's mistake: the same request will be refused again."""

    code = "invalid_request"
    number = 8


class MalformedFrame(InvalidRequest):
    """Frames or a body that are not this protocol, or not well-formed."""

    refinement = "malformed_frame"


class UnsupportedVersion(MalformedFrame):
    """A protocol version that is not spoken here."""

    refinement = "unsupported_version"
    detail_types: ClassVar[Mapping[str, type]] = {"version_min": int, "version_max": int}

    def __init__(
        self,
        message: str = "",
        *,
        version_min: int | None = None,
        version_max: int | None = None,
    ) -> None:
        super().__init__(message)
        self.version_min = version_min
        self.version_max = version_max


class LimitExceeded(InvalidRequest):
    """Something larger than a limit allows."""

    refinement = "limit_exceeded"
    detail_types: ClassVar[Mapping[str, type]] = {"limit_name": str, "limit": int, "found": int}

    def __init__(
        self,
        message: str = "",
        *,
        limit_name: str | None = None,
        limit: int | None = None,
        found: int | None = None,
    ) -> None:
        super().__init__(message)
        self.limit_name = limit_name
        self.limit = limit
        self.found = found


class Denied(ShardnodeError):
    """Not allowed for this user."""

    code = "denied"
    number = 9


class SessionExpired(ShardnodeError):
    """The session is unknown: whether earlier requests had an effect can no longer be proved."""

    code = "session_expired"
    number = 10


class Compacted(ShardnodeError):
    """The history asked for is gone; it begins at the log index `first_available`."""

    code = "compacted"
    number = 11
    detail_types: ClassVar[Mapping[str, type]] = {"first_available": int}

    def __init__(self, message: str = "", *, first_available: int | None = None) -> None:
        super().__init__(message)
        self.first_available = first_available


class Corrupt(ShardnodeError):
    """Damaged data; what holds it is fenced."""

    code = "corrupt"
    number = 12


class WrongShard(ShardnodeError):
    """Internal: the shard asked does not own the slot by the table of `epoch`; it had no effect."""

    code = "wrong_shard"
    number = 13
    retryable = True
    detail_types: ClassVar[Mapping[str, type]] = {"epoch": int}

    def __init__(self, message: str = "", *, epoch: int | None = None) -> None:
        super().__init__(message)
        self.epoch = epoch


class NotLeader(ShardnodeError):
    """Internal: the member asked does not lead its shard; `leader` is a node id, if known."""

    code = "not_leader"
    number = 14
    retryable = True
    detail_types: ClassVar[Mapping[str, type]] = {"leader": int}

    def __init__(self, message: str = "", *, leader: int | None = None) -> None:
        super().__init__(message)
        self.leader = leader


CODES: Mapping[int, type[ShardnodeError]] = {
    cls.number: cls
    for cls in (
        ShardnodeError,
        Unavailable,
        DeadlineExceeded,
        OutcomeUnknown,
        Overloaded,
        Conflict,
        NotFound,
        InvalidRequest,
        Denied,
        SessionExpired,
        Compacted,
        Corrupt,
        WrongShard,
        NotLeader,
    )
}
"""Number on the wire → class. Numbers are never reused; 0 means no error."""

REFINEMENTS: Mapping[tuple[int, str], type[ShardnodeError]] = {
    (cls.number, cls.refinement): cls for cls in (MalformedFrame, UnsupportedVersion, LimitExceeded)
}


def malformed(expected: str, found: str, remedy: str) -> MalformedFrame:
    """Something that cannot be decoded, said in the one form all decoders use."""
    return MalformedFrame(f"expected {expected}, found {found}; {remedy}")


def limit_exceeded(limit_name: str, limit: int, found: int, remedy: str) -> LimitExceeded:
    """Something too large, naming the limit as `limits` spells it."""
    return LimitExceeded(
        f"expected at most {limit} ({limit_name}), found {found}; {remedy}",
        limit_name=limit_name,
        limit=limit,
        found=found,
    )


def to_wire(error: ShardnodeError) -> tuple[int, str, str, bool, dict[str, Detail]]:
    """(number, code, message, retryable, details), cut to what a receiver accepts."""
    details: dict[str, Detail] = {
        name: value for name in error.detail_types if (value := getattr(error, name)) is not None
    }
    if error.refinement:
        details["refinement"] = error.refinement
    message = error.message.encode("utf-8", "replace")[: limits.error_message_bytes_max]
    return error.number, error.code, message.decode("utf-8", "ignore"), error.retryable, details


def from_wire(
    number: int, code: str, message: str, retryable: bool, details: Mapping[str, Detail]
) -> ShardnodeError:
    """The error that was sent. A number from a newer peer becomes a plain `ShardnodeError` that
    keeps the number, code and retryable flag it came with; unknown details are left out.
    """
    refined = REFINEMENTS.get((number, str(details.get("refinement", ""))))
    cls = refined or CODES.get(number)
    if cls is None:
        error = ShardnodeError(message)
        error.number, error.code, error.retryable = number, code, retryable
        return error
    error = cls(message)
    for name, type_ in cls.detail_types.items():
        if name in details:
            value = details[name]
            if type(value) is not type_:
                raise malformed(
                    f"detail {name!r} of {code} as {type_.__name__}",
                    type(value).__name__,
                    "the peer that sent this error breaks the protocol",
                )
            setattr(error, name, value)
    return error


def partial_failure(
    succeeded: Mapping[bytes, object], failed: Mapping[bytes, ShardnodeError]
) -> ShardnodeError:
    """One error to raise for a many-call that failed for some keys.

    Its class is that of the gravest failure: one whose outcome is unknown, else one that a retry
    cannot mend, else any. `failed` must not be empty.
    """
    assert failed, "a call without a failed key has not failed"
    gravest = min(
        failed.values(), key=lambda error: (not isinstance(error, OutcomeUnknown), error.retryable)
    )
    total = len(succeeded) + len(failed)
    error = copy.copy(gravest)
    error.message = f"{len(failed)} of {total} keys failed (see .failed): {gravest.message}"
    error.args = (error.message,)
    error.succeeded, error.failed = dict(succeeded), dict(failed)
    return error
