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
READING = 2.0  # s that a reader looks at what a command shows before she ends it
_MARK = "\x1e"  # around the exit status, in the prompt
_PROMPT = re.compile(f"{_MARK}(\\d+){_MARK}$")
_MOVE = re.compile(r"\r(?!\n)|\x1b\[[0-9;]*[A-HJKf]")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>]|\r")
_QUESTION = re.compile(r"\[y/N\]:? (?:\x1b\[[0-9;]*m)*$")


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

        With `is_seen`, a command that goes on after it has shown all that this looks for is ended by Ctrl-C.
        """
        if command:
            os.write(self.descriptor, f"{command}\n".encode())
        output, begin, seen = "", time.monotonic(), None
        while (now := time.monotonic()) - begin < limit:
            if select.select([self.descriptor], [], [], 0.1)[0]:
                output += os.read(self.descriptor, 1 << 16).decode(errors="replace")
                if prompt := _PROMPT.search(output):
                    return Result(_plain(output[: prompt.start()]), int(prompt[1]))
                if _QUESTION.search(output):
                    os.write(self.descriptor, b"y\n")
                    output += "y\n"
            if seen is None and is_seen is not None and is_seen(_plain(output)):
                seen = now
            elif seen is not None and now - seen > READING:
                os.write(self.descriptor, CTRL_C)
                seen = now
        return Result(_plain(output), None)


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


def _plain(output: str) -> str:
    """Return the lines that the terminal has ever shown, without colours and without empty lines."""
    lines = _CONTROL.sub("", _MOVE.sub("\n", output)).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _foreground(descriptor: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCGPGRP, b"\0" * 4))[0])
