"""A master of nothing: takes an epoch of the log at argv[1] and appends until it is killed.

Each time a barrier is acknowledged it says so on stdout: the number of its line.
"""

from __future__ import annotations

import os
import sys

from log_lines import line, start_master

from trainmaster.log.storage import storage_for


def main() -> None:
    epoch, writer = start_master(storage_for(sys.argv[1]), segment_size=20_000)
    os.write(1, b"%d\n" % writer.last)
    while True:
        n = writer.last + 1
        writer.append([line(n, epoch, "a note " * 20), line(n + 1, epoch)], sync=False)
        writer.append([line(n + 2, epoch, "ä barrier")], sync=True)
        os.write(1, b"%d\n" % writer.last)


main()
