"""Output where nothing moves: on a pipe the programs' bytes, on a plain terminal their lines; our own words on stderr.

On a pipe the output of a single task is exactly what it printed, byte by byte, so that `tm run ... | cmp` holds. Lines of several tasks are
led by their task, whole blocks of them at once: a line alone costs more time than all else (200 MB/s are wanted, and 80 bytes a line
would leave 0.4 us for each). On a terminal a line is cleaned first, for a program must not be able to write elsewhere on it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from trainmaster.client.lines import REPORTER, Beginnings
from trainmaster.client.text import clean
from trainmaster.log.output import exact, readable

if TYPE_CHECKING:
    from trainmaster.client.view import Watching

LONGEST_QUESTION = 200  # characters
LONGEST = 16 * 2**20  # bytes of a line on a pipe until it is cut
AGAIN = 30.0  # s until the same words with other figures are said again, where nothing moves
_REPORTED = re.compile(rb"^" + REPORTER.encode() + rb"[^\n]*\n", re.MULTILINE)


@attrs.define
class Choice:
    """The output that a user wants to see, and what leads its lines."""

    tasks: Collection[str] = ()  # empty: all
    quiet: bool = False  # none at all
    timestamps: bool = False
    prefix: bool = True  # lines are led by their task
    stdin_task: str = ""  # the task that has the command's stdin, and may ask for something

    def shows(self, task: str) -> bool:
        return not self.quiet and (not self.tasks or task in self.tasks)

    def lead(self, name: str) -> str:
        """The text before a line that comes now, of a task or a copy."""
        stamp = f"{timestamp(time.time())} " if self.timestamps else ""
        return f"{stamp}{name} " if self.prefix else stamp

    def led(self, task: str, line: str) -> tuple[str, str]:
        """The lead of a line and its text; of a task with several copies each line names its copy (`worker:0.1`) already."""
        if self.prefix and line.startswith(f"{task}."):
            copy, _, text = line.partition(" ")
            return self.lead(copy), text
        return self.lead(task), line


def timestamp(at: float) -> str:
    """A local time as ISO 8601 has it, to the millisecond."""
    local = time.localtime(at)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{int(at * 1000) % 1000:03}{time.strftime('%z', local)}"


class Plain:
    """Lines on a terminal that cannot move; failures and what the job waits for on stderr."""

    def __init__(self, out: TextIO, err: TextIO, choice: Choice) -> None:
        self._out, self._err, self._choice = out, err, choice
        self._reason, self._at = "", 0.0

    def lines(self, lines: list[tuple[str, str]]) -> None:
        if lines:
            self._out.write("".join(f"{''.join(self._choice.led(task, clean(line)))}\n" for task, line in lines))
            self._out.flush()

    def news(self, seen: Watching) -> None:
        for line in seen.news:
            print(f"{seen.job}: {line}", file=self._err, flush=True)
        seen.news.clear()

    def draw(self, seen: Watching) -> None:
        reason = seen.waiting
        if not reason or reason == self._reason:
            return
        now = time.monotonic()
        if (
            _shape(reason) != _shape(self._reason) or now - self._at > AGAIN
        ):  # figures alone may change many times a second
            print(f"{seen.job}: {reason}", file=self._err, flush=True)
            self._reason, self._at = reason, now

    def close(self) -> None:
        """Nothing is left to take away."""


class Aloud(Plain):
    """Text on a terminal as it comes, so that a question is seen before it is answered; it has no lead."""

    def piece(self, piece: Mapping[str, Any]) -> None:
        self.text(piece["data"])

    def text(self, text: str) -> None:
        """Write text without what moves or erases."""
        self._out.write("\n".join(clean(line) for line in text.replace("\r\n", "\n").split("\n")))
        self._out.flush()


def asks(text: str) -> bool:
    """Return True where the end of some output looks like a question: a line that is not whole, and no progress bar."""
    line = text.rpartition("\n")[2]
    return 0 < len(line) < LONGEST_QUESTION and "\r" not in line and line.rstrip(" ")[-1:] in tuple(":?>)]$#")


class Piped(Plain):
    """Bytes on a pipe or into a file."""

    def __init__(self, out: TextIO, err: TextIO, choice: Choice) -> None:
        super().__init__(out, err, choice)
        self._exact = not choice.prefix and not choice.timestamps
        self._beginnings = Beginnings()
        self._parts: dict[tuple[str, int], bytearray] = {}  # (task, attempt) -> a line that is not whole yet

    def piece(self, piece: Mapping[str, Any]) -> None:
        """Write the lines that `piece` completes; an earlier attempt of its task has printed all."""
        data = exact(self._beginnings.cut(piece))
        if self._exact:
            self._put(data)
            return
        task, key = piece["task"], (piece["task"], piece["attempt"])
        for other in [other for other in self._parts if other[0] == task and other[1] < key[1]]:
            self._put(self._led(task, bytes(self._parts.pop(other)) + b"\n"))
        part = self._parts.pop(key, bytearray())
        end = data.rfind(b"\n") + 1
        part += data[:end] if end else data
        if end:
            self._put(self._led(task, bytes(part)))
            part = bytearray(data[end:])
        elif len(part) > LONGEST:
            self._put(self._led(task, bytes(part) + b"\n"))
            part = bytearray()
        if part:
            self._parts[key] = part

    def close(self) -> None:
        """Write the lines without an end."""
        parts, self._parts = self._parts, {}
        for (task, _), part in parts.items():
            self._put(self._led(task, bytes(part) + b"\n"))

    def _led(self, task: str, block: bytes) -> bytes:
        """Whole lines, each behind its lead; without reports of progress, which have a place of their own."""
        if REPORTER.encode() in block:
            block = _REPORTED.sub(b"", block)
        if not block:
            return b""
        lead, name = self._choice.lead(task).encode(), task.encode()
        block = (b"\n" + block[:-1]).replace(b"\n", b"\n" + lead)
        if self._choice.prefix:  # a line that names its copy
            block = block.replace(b"\n" + lead + name + b".", b"\n" + lead[: -len(name) - 1] + name + b".")
        return block[1:] + b"\n"

    def _put(self, data: bytes) -> None:
        if not data:
            return
        binary = getattr(self._out, "buffer", None)
        if binary is None:  # a text in memory
            self._out.write(readable(data.decode("utf-8", "surrogateescape")))
        else:
            binary.write(data)
        self._out.flush()


def _shape(reason: str) -> str:
    """Return how a reason begins, without figures: the rest may change many times a second."""
    return re.sub(r"[\d.]+", "#", " ".join(reason.split()[:3]))
