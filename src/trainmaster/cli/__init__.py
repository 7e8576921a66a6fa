"""The command line: one file a command, loaded when it is called."""

from __future__ import annotations


def begin() -> None:
    """`tm`. What has to be imported before an interrupt can be told is imported in here: it has no traceback then."""
    try:
        from trainmaster.cli.main import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    main()
