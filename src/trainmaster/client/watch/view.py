"""Watching a job: every task's output as it comes, and above the prompt what each task does.

If stdout is not a terminal the view is plain: the programs' lines on stdout, ours on stderr, and nothing is imported for it. On a terminal
it begins with one line that is written over, for a short job is over before a drawing library is loaded. After a moment live rows appear
under the output: one line about the job, and one a task. Our lines above them report failures, what they lead to, and what a job waits for.

Watching changes nothing: whoever stops watching leaves the job running.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from trainmaster.client.jobs.past import Facts
from trainmaster.client.watch.printing import Aloud, Choice, Piped, Plain, Question
from trainmaster.client.watch.watched import Watching, lead_colour
from trainmaster.words import colours
from trainmaster.words.text import clean

MOMENT = 0.3  # s until a terminal shows live rows
_ALL = Choice()


def watch(
    job: str, items: Iterable[Facts], out: TextIO | None = None, err: TextIO | None = None, choice: Choice = _ALL
) -> Facts:
    """Show the `items` of `job` until the end; returns the final status."""
    out, err = out or sys.stdout, err or sys.stderr
    lively = _lively(out, err)
    seen = Watching(job)
    piped = None if out.isatty() else Piped(out, err, choice)
    shown: Plain | Any = piped or (First(out, choice) if lively else Plain(out, err, choice))
    rich_from, question = time.monotonic() + MOMENT if lively else None, Question(choice.stdin_task)
    try:
        for item in items:
            piece = item.get("log")
            if piece is not None and not choice.shows(piece["task"]):
                continue
            if piece is not None and "left_out" in piece:
                seen.left_out[piece["task"]] += piece["left_out"]
            if piece is not None and piped is not None:
                piped.piece(piece)
                continue
            if piece is not None and isinstance(shown, Aloud):
                shown.piece(piece)
                continue
            shown.lines(seen.take(item))
            shown.news(seen)
            if question.is_asked(seen.lines, time.monotonic()) and not isinstance(shown, Aloud):
                shown.close()
                shown, rich_from = Aloud(out, err, choice), None
                shown.text("".join(block[:-1] for _, block in seen.lines.close()))
            if "end" in item:
                break
            if rich_from is not None and seen.status and time.monotonic() > rich_from:
                rich_from = None
                shown.close()
                from trainmaster.client.watch.rows import Rows

                shown = Rows(out, choice)
            shown.draw(seen)
    finally:
        shown.close()
    say = shown.say if isinstance(shown, Plain) else lambda line: print(line, file=err)
    for line in seen.summary() if seen.status else ():
        say(line)
    return seen.status


def _lively(out: TextIO, err: TextIO) -> bool:
    import os

    return out.isatty() and err.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class First:
    """The first moment on a terminal: the lines in their colours, and under them one line that is written over."""

    def __init__(self, out: TextIO, choice: Choice) -> None:
        self._out, self._choice, self._drawn = out, choice, ""

    def lines(self, blocks: list[tuple[str, str]]) -> None:
        if blocks:
            self.close()
            self._out.write("".join(self._choice.led(task, block, clean, lead_colour(task)) for task, block in blocks))
            self._out.flush()

    def news(self, seen: Watching) -> None:
        if seen.news:
            self.close()
            bold, plain = ("\x1b[1m", "\x1b[0m") if colours.allowed() else ("", "")
            self._out.write("".join(f"{bold}{line}{plain}\n" for line in seen.news))
            self._out.flush()
            seen.news.clear()

    def draw(self, seen: Watching) -> None:
        import shutil

        line = f"{seen.job} {seen.headline}"
        if line != self._drawn:
            self._out.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
            self._out.flush()
            self._drawn = line

    def close(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._drawn = ""


def detached(job: str, say: Callable[[str], object]) -> None:
    """Say what to do after having stopped watching."""
    say(f"{job} goes on. Watch it again: tm attach {job}   end it: tm kill {job}")
