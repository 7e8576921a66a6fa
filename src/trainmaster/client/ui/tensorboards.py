"""TensorBoard for jobs that have ended: a child process for each job whose page asks for it, over the event files that the job left.

One ends after some minutes without requests, when several others were used since, with `tm ui`, and when that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from trainmaster.client.ui.threads import in_thread
from trainmaster.core.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.web.proxy import Program

IDLE = 600.0  # s without requests
MOST = 4  # at once: each takes some 200 MiB
BEGIN = 180.0  # s until it accepts connections, on a busy machine
GRACE = 5.0  # s between SIGTERM and SIGKILL
POLL = 0.1  # s between two looks at its output
_PRINTED = 64 * 1024  # bytes of output, within which it prints its address
_LAST_LINES = 5  # of its output, in the error that it did not start


@attrs.define(eq=False)
class _Board:
    address: asyncio.Future[str]  # done once it accepts connections
    used: float = attrs.field(factory=time.monotonic)
    life: asyncio.Task[None] | None = None


class TensorBoards:
    """The TensorBoards that run, by job."""

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._boards: dict[str, _Board] = {}

    async def start(self, job: str) -> None:
        """Have one that accepts connections. Raises NotFound where there are no event files, or no TensorBoard; else TrainmasterError."""
        board = self._boards.get(job)
        if board is None:
            board = _Board(asyncio.get_running_loop().create_future())
            board.life = asyncio.create_task(self._run(job, board))
            self._boards[job] = board
            for _, oldest in sorted(self._boards.items(), key=lambda entry: entry[1].used)[:-MOST]:
                if oldest.life is not None:
                    oldest.life.cancel()
        await asyncio.shield(board.address)

    def program(self, job: str) -> Program | None:
        """Return the one of a job, as the proxy reaches it; None where none accepts connections."""
        from trainmaster.web.proxy import Program

        board = self._boards.get(job)
        if board is None or not board.address.done():
            return None
        board.used = time.monotonic()
        address = board.address.result()
        parts = urlsplit(address)
        return Program(address, lambda: asyncio.open_connection(parts.hostname, parts.port))

    async def close(self) -> None:
        """End all."""
        lives = [board.life for board in self._boards.values() if board.life is not None]
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)

    async def _run(self, job: str, board: _Board) -> None:
        """Have one run until nobody has asked it for long."""
        try:
            async with _running(job) as (process, address):
                board.address.set_result(address)
                board.used = time.monotonic()
                while process.returncode is None and (left := board.used + self._idle - time.monotonic()) > 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await process.wait()
        except Exception as error:
            if board.address.done():
                raise
            _refuse(board, error)
        finally:
            del self._boards[job]
            if not board.address.done():
                _refuse(board, TrainmasterError("TensorBoard was ended before it answered", mend="open it again"))


def _refuse(board: _Board, error: Exception) -> None:
    board.address.set_exception(error)
    board.address.exception()  # the reader may have gone: nobody else asks


@contextlib.asynccontextmanager
async def _running(job: str) -> AsyncIterator[tuple[Process, str]]:
    """Have TensorBoard run over the event files of a job; yield it and its address once it accepts connections."""
    from trainmaster.client import tensorboard
    from trainmaster.host import linux

    runs = await in_thread(tensorboard.event_folders, job)
    if not runs:
        raise tensorboard.no_event_files(job)
    path = secrets.token_urlsafe()
    linux.adopt_orphans(False)  # nothing changes; the child must import nothing
    with tempfile.TemporaryFile() as output, tensorboard.launching(runs, 0, path) as (command, environ):
        process = await asyncio.create_subprocess_exec(
            *command, env=environ, stdin=DEVNULL, stdout=output, stderr=output, start_new_session=True,
            preexec_fn=linux.die_with_parent,
        )  # fmt: skip
        try:
            yield process, await _wait_for_address(process, path, output)
        finally:
            await _end(process)


async def _wait_for_address(process: Process, path: str, output: IO[bytes]) -> str:
    """Return the address that TensorBoard prints once it listens there: of a port that it has chosen, so nobody else has taken it."""
    limit = time.monotonic() + BEGIN
    while process.returncode is None and time.monotonic() < limit:
        if address := re.search(rb"http://\S+/%s/" % path.encode(), os.pread(output.fileno(), _PRINTED, 0)):
            return address[0].decode()
        await asyncio.sleep(POLL)
    output.seek(0)
    lines = output.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    end = (
        f"ended with status {process.returncode}" if process.returncode is not None else f"was silent for {BEGIN:.0f} s"
    )
    raise TrainmasterError(f"TensorBoard {end}: {' '.join(lines)}", mend="see whether tm tensorboard works")


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
