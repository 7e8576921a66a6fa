"""Output where nothing moves: on a pipe the programs' bytes, on a plain terminal their lines; our own words on stderr.

On a pipe the output of a single task is exactly what it printed, byte by byte, so that `tm run ... | cmp` holds. Lines of several tasks are
led by their task, whole blocks of them at once: a line alone costs more time than all else (200 MB/s are wanted, and 80 bytes a line
would leave 0.4 us for each). On a terminal lines are cleaned first, for a program must not be able to write elsewhere on it.

The agent leads each line of a task with several copies of its program by the copy (`worker:0.1`); what any other task prints is text.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from trainmaster.client.watch.lines import LONGEST, Beginnings, Lines, without_reports
from trainmaster.log.output import exact, readable
from trainmaster.words.text import clean

if TYPE_CHECKING:
    from trainmaster.client.watch.watched import Watching

LONGEST_QUESTION = 200  # characters
STANDING = 0.3  # s after which the beginning of a line is no longer taken for a line on its way
AGAIN = 30.0  # s until the same words with other figures are said again, where nothing moves


@attrs.define
class Choice:
    """The output that a user wants to see, and what leads its lines."""

    tasks: Collection[str] = ()  # empty: all
    quiet: bool = False  # none at all
    timestamps: bool = False
    prefix: bool = True  # lines are led by their task
    copied: Collection[str] = ()  # the tasks that run several copies of their program
    stdin_task: str = ""  # the task that has the command's stdin, and may ask for something

    def shows(self, task: str) -> bool:
        return not self.quiet and (not self.tasks or task in self.tasks)

    def led(self, task: str, block: str, tidy: Callable[[str], str] | None = None, colour: int = 0) -> str:
        """Return lines that come now, made `tidy`, each behind its lead: in a `colour` of terminals, where it is not 0."""
        copy = rf"{re.escape(task)}\.\d+ " if task in self.copied else ""
        if tidy is not None and copy and "\r" in block:  # what wrote over its line did not write over its copy's name
            block = re.sub(rf"^({copy})[^\n]*\r(?=[^\r\n])", r"\1", block, flags=re.MULTILINE)
        block = block if tidy is None else tidy(block)
        stamp = f"{timestamp(time.time())} " if self.timestamps else ""
        name = f"{task} " if self.prefix else ""
        if not stamp and not name:
            return block
        begin, end = (f"\n\x1b[{colour}m{stamp}", "\x1b[0m") if colour else (f"\n{stamp}", "")
        block = f"\n{block[:-1]}".replace("\n", f"{begin}{name}{end}")
        if copy and name:
            block = re.sub(f"{re.escape(begin + name + end)}({copy})", rf"{begin}\1{end}", block)
        return block[1:] + "\n"


def timestamp(at: float) -> str:
    """A local time as ISO 8601 has it, to the millisecond."""
    local = time.localtime(at)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{int(at * 1000) % 1000:03}{time.strftime('%z', local)}"


class Plain:
    """Lines on a terminal that cannot move; failures and what the job waits for on stderr."""

    longest = LONGEST  # characters of a line until it is cut

    def __init__(self, out: TextIO, err: TextIO, choice: Choice) -> None:
        self._out, self._err, self._choice = out, err, choice
        self._reason, self._at = "", 0.0
        self._is_mid_line = False  # whether the last that was written to `out` has no end of its line

    def lines(self, blocks: Iterable[tuple[str, str]]) -> None:
        for task, block in blocks:
            self._out.write(self._choice.led(task, block, clean))
            self._out.flush()

    def news(self, seen: Watching) -> None:
        for line in seen.news:
            self.say(f"{seen.job}: {line}")
        seen.news.clear()

    def say(self, line: str) -> None:
        """Print a line of ours, on a line of its own where a program has not ended its last one."""
        if self._is_mid_line and _is_one_place(self._out, self._err):
            print(file=self._err)
        self._is_mid_line = False
        print(line, file=self._err, flush=True)

    def draw(self, seen: Watching) -> None:
        reason = seen.waiting
        if not reason or reason == self._reason:
            return
        now = time.monotonic()
        if (
            _shape(reason) != _shape(self._reason) or now - self._at > AGAIN
        ):  # figures alone may change many times a second
            self.say(f"{seen.job}: {reason}")
            self._reason, self._at = reason, now

    def close(self) -> None:
        """Nothing is left to take away."""


class Aloud(Plain):
    """Text on a terminal as it comes, so that a question is seen before it is answered; it has no lead."""

    def piece(self, piece: Mapping[str, Any]) -> None:
        self.text(piece["data"])

    def text(self, text: str) -> None:
        """Write text without what moves or erases."""
        self._out.write(clean(text.replace("\r\n", "\n")))
        self._out.flush()
        self._is_mid_line = not text.endswith("\n") if text else self._is_mid_line


class Question:
    """Finds out whether the task that has the command's stdin waits for an answer."""

    def __init__(self, task: str) -> None:
        self._task, self._line, self._since = task, "", 0.0

    def is_asked(self, lines: Lines, now: float) -> bool:
        """Return True where the task's last line is unfinished, ends like a question or stays for a moment, and is not a progress bar."""
        line = lines.unfinished(self._task)
        if line != self._line:
            self._line, self._since = line, now
        if not 0 < len(line) < LONGEST_QUESTION or "\r" in line:
            return False
        return line.rstrip(" ")[-1:] in tuple(":?>)]$#") or now - self._since > STANDING


class Piped(Plain):
    """Bytes on a pipe or into a file."""

    longest = 16 * 2**20

    def __init__(self, out: TextIO, err: TextIO, choice: Choice, tidy: Callable[[str], str] | None = None) -> None:
        """`tidy`: what is done to lines that have a lead."""
        super().__init__(out, err, choice)
        self._tidy = tidy
        self._exact = not choice.prefix and not choice.timestamps
        self._beginnings = Beginnings()
        self._lines = Lines(self.longest)

    def piece(self, piece: Mapping[str, Any]) -> None:
        """Write a piece of a single task as it is, without marks of ours; of others the lines that it completes."""
        if not self._exact:
            self.lines(without_reports(self._lines.add(piece)))
        elif "left_out" not in piece:
            self._put(self._beginnings.cut(piece))

    def lines(self, blocks: Iterable[tuple[str, str]]) -> None:
        for task, block in blocks:
            self._put(self._choice.led(task, block, self._tidy))

    def close(self) -> None:
        """Write the lines without an end."""
        self.lines(without_reports(self._lines.close()))

    def _put(self, text: str) -> None:
        if not text:
            return
        binary = getattr(self._out, "buffer", None)
        if binary is None:  # a text in memory
            self._out.write(readable(text))
        else:
            binary.write(exact(text))
        self._out.flush()
        self._is_mid_line = not text.endswith("\n")


def _shape(reason: str) -> str:
    """Return how a reason begins, without figures: the rest may change many times a second."""
    return re.sub(r"[\d.]+", "#", " ".join(reason.split()[:3]))


def _is_one_place(out: TextIO, err: TextIO) -> bool:
    """Return True where both go to one terminal, pipe or file."""
    try:
        return os.path.sameopenfile(out.fileno(), err.fileno())
    except (OSError, ValueError):  # a text in memory, or what is closed
        return False
