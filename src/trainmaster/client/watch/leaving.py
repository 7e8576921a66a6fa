"""Leave a job whose command ends before it: the job goes on, or is killed.

A signal that asks for the command's end, a terminal that is closed and a pipe that nobody reads any more mean the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

KILLED_WITHIN = 60.0  # seconds that a job which ends with its command has for that; then the command ends before it


class Begun:
    """The job that a command has started or watches; "" before it has begun."""

    job = ""

    def note(self, job: str) -> None:
        self.job = job


@contextlib.contextmanager
def letting_go(detach: str = "leave") -> Iterator[Begun]:
    """Let go of the job that has begun, as `detach` says, where a signal ends the command, or nobody reads its output any more."""
    from trainmaster.core.errors import TrainmasterError
    from trainmaster.interrupts import interrupt, interrupting

    begun = Begun()
    with interrupting():
        try:
            try:
                yield begun
            except OSError as error:
                if isinstance(error, TrainmasterError) or not (number := _drop_unread()):
                    raise
                interrupt(number)
        except KeyboardInterrupt as end:
            if begun.job:
                _let_go(begun.job, getattr(end, "number", signal.SIGINT), detach)
            raise


def _let_go(job: str, number: int, detach: str) -> None:
    """Stop watching a job: say how to find it again, or kill it and wait for its end."""
    from trainmaster.client.watch.view import detached

    if detach != "kill":
        detached(job, lambda text: _say(f"\n{text}"))
        return
    from trainmaster.client.jobs.actions import kill
    from trainmaster.client.watch.follow import wait_for_end
    from trainmaster.interrupts import interrupting
    from trainmaster.words.text import ended_lines

    _say(f"\n{job} ends with this command, as --detach=kill says")
    kill(job, f"its command was ended by {signal.Signals(number).name}")
    with interrupting():
        status = wait_for_end(job, KILLED_WITHIN)
    for line in ended_lines(status) if status is not None else [f"{job} has not ended after {KILLED_WITHIN:.0f} s"]:
        _say(line)


def _say(text: str) -> None:
    """Print to stderr; where the terminal is gone nobody reads, and nothing must fail for that."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _drop_unread()


def _drop_unread() -> int:
    """Have output that nobody reads any more go nowhere, so that Python does not fail at its own end.

    Returns the signal that stands for such an end: SIGHUP of a terminal, SIGPIPE of a pipe; 0 where all output is read.
    """
    import select
    import stat

    number = 0
    for descriptor in (1, 2):
        look = select.poll()
        look.register(descriptor, 0)
        if look.poll(0):
            number = number or (signal.SIGHUP if stat.S_ISCHR(os.fstat(descriptor).st_mode) else signal.SIGPIPE)
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, descriptor)
            os.close(nothing)
    return number
