"""The command line: one file a command, loaded when it is called."""

from __future__ import annotations


def begin() -> None:
    """Run `tm`. An interrupt shows no traceback, even while the code that reports one is imported, or after the status is known."""
    try:
        from trainmaster.cli.main import main

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
