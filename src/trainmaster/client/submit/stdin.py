"""One task's stdin: what the command reads goes, through a named pipe in the job's runtime directory, to the program.

    terminal or pipe -> a thread of the command -> <runtime>/<job>/<role>-<index>.stdin -> the program's stdin

The command makes the pipe before the job's master starts, and holds it open for reading and writing, so nothing that is written is lost
before the program is there. At the end of its own stdin it lets go of the pipe once the agent has opened it (the file `opened` says so);
the program then reads the rest and the end. A command that detaches or dies lets go of it too: the program reads the end.

Nothing keeps the input that was read, so a program that has read of a pipe or a file, or a terminal to its end, is not started again
(`agent.input.stdin`): the command records how much it has passed on. While a terminal is there, the next attempt reads on from it.

A terminal belongs to the shell while the command is in the background. Reading it there would stop the command, so SIGTTIN is ignored and
the thread waits until the command is in the foreground again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import threading

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job
from trainmaster.engines import registry

NONE = "none"
READ = 64 * 1024  # bytes
AGAIN = 0.2  # seconds until a terminal that is another's, or a pipe that nobody has opened, is looked at again


class Stdin:
    """The stdin of `task`, read from the descriptor `source`."""

    def __init__(self, task: str, source: int = 0) -> None:
        self.task, self._source = task, source
        self._pipe, self._opened, self._record = -1, "", ""

    def prepare(self, job: str) -> None:
        """Make the named pipe of a job whose master has not started yet."""
        from trainmaster.agent.input.stdin import record_path
        from trainmaster.host.places import job_dir, job_storage

        self._record = record_path(str(job_storage(job)), self.task)
        path = str(job_dir(job) / f"{self.task.replace(':', '-')}.stdin")
        self._opened = f"{path}.opened"
        os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def begin(self) -> None:
        """Read and pass on, in a thread, from now on. The job has been submitted: nothing is forked any more."""
        if self._pipe < 0:  # a job that was submitted before, under the same key
            return
        if os.isatty(self._source):
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            self._pass_on()
        pause = threading.Event()
        while not os.path.exists(self._opened):
            pause.wait(AGAIN)
        os.close(self._pipe)

    def _pass_on(self) -> None:
        """Write all that there is to read into the pipe. After each write, the pipe had no more than what is recorded."""
        total, is_terminal = 0, os.isatty(self._source)
        room = select.poll()
        room.register(self._pipe, select.POLLOUT)
        while data := self._read():
            while data:
                room.poll()
                written = os.write(self._pipe, data)
                data, total = data[written:], total + written
                if not is_terminal:
                    self._note(total)
        self._note(total)

    def _note(self, total: int) -> None:
        if total:
            from trainmaster.log.storage import LocalStorage

            folder, name = os.path.split(self._record)
            # A note that fails comes with the next bytes. To stop here would cut the program's input short.
            with contextlib.suppress(OSError):
                LocalStorage(folder).replace(name, b"%d\n" % total, durable=False)

    def _read(self) -> bytes:
        pause = threading.Event()
        while True:
            try:
                return os.read(self._source, READ)
            except OSError:  # EIO: of a terminal in whose background we are, or that is gone
                if not os.isatty(self._source) or os.tcgetpgrp(self._source) == os.getpgrp():
                    raise
                pause.wait(AGAIN)


def chosen(job: Job, engine: str, task: str | None) -> Stdin | None:
    """Return the stdin to pass on: of the task that the user names, or of a job's only task on this machine; None where there is none.

    Raises BadInput where `task` cannot have it.
    """
    from trainmaster.client.jobs.past import task_names

    known = task_names(job)
    if task is None:
        has_it = len(known) == 1 and not _refusal(job, engine, known[0]) and _may_have_input()
        return Stdin(known[0]) if has_it else None
    if task == NONE:
        return None
    from trainmaster.client.watch.logs import check_task

    check_task("", task, known)
    if not (reason := _refusal(job, engine, task)):
        return Stdin(task)
    raise BadInput(
        f"{task} cannot have the command's stdin: {reason}",
        place="flag --stdin",
        mend="leave --stdin out",
        anchor="no-stdin",
    )


def unread_note(job: Job, engine: str) -> str:
    """Return what to say where something waits in our stdin, a pipe, and no task was chosen to read it; "" where nothing waits."""
    if not _waits():
        return ""
    from trainmaster.client.jobs.past import task_names

    first = task_names(job)[0]
    instead = _refusal(job, engine, first) or f"--stdin {first} gives it to a task"
    return f"nobody reads this command's stdin: {instead}, --stdin {NONE} says that this is meant"


def _refusal(job: Job, engine: str, task: str) -> str:
    """Return why a task cannot have the command's stdin; "" where it can."""
    # The programs of a cluster, unlike our stdin, are on other machines.
    if not registry.is_on_this_machine(engine):
        return f"a program on {engine} has an empty stdin"
    if any(source.as_ == "stream" for source in job.inputs.values()):
        return "an input `as: stream` is the programs' stdin"
    if not _has_one_copy(job, task):
        return f"{task} has several copies of its program"
    return ""


def _has_one_copy(job: Job, task: str) -> bool:
    return job.roles[task.partition(":")[0]].processes == 1


def _may_have_input() -> bool:
    """Return True where our stdin may have something: not where it is closed or /dev/null, or a terminal in whose background we are."""
    try:
        if os.isatty(0):
            return os.tcgetpgrp(0) == os.getpgrp()
        mode = os.fstat(0).st_mode
        return not stat.S_ISCHR(mode)
    except OSError:
        return False


def _waits() -> bool:
    """Return True where our stdin is a pipe or a socket with something in it. An empty one may be a service's, to which nobody writes."""
    from array import array
    from fcntl import ioctl
    from termios import FIONREAD

    size = array("i", [0])
    try:
        mode = os.fstat(0).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            ioctl(0, FIONREAD, size)
    except OSError:
        return False
    return size[0] > 0
