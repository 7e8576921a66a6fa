"""Pieces of output become blocks of whole lines.

A piece ends anywhere; a line is shown when it is whole. One that grows without end is cut, so that memory stays bounded, and what is left
when an attempt ends is shown as it is. Where an attempt is shown from somewhere in it on, the rest of the line that is cut there is left
out. A block is a text that ends with a newline: what is done to all its lines at once costs a hundredth of what it costs line by line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainmaster.log.output import exact

REPORTER = "reporter progress:"  # begins a line on stderr by which any program may tell its progress
LONGEST = 16 * 1024  # characters of a line until it is cut
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Beginnings:
    """Cuts the first piece of an attempt so that it begins with a line."""

    def __init__(self) -> None:
        self._begun: set[tuple[str, int]] = set()

    def cut(self, piece: Mapping[str, Any]) -> str:
        """Return the new text of `piece`, from the beginning of a line on."""
        data: str = piece["data"]
        key = piece["task"], piece["attempt"]
        if key in self._begun:
            return data
        if piece["offset"] and "\n" not in data:
            return ""
        self._begun.add(key)
        return data.partition("\n")[2] if piece["offset"] else data


class Lines:
    """Takes pieces of many tasks, gives blocks of whole lines: (task, block)."""

    def __init__(self, longest: int = LONGEST) -> None:
        """`longest`: characters of a line until it is cut."""
        self._longest = longest
        self._parts: dict[tuple[str, int], str] = {}
        self._beginnings = Beginnings()

    def add(self, piece: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the lines that `piece` completes; an earlier attempt of its task has said all."""
        task, key = piece["task"], (piece["task"], piece["attempt"])
        earlier = [other for other in self._parts if other[0] == task and other[1] < key[1]]
        blocks = [self._parts.pop(other) + "\n" for other in earlier]
        text = self._parts.pop(key, "") + self._beginnings.cut(piece)
        end = text.rfind("\n") + 1
        if len(text) - end > self._longest:
            text, end = f"{text}\n", len(text) + 1
        if end < len(text):
            self._parts[key] = text[end:]
        return [(task, block) for block in (*blocks, text[:end]) if block]

    def unfinished(self, task: str) -> str:
        """Return the beginning of a line that a task has not ended; "" where there is none."""
        return next((text for (name, _), text in self._parts.items() if name == task), "")

    def close(self) -> list[tuple[str, str]]:
        """Return what is left, at the end."""
        parts, self._parts = self._parts, {}
        return [(task, f"{line}\n") for (task, _), line in parts.items()]


def without_reports(blocks: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the blocks without the lines by which programs report their progress, which has a place of its own."""
    for task, block in blocks:
        if REPORTER in block:  # also behind the name of one of several copies
            block = re.sub(rf"^(?:{re.escape(task)}\.\d+ )?{REPORTER}[^\n]*\n", "", block, flags=re.MULTILINE)
        if block:
            yield task, block


def last(pieces: Iterable[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the last `count` lines of pieces, as pieces of at most a line. The last line of an attempt may be without its end."""
    lines: deque[list[dict[str, Any]]] = deque(maxlen=count)
    before: dict[str, Any] = {}
    for piece in pieces:
        offset = piece["offset"]
        texts = [piece["data"]] if "left_out" in piece else _LINE.findall(piece["data"])
        for remaining, text in zip(range(len(texts), 0, -1), texts, strict=True):
            end = piece["next"] if remaining == 1 else offset + len(exact(text))
            part = {**piece, "offset": offset, "next": end, "data": text}
            if any(before.get(name) != part[name] for name in ("task", "attempt")) or before["data"].endswith("\n"):
                line: list[dict[str, Any]] = []
                lines.append(line)
            line.append(part)
            before, offset = part, end
    return [part for line in lines for part in line]


def without_progress(pieces: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the pieces without the lines by which programs report their progress; all else as it was, and as soon as it was."""
    middle: dict[tuple[str, int], bool] = {}  # whether a line is being shown
    beginnings: dict[tuple[str, int], dict[str, Any]] = {}  # of a line that may become such a report
    for piece in pieces:
        key = piece["task"], piece["attempt"]
        before = beginnings.pop(key, {"data": ""})
        kept = []
        for line in _LINE.findall(before["data"] + piece["data"]):
            if middle.get(key) or not (line.startswith(REPORTER) or REPORTER.startswith(line)):
                kept.append(line)
                middle[key] = not line.endswith("\n")
            elif not line.endswith("\n"):
                beginnings[key] = {**piece, "data": line}
        yield {**piece, "data": "".join(kept)}
    yield from (piece for piece in beginnings.values() if not piece["data"].startswith(REPORTER))
