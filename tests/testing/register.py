"""Histories of a store that is right by construction: each operation happens at one moment between
its begin and its end, and those with an unknown outcome later, or never."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from shardnode.testing.history import Operation

KEYS = (b"x", b"y")


class Register:
    """Two keys, one log."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._index = 0
        self._data: dict[bytes, tuple[bytes, int]] = {}

    def do(self, operation: Operation) -> None:
        """Let it happen now, and write down what its caller will be told."""
        value, version = self._data.get(operation.key, (None, 0))
        if operation.kind == "get":
            operation.seen, operation.seen_version = value, version
            return
        self._index += self._random.randint(1, 2)  # elections and sessions have entries too
        if operation.kind == "cas" and operation.expected_version != version:
            operation.status, operation.seen_version = "conflict", version
            return
        if operation.kind == "delete":
            self._data.pop(operation.key, None)
            if self._random.random() < 0.5:
                operation.existed = version > 0
                return
        else:
            assert operation.value is not None
            self._data[operation.key] = operation.value, self._index
        if operation.kind in ("swap", "delete"):
            operation.seen_version = version
            operation.seen = value if self._random.random() < 0.5 else None
        operation.version = self._index

    def guess(self, key: bytes) -> tuple[bytes | None, int]:
        """What a caller may have read before: the present, or something older."""
        if self._random.random() < 0.6:
            return self._data.get(key, (None, 0))
        return None, 0


def simulate(seed: int, processes: int, rounds: int) -> list[Operation]:
    """Processes that each do one operation after another, at random times."""
    random = Random(seed)
    register = Register(random)
    history: list[Operation] = []
    moments: list[tuple[int, int, Operation]] = []
    for process in range(processes):
        time = random.randint(0, 20)
        for number in range(rounds):
            kind = random.choice(("put", "get", "cas", "swap", "delete"))
            operation = Operation(process, kind, random.choice(KEYS), status="ok")
            if kind in ("put", "cas", "swap"):
                operation.value = b"%d-%d" % (process, number)
            operation.invoked_ns = time
            operation.returned_ns = time + random.randint(2, 40)
            moment = random.randint(time + 1, operation.returned_ns - 1)
            if random.random() < 0.15:
                operation.status = random.choice(("unknown", "failed"))
                moment = random.randint(time + 1, time + 200)
            history.append(operation)
            if operation.status != "failed":
                moments.append((moment, len(moments), operation))
            time = operation.returned_ns + random.randint(1, 10)
    for _, _, operation in sorted(moments):
        if operation.kind == "cas":
            operation.expected, operation.expected_version = register.guess(operation.key)
        if operation.status == "ok":
            register.do(operation)
        elif random.random() < 0.5:
            register.do(operation)
            forget(operation)
    return history


def forget(operation: Operation) -> None:
    """Its caller was told nothing."""
    operation.status, operation.version = "unknown", None
    operation.seen, operation.seen_version, operation.existed = None, None, None


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Right histories of any size that is still quick to judge."""
    seed = draw(st.integers(0, 2**32))
    return simulate(seed, draw(st.integers(1, 6)), draw(st.integers(0, 25)))
