"""A process that takes a data directory when told to, says how it went, and holds on to it.

    python -m tests.node.holder DIRECTORY

It says `ready`, waits for a line, tries, says `held` or the error's message in one line, and keeps
the directory until its input ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shardnode.node.identity import DirectoryInUse, Identity, open_directory


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(path: Path) -> None:
    say("ready")
    sys.stdin.readline()
    try:
        with open_directory(path, Identity("main", 1, 2, 7)):
            say("held")
            sys.stdin.read()
    except DirectoryInUse as error:
        say(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
