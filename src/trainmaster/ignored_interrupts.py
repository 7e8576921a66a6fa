"""Act on an interrupt whose exception Python can only ignore.

The exception of a signal may be raised where nothing can catch it: in a finalizer, or in the callback of a weak reference, as importlib
has one for the lock of each module. Python reports such an exception and goes on, so Ctrl-C in the middle of an import would be lost.
"""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Report = Callable[[sys.UnraisableHookArgs], object]

SOON = 0.01  # seconds, in which the callback is over


def repeat_ignored(rearm: Callable[[], None] = lambda: None) -> Report:
    """Send each interrupt again whose exception was ignored, as often as it is; return `sys.unraisablehook` as it was.

    `rearm` is called before it is sent. A timer of the process sends it: the command still forks, so a thread is not allowed.
    """
    report = sys.unraisablehook

    def on_ignored(ignored: sys.UnraisableHookArgs) -> None:
        if not isinstance(ignored.exc_value, KeyboardInterrupt):
            report(ignored)
            return
        number = getattr(ignored.exc_value, "number", signal.SIGINT)

        def send_again(alarm: int, frame: FrameType | None) -> None:
            rearm()
            signal.raise_signal(number)

        signal.signal(signal.SIGALRM, send_again)
        signal.setitimer(signal.ITIMER_REAL, SOON)

    sys.unraisablehook = on_ignored
    return report
