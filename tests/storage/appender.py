"""A process to be killed: appends to a log for ever, and says which index is durable.

    python -m tests.storage.appender <directory>

Not a test; `test_real_files.py` starts it. A line is written only after the fsync that it speaks
of, as an acknowledgement would be.
"""

from __future__ import annotations

import os
import sys

from shardnode.storage.files import RealFiles
from tests.storage.kit import open_log, payload_size, record


def main(directory: str) -> None:
    log = open_log(RealFiles(directory))
    while True:
        first = log.last_index + 1
        for index in range(first, first + first % 4 + 1):
            log.append_batch([record(index, size=payload_size(index))])
        log.sync()
        os.write(1, f"{log.durable_index}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
