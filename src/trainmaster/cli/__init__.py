"""The command line: one file a command, loaded when it is called."""

from __future__ import annotations

import os
import sys


def begin() -> None:
    """Run `tm`. An interrupt shows no traceback, even while the code that reports one is imported, or after the status is known."""
    if sys.platform != "linux":
        print(
            "error: trainmaster needs Linux, also to submit to clusters\n  use it in a container or on a machine with Linux",
            file=sys.stderr,
        )
        sys.exit(2)
    _prefer_installed()
    try:
        from trainmaster.cli.main import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _prefer_installed() -> None:
    """Look for packages in PYTHONPATH last: it is meant for the user's programs, and may hold other versions of packages that we need."""
    theirs = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    last = [path for path in sys.path if os.path.abspath(path) in theirs]
    sys.path[:] = [path for path in sys.path if path not in last] + last
