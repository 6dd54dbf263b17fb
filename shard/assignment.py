"""Which member of a group is to read which partition. Pure.

The one rule: as few partitions move as fairness allows. Of each topic every member that reads it
has its share, which differs by one at most; who has more than its share gives up the rest, and
who has least in all is given first. Equal arguments give equal assignments on every replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence


def assign(
    partitions: Mapping[str, Sequence[int]],
    members: Mapping[str, Collection[str]],
    before: Mapping[int, str],
) -> dict[int, str]:
    """Partition → member, of topics → their partitions and members → their topics. `before`: who
    was to read what until now."""
    target: dict[int, str] = {}
    load: Counter[str] = Counter()
    for topic in sorted(partitions):
        readers = sorted(name for name, topics in members.items() if topic in topics)
        if readers:
            of_topic = _assign_topic(partitions[topic], readers, before, load)
            target |= of_topic
            load.update(of_topic.values())
    return target


def _assign_topic(
    partitions: Sequence[int], readers: Sequence[str], before: Mapping[int, str], load: Counter[str]
) -> dict[int, str]:
    kept: dict[str, list[int]] = {name: [] for name in readers}
    for partition in sorted(partitions):
        holder = before.get(partition)
        if holder in kept:
            kept[holder].append(partition)
    share, more = divmod(len(partitions), len(readers))
    # The shares that are larger by one go to who has most of this topic, so that least moves, and
    # among those to who has least of the others.
    order = sorted(readers, key=lambda name: (-min(len(kept[name]), share + 1), load[name], name))
    target: dict[int, str] = {}
    room: list[str] = []
    for place, name in enumerate(order):
        size = share + (place < more)
        target |= dict.fromkeys(kept[name][:size], name)
        room += [name] * (size - len(kept[name]))
    free = [partition for partition in sorted(partitions) if partition not in target]
    return target | dict(zip(free, room, strict=True))
