"""Rates and ratios: how benchmarks report, and when they fail.

The one rule: a figure stands beside its peer's from the same run, and a target is a ratio.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class Missing(Exception):
    """A peer that cannot be measured here."""


@dataclass
class Table:
    """What has been measured."""

    failed: bool = False
    rows: list[str] = field(default_factory=list)

    def row(self, what: str, ours: float, unit: str, **rest: object) -> None:
        """One figure without a peer."""
        extra = "".join(f", {name} {value}" for name, value in rest.items())
        print(f"{what}: {ours:,.0f} {unit}{extra}", flush=True)

    def ratio(self, what: str, ours: float, peer: float, target: float, whose: str) -> None:
        """Ours against a peer's, and whether that is enough."""
        ratio = ours / peer
        verdict = "ok" if ratio >= target else "BELOW TARGET"
        self.failed |= ratio < target
        print(
            f"{what}: {ours:,.0f}/s, {whose} {peer:,.0f}/s, ratio {ratio:.2f} "
            f"(at least {target}) {verdict}",
            flush=True,
        )

    def skipped(self, what: str, why: object) -> None:
        """A comparison that this machine does not allow."""
        print(f"{what}: skipped, {why}", flush=True)
