"""`shardnode doctor`: is this machine fit for a node, and the directory sound at a quick look?

The one rule: it takes the flags of `start`, and judges what that start would meet. Exit code 0
means that nothing must be done, 7 that something must.
"""

from __future__ import annotations

from typing import Any

import click

from shardnode.cli import output
from shardnode.cli.config import load, node_options
from shardnode.cli.errors import EXIT_UNHEALTHY
from shardnode.cli.options import CONTEXT, json_option, version_option, wants_json

_WIDTH = 10


@click.command("doctor", context_settings=CONTEXT)
@version_option
@node_options
@json_option
def command(config_file: str | None, **flags: Any) -> int:
    """Look at the machine and the data directory that a start with these flags would use.

    Disk speed and whether fsync is honest, clock, limits, ports, processors, libraries, Java for
    Spark, the directory at a quick look. Exit code 0: nothing must be done. 7: something must, and
    the lines say what.
    """
    from dataclasses import asdict

    from shardnode.offline.doctor import examine

    findings = []
    for advice in examine(load(config_file, flags).config):
        findings.append(advice)
        if not wants_json():
            word = "PROBLEM" if advice.state == "problem" else advice.state
            output.write_line(f"{word:8} {advice.about:{_WIDTH}} {advice.found}".encode())
            if advice.do:
                output.write_line(f"{'':8} {'':{_WIDTH}} → {advice.do}".encode())
            output.flush()
    healthy = all(advice.state != "problem" for advice in findings)
    if wants_json():
        output.write_json({"healthy": healthy, "findings": list(map(asdict, findings))})
    return 0 if healthy else EXIT_UNHEALTHY
