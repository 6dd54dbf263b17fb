"""Messages that are gone before they were read: an error, or a warning and onwards.

One rule: what was lost is told exactly, as topic, partition and range, whichever the option
`failOnDataLoss` chooses; nothing is left out in silence.
"""

from __future__ import annotations

import logging

from shardnode.wire.errors import Compacted

log = logging.getLogger("shardnode.pipeline")


def lost(name: str, partition: int, start: int, end: int, first: int, *, fail: bool) -> None:
    """The messages from `start` to before `end` are gone; the first that is there is `first`."""
    text = (
        f"topic {name}, partition {partition}: the messages from offset {start} to {end - 1} are"
        f" gone, retention has deleted them; the first that is there has offset {first}"
    )
    if fail:
        raise Compacted(
            f"{text}. Begin there (startingOffsets), keep messages for longer (`shardnode topic"
            " alter --retention-time`), or set failOnDataLoss to false to go on without them",
            first_available=first,
        )
    log.warning("%s; going on there, as failOnDataLoss is false", text)
