"""The router process: `python -P -m shardnode.router`, started by the supervisor.

The one rule: it lives no longer than its supervisor. It exits with 0 when told to stop, and at once
when its standard input ends.
"""

from __future__ import annotations

import os
import signal
import sys

import zmq
from setproctitle import setproctitle

from shardnode.router.channel import Channel, SupervisorGone
from shardnode.router.loop import Loop
from shardnode.router.settings import RouterSettings

EXIT_CANNOT_BIND = 3
EXIT_ORPHANED = 4


def main() -> int:
    """Runs one router; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's; the supervisor stops us
    channel = Channel()
    try:
        settings = RouterSettings.decode(channel.first())
    except SupervisorGone:
        return EXIT_ORPHANED
    setproctitle(settings.title)
    try:
        loop = Loop(settings, channel)
    except zmq.ZMQError as error:
        sys.stderr.write(f"router: cannot listen on {settings.listen}: {error}\n")
        return EXIT_CANNOT_BIND
    try:
        loop.run()
    except SupervisorGone:
        os._exit(EXIT_ORPHANED)  # nobody is left to wait for an orderly end
    loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
