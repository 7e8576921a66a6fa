"""The command line: one file a command, loaded when it is called."""

from __future__ import annotations


def begin() -> None:
    """`tm`. An interrupt has no traceback: also while that is imported which tells of one, and after the status is known."""
    try:
        from trainmaster.cli.main import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
