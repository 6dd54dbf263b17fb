"""Which worker runs on which CPU.

The one rule: only CPUs that this process itself may use are given out, because a container or
`taskset` has already decided what is ours. Where the system has no pinning (macOS), nobody is
pinned and everybody is told so by a core of None.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardnode.wire.errors import InvalidRequest


def allowed_cpus() -> tuple[int, ...] | None:
    """The CPUs of this process's own mask; None where there is no pinning."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return None


def assign_cores(
    shards: Sequence[int],
    wanted: tuple[int, ...] | str,
    allowed: tuple[int, ...] | None,
    first: int = 0,
) -> dict[int, int | None]:
    """Shard → its core, round robin. `wanted` is the setting `node.cpus`: all, none, or a list.

    Nodes that share a machine begin at different places (`first`), so that the members of one
    group, which wait for each other, do not wait for the same core.
    """
    if wanted == "none" or not allowed:
        return dict.fromkeys(shards)
    cpus = allowed
    if not isinstance(wanted, str):
        if outside := sorted(set(wanted) - set(allowed)):
            raise InvalidRequest(
                f"node.cpus: expected CPUs that this process may use ({_listed(allowed)}), found"
                f" {_listed(outside)}; choose among those, or start it with a wider mask"
            )
        cpus = wanted
    return {shard: cpus[(first + place) % len(cpus)] for place, shard in enumerate(shards)}


def is_pinned(pid: int, core: int) -> bool:
    """Whether a process really runs on that core alone."""
    if not hasattr(os, "sched_getaffinity"):
        return False
    try:
        return os.sched_getaffinity(pid) == {core}
    except ProcessLookupError:
        return False


def _listed(cpus: Sequence[int]) -> str:
    return ", ".join(map(str, cpus))
