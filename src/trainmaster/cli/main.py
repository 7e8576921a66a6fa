"""The beginning of `tm`: fork what a job that is about to be submitted needs, then read the command line.

A master needs imports that take longer than reading a job. So where the arguments look like a job's, what both need is loaded once, then
the process that will be the master is forked, and gets ready while the command line is read. If there is no job after all, it ends with us.
For a job on a cluster, another process prepares what takes long (see `client.submit.ahead`).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from trainmaster.cli.statuses import FAULT, INTERRUPTED
from trainmaster.ignored_interrupts import repeat_ignored
from trainmaster.lazy import lazily

SUBMITTING = ("run", "submit", "retry", "train", "evaluate", "predict")
_NEW = 50_000  # objects between two collections: imports make a hundred thousand and no garbage, and collecting takes a tenth of their time
_DIALECTS = {"--xlearning", "--submarine"}
DEFAULT, OF_DIALECTS = "local", "yarn"  # engines; of the command lines of systems of YARN
_NOT_AFTER_ALL = {"-h", "--help", "--dry-run", "--yaml"}


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    gc.set_threshold(_NEW)
    _mend_inheritance()
    repeat_ignored()
    lazily()
    arguments = list(sys.argv[1:] if args is None else args)
    try:
        engine = submits(arguments)
        if engine:
            prepare(engine)
        from trainmaster.cli.tm import run
    except KeyboardInterrupt:  # nothing has begun
        sys.exit(INTERRUPTED)
    except OSError as error:  # a fork failed
        print(f"error: no process could be made: {error.strerror}\n  raise the limit: ulimit -u", file=sys.stderr)
        sys.exit(FAULT)
    try:
        run(arguments)
    except SystemExit as end:
        if args is None:  # this process is the command
            _leave(end.code)
        raise


class _Stderr(io.TextIOWrapper):
    """Our words to people, which a full disk behind stderr keeps: they must not change what a command does, nor its exit status."""

    def write(self, text: str) -> int:
        with _where_there_is_room():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with _where_there_is_room():
            super().flush()


@contextlib.contextmanager
def _where_there_is_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise


def _leave(status: object) -> None:
    """End here and now where a call that was given up goes on in foreign code: Python's own end would have its thread crash."""
    dfs = sys.modules.get("trainmaster.log.dfs")
    if dfs is None or not dfs.at_work():
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads any more
        pass
    os._exit(status if isinstance(status, int) else FAULT)


def _mend_inheritance() -> None:
    """Give this process what all code relies on, whatever its parent closed or ignored: three open streams, and children to wait for."""
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # where it is ignored, a wait for a child fails (waitpid(2)), in programs too
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is the stream's own
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))
    if type(sys.stderr) is io.TextIOWrapper:
        encoding, errors = sys.stderr.encoding, sys.stderr.errors
        sys.stderr = _Stderr(sys.stderr.detach(), encoding, errors, line_buffering=True)


def submits(arguments: Sequence[str]) -> str:
    """Return the engine of the job that the arguments seem to submit; "" where they submit none."""
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command = next((word for word in ours if not word.startswith("-")), "")
    if (
        command not in SUBMITTING
        or len(arguments) == 1
        or _NOT_AFTER_ALL.intersection(word.partition("=")[0] for word in ours)
    ):
        return ""
    named = " ".join(ours).partition("--engine")[2][1:].partition(" ")[0]
    if named:
        return named
    from trainmaster.client.spec.settings_files import likely_engine

    return likely_engine() or (OF_DIALECTS if _DIALECTS.intersection(ours) else DEFAULT)


def prepare(engine: str) -> None:
    """Begin to start what a job on this engine needs."""
    from trainmaster.client.jobs.backends import backend
    from trainmaster.core.errors import BadInput

    try:
        where = backend(engine)
    except BadInput:  # the command says so
        return
    where.prepare()
