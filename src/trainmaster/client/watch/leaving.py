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
import threading
import time
from collections.abc import Iterable, Iterator

from trainmaster.client.jobs.past import Facts

ENDING = (signal.SIGINT, signal.SIGTERM)  # end a job in the foreground
ENDS = "the job ends with this command; a second signal ends it at once (--detach=leave leaves it running)"
KILLED_WITHIN = 60.0  # seconds that a job has to end at once; then the command ends before it
SAME = 0.25  # seconds; `timeout` sends its signal twice: to the command, and to all of its group


class Begun:
    """The job that a command has started or watches; "" before it has begun."""

    job = ""
    ended_by = 0  # the signal at which the job was asked to end; 0: none
    is_over = False  # its end was shown

    def __init__(self, detach: str | None) -> None:
        self.detach = detach
        self._ended_at = 0.0

    def note(self, job: str) -> None:
        self.job = job

    @property
    def why(self) -> str:
        return f"its command was ended by {signal.Signals(self.ended_by).name}"

    def ends_by(self, number: int) -> bool:
        """Tell whether the job ends where the signal `number` ends the command."""
        from trainmaster.client.jobs.backends import backend_of

        return self.detach == "kill" or (
            self.detach is None and number in ENDING and backend_of(self.job).on_this_machine
        )

    @contextlib.contextmanager
    def shown_to_end(self, items: Iterable[Facts]) -> Iterator[Iterator[Facts]]:
        """Hand on what is shown of the job. The first signal that ends the job breaks nothing off: what it prints until its end is shown.

        Raises Interrupted once that is shown, or at a second signal.
        """
        from trainmaster.interrupts import answering, interrupt

        ending = {number for number in ENDING if self.ends_by(number)}
        with answering(lambda number: self._is_answered(number, ending)):
            yield self._saying_that_it_ends(items)
        self.is_over = True
        if self.ended_by:
            interrupt(self.ended_by)

    def _saying_that_it_ends(self, items: Iterable[Facts]) -> Iterator[Facts]:
        has_said = False
        for item in items:
            if self.ended_by and not has_said:
                has_said = True
                yield {"told": ENDS}
            yield item

    def _is_answered(self, number: int, ending: set[signal.Signals]) -> bool:
        if self.ended_by:
            return time.monotonic() - self._ended_at < SAME
        if number not in ending:
            return False
        self.ended_by, self._ended_at = number, time.monotonic()
        threading.Thread(target=self._ask_for_end, daemon=True).start()
        return True

    def _ask_for_end(self) -> None:
        from trainmaster.client.jobs.actions import kill
        from trainmaster.core.errors import TrainmasterError

        try:
            kill(self.job, self.why)
        except (TrainmasterError, OSError) as error:  # its master does not answer
            if not self.is_over:
                _say(str(error))
                time.sleep(SAME)
                os.kill(os.getpid(), self.ended_by)


@contextlib.contextmanager
def letting_go(detach: str | None = "leave") -> Iterator[Begun]:
    """Let go of the job that has begun, where a signal ends the command or nobody reads its output any more.

    `detach`: "leave" it running, "kill" it, or None: kill a job on this machine at Ctrl-C and SIGTERM.
    """
    from trainmaster.core.errors import TrainmasterError
    from trainmaster.interrupts import interrupt, interrupting

    begun = Begun(detach)
    with interrupting():
        try:
            try:
                yield begun
            except OSError as error:
                if isinstance(error, TrainmasterError) or not (number := _drop_unread()):
                    if begun.job and not isinstance(error, TrainmasterError):  # the output cannot be written
                        _let_go(begun, signal.SIGPIPE)
                    raise
                interrupt(number)
        except KeyboardInterrupt as end:
            if begun.job:
                _let_go(begun, getattr(end, "number", signal.SIGINT))
            else:
                _say("\ninterrupted: no job was submitted")
            if begun.ended_by:  # what came after it, as a reader that went away, does not change the exit status
                interrupt(begun.ended_by)
            raise


def _let_go(begun: Begun, number: int) -> None:
    """Stop watching a job: say how to find it again, or kill it and wait for its end."""
    from trainmaster.client.watch.view import detached

    if begun.is_over:
        return
    job, is_ending = begun.job, bool(begun.ended_by)
    if not is_ending and not begun.ends_by(number):
        detached(job, lambda text: _say(f"\n{text}"))
        return
    from trainmaster.client.jobs.actions import kill
    from trainmaster.client.watch.follow import wait_for_end
    from trainmaster.core.errors import EngineFailed
    from trainmaster.interrupts import interrupt, interrupting, postponing, undisturbed
    from trainmaster.words.text import ended_lines

    begun.ended_by = begun.ended_by or number
    try:
        with interrupting():
            if not is_ending:
                _say(f"\n{job}: {ENDS}")
                kill(job, begun.why)
            elif number != signal.SIGPIPE:
                interrupt(number)
            status = wait_for_end(job, tell=_say)
    except (KeyboardInterrupt, EngineFailed) as trouble:
        if isinstance(trouble, EngineFailed):  # its master does not answer
            _say(str(trouble))
        elif getattr(trouble, "number", signal.SIGINT) not in ENDING:  # the terminal was closed: nobody waits any more
            with undisturbed():
                kill(job, begun.why)  # the first time may have been broken off
            raise
        with interrupting():
            with postponing():  # a third Ctrl-C must not break it off
                _say(f"\n{job} ends at once")
                kill(job, begun.why, force=True)
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
