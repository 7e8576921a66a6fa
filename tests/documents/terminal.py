"""A shell in a terminal, as a reader has one: commands are typed, their output is what the terminal shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

CTRL_C = b"\x03"
QUIET = 3.0  # s without output, after which a reader has seen what a command shows
_MARK = "\x1e"  # around the exit status, in the prompt
_PROMPT = re.compile(f"{_MARK}(\\d+){_MARK}$")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>]|\r")
_QUESTION = re.compile(r"\[y/N\]:? $")


@attrs.frozen
class Result:
    output: str
    status: int | None  # None: it had not ended at its limit


@attrs.define
class Terminal:
    process: subprocess.Popen[bytes]
    descriptor: int

    def run(self, command: str, limit: float, is_seen: Callable[[str], bool] | None = None) -> Result:
        """Type a command, answer its questions with yes, and return when it has ended.

        With `is_seen`, a command that has shown all that this looks for, and is quiet for a moment, is ended by Ctrl-C.
        """
        if command:
            os.write(self.descriptor, f"{command}\n".encode())
        output, begin = "", time.monotonic()
        last = begin
        while (now := time.monotonic()) - begin < limit:
            if select.select([self.descriptor], [], [], 0.1)[0]:
                output += os.read(self.descriptor, 1 << 16).decode(errors="replace")
                last = time.monotonic()
                if prompt := _PROMPT.search(output):
                    return Result(_CONTROL.sub("", output[: prompt.start()]), int(prompt[1]))
                if _QUESTION.search(_CONTROL.sub("", output)):
                    os.write(self.descriptor, b"y\n")
                    output += "y\n"
            elif is_seen is not None and now - last > QUIET and is_seen(_CONTROL.sub("", output)):
                os.write(self.descriptor, CTRL_C)
                last = now
        return Result(_CONTROL.sub("", output), None)


@contextmanager
def opened(directory: Path, env: Mapping[str, str]) -> Iterator[Terminal]:
    """Open a terminal of 200 columns; at the end its shell, and what it still runs, is killed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    settings = termios.tcgetattr(theirs)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    prompt = {"PS1": f"{_MARK}$?{_MARK}", "PS2": "", "HISTFILE": ""}
    process = subprocess.Popen(
        ["bash", "--noprofile", "--norc", "--noediting", "-i"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory, env={**env, **prompt}, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    terminal = Terminal(process, ours)
    try:
        terminal.run("", 60)  # its first prompt
        yield terminal
    finally:
        for group in {_foreground(ours), process.pid}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        process.wait()
        os.close(ours)


def _foreground(descriptor: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCGPGRP, b"\0" * 4))[0])
