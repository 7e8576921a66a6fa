"""Leave a job whose command ends before it: the job goes on, or is killed.

`tm run` on this machine is a foreground program, as make and `docker run` are: Ctrl-C and SIGTERM end the job. A closed terminal, a closed
pipe and SIGQUIT leave it running. On a cluster, and for a command that only watches, the job always goes on. `--detach` chooses
otherwise, for all of these.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM)  # end a job in the foreground
KILLED_WITHIN = 60.0  # seconds that a job has to end at once; then the command ends before it


class Begun:
    """The job that a command has started or watches; "" before it has begun."""

    job = ""

    def note(self, job: str) -> None:
        self.job = job


@contextlib.contextmanager
def letting_go(detach: str | None = "leave") -> Iterator[Begun]:
    """Let go of the job that has begun, where a signal ends the command or nobody reads its output any more.

    `detach`: "leave" it running, "kill" it, or None: kill a job on this machine at Ctrl-C and SIGTERM.
    """
    from trainmaster.core.errors import TrainmasterError
    from trainmaster.interrupts import interrupt, interrupting

    begun = Begun()
    with interrupting():
        try:
            try:
                yield begun
            except OSError as error:
                if isinstance(error, TrainmasterError) or not (number := _drop_unread()):
                    if begun.job and not isinstance(error, TrainmasterError):  # the output cannot be written
                        _let_go(begun.job, signal.SIGPIPE, detach)
                    raise
                interrupt(number)
        except KeyboardInterrupt as end:
            if begun.job:
                _let_go(begun.job, getattr(end, "number", signal.SIGINT), detach)
            raise


def _let_go(job: str, number: int, detach: str | None) -> None:
    """Stop watching a job: say how to find it again, or kill it and wait for its end."""
    from trainmaster.client.jobs.backends import backend_of
    from trainmaster.client.watch.view import detached

    if detach == "leave" or (detach is None and (number not in ENDING or not backend_of(job).on_this_machine)):
        detached(job, lambda text: _say(f"\n{text}"))
        return
    from trainmaster.client.jobs.actions import kill
    from trainmaster.client.watch.follow import wait_for_end
    from trainmaster.core.errors import EngineFailed
    from trainmaster.interrupts import interrupting, postponing, undisturbed
    from trainmaster.words.text import ended_lines

    why = f"its command was ended by {signal.Signals(number).name}"
    try:
        with interrupting():
            _say(f"\n{job} ends with this command; a second signal ends it at once (--detach=leave leaves it running)")
            kill(job, why)
            status = wait_for_end(job, tell=_say)
    except (KeyboardInterrupt, EngineFailed) as trouble:
        if isinstance(trouble, EngineFailed):  # its master does not answer
            _say(str(trouble))
        elif getattr(trouble, "number", signal.SIGINT) not in ENDING:  # the terminal was closed: nobody waits any more
            with undisturbed():
                kill(job, why)  # the first time may have been broken off
            raise
        with interrupting():
            with postponing():  # a third Ctrl-C must not break it off
                _say(f"\n{job} ends at once")
                kill(job, why, force=True)
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
