"""Requests are cut by rows alone, however they arrive."""

from __future__ import annotations

from random import Random

import pytest

from shardnode.pipeline.write_chunks import Buffer, Columns, full_cuts


def chunks_of(values: list[bytes], pieces: list[int], rows_max: int, bytes_max: int) -> list[bytes]:
    """The chunks of these values, when they arrive in pieces of these sizes."""
    buffer, found, at = Buffer(rows_max, bytes_max), list[Columns](), 0
    for piece in pieces:
        some = values[at : at + piece]
        buffer.add([some, some], [len(value) for value in some])
        found += buffer.full()
        at += piece
    found += buffer.rest()
    assert buffer.bytes == 0
    assert all(chunk[0] == chunk[1] for chunk in found)
    return [b"|".join(chunk[0]) for chunk in found]


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_cut_at_the_same_places_however_they_arrive(seed: int) -> None:
    rng = Random(seed)
    values = [b"v" * rng.choice([0, 1, 5, 30, 250]) for _ in range(rng.randint(1, 300))]
    rows_max, bytes_max = rng.randint(1, 40), rng.randint(1, 400)
    whole = chunks_of(values, [len(values)], rows_max, bytes_max)
    one_by_one = chunks_of(values, [1] * len(values), rows_max, bytes_max)
    pieces: list[int] = []
    while sum(pieces) < len(values):
        pieces.append(min(rng.randint(1, 60), len(values) - sum(pieces)))
    assert whole == one_by_one == chunks_of(values, pieces, rows_max, bytes_max)
    assert b"|".join(whole) == b"|".join(values)


@pytest.mark.parametrize("seed", range(20))
def test_a_chunk_keeps_the_limits_unless_it_is_one_row(seed: int) -> None:
    rng = Random(seed)
    sizes = [rng.choice([0, 1, 10, 100, 1000]) for _ in range(200)]
    cuts = list(full_cuts(sizes, 20, 500))
    assert [cut.start for cut in cuts[1:]] == [cut.stop for cut in cuts[:-1]]
    for cut in cuts:
        rows = sizes[cut]
        assert len(rows) <= 20
        assert sum(rows) <= 500 or len(rows) == 1
