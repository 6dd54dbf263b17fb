"""The picture of `stats`: for each shard a panel of its keys and one of its values. Pure.

It is drawn by hand as SVG, which every browser shows and no library is needed for. All panels of
one column have the same axes, so that shards are compared by looking.

One rule: what is drawn depends on the numbers alone, so two runs over one cut give one picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from shardnode.pipeline.jobs import shown_bytes
from shardnode.pipeline.jobs_sizes import ShardSizes, high_of, low_of, together

WIDTH, HEIGHT = 360, 130
"""Of a panel."""

MARGIN, TOP, LABELS = 56, 64, 34
BAR = 84
"""How high the highest bar is."""

COLOURS = {"keys": "#3b6ea5", "values": "#b5651d"}


def picture(shards: Sequence[ShardSizes], title: str) -> str:
    """The whole document."""
    panels = {
        "keys": [each.keys.counts for each in shards],
        "values": [each.values.counts for each in shards],
    }
    width = 2 * (MARGIN + WIDTH) + MARGIN
    height = TOP + len(shards) * (HEIGHT + LABELS) + LABELS // 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(MARGIN, 24, title, size=15),
    ]
    for column, (name, histograms) in enumerate(panels.items()):
        left = MARGIN + column * (WIDTH + MARGIN)
        lines.append(_text(left, 46, f"size of {name}, rows in each power of two", size=12))
        highest = max((count for each in histograms for count in each.values()), default=0)
        buckets = list(together(histograms))
        for place, (shard, counts) in enumerate(zip(shards, histograms, strict=True)):
            top = TOP + place * (HEIGHT + LABELS)
            lines += _panel(left, top, counts, buckets, highest, COLOURS[name])
            sizes = shard.keys if name == "keys" else shard.values
            told = f"shard {shard.shard}: {shard.rows} rows, p50 {sizes.p50} B, max {sizes.max} B"
            lines.append(_text(left, top + 12, told))
    return "\n".join([*lines, "</svg>", ""])


def _panel(
    left: float,
    top: float,
    counts: Mapping[int, int],
    buckets: Sequence[int],
    highest: int,
    colour: str,
) -> Iterator[str]:
    floor = top + HEIGHT
    step = WIDTH / max(len(buckets), 1)
    for place, bucket in enumerate(buckets):
        count = counts.get(bucket, 0)
        tall = BAR * count / highest if highest else 0.0
        if count:
            tall = max(tall, 1.0)  # a few rows among millions are still rows
        x = left + place * step
        yield (
            f'<rect x="{x + 1:.1f}" y="{floor - tall:.1f}" width="{step - 2:.1f}"'
            f' height="{tall:.1f}" fill="{colour}"><title>{_range(bucket)}:'
            f" {count}</title></rect>"
        )
        if place % max(1, -(-len(buckets) // 8)) == 0:
            yield _text(x, floor + 14, shown_bytes(low_of(bucket)), size=9)
    yield (
        f'<line x1="{left}" y1="{floor}" x2="{left + WIDTH}" y2="{floor}" stroke="#444"'
        ' stroke-width="1"/>'
    )
    yield _text(left - 6, floor - BAR + 4, str(highest), size=9, anchor="end")
    yield _text(left - 6, floor, "0", size=9, anchor="end")


def _range(bucket: int) -> str:
    return f"{low_of(bucket)} to {high_of(bucket) - 1} B"


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
        f' fill="#222">{escape(text)}</text>'
    )
