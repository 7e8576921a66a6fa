"""Windows on a log of any size: the lines between two positions, and searches that read a bounded part in one go.

A window reads its own bytes alone, so the page of a log of 2 GiB opens as fast as that of a small one. It begins and ends with whole lines
where it can: the window after it begins at its `end`, the one before it ends at its `begin`. A line without an end is `open`; the
next window has it again. A line longer than a window is cut.

A search looks at bytes as they were printed, whole lines at a time. It stops at its first match, or after `SCAN` bytes or `PATIENCE`, and
says how far it came: the reader may go on from there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import aclosing

import attrs

from trainmaster.log.output import exact
from trainmaster.web.contract import Facts

WINDOW = 64 * 1024  # bytes
LINES = 2000  # of a window
SCAN = 64 * 1024 * 1024  # bytes of one search
PATIENCE = 2.0  # s of one search
_UNSHIPPED = 64 * 1024 * 1024  # bytes that a running attempt may have printed beyond what is stored
_LONGEST = 64 * 1024  # bytes of a line that is searched as one
_BACK = 1024 * 1024  # bytes that a search backwards reads at once


@attrs.frozen(slots=True)
class Line:
    """One line, without its end. `position`: of its first byte. `left_out`: it stands for bytes that are no longer kept."""

    position: int
    data: bytes = b""
    open: bool = False  # its end is not printed yet
    left_out: int = 0


@attrs.frozen(slots=True)
class Window:
    """The lines from `begin` to `end`. `last`: nothing is printed after them yet, except a line that is open."""

    begin: int
    end: int
    lines: list[Line]
    last: bool


@attrs.frozen(slots=True)
class Search:
    """The result of a search: the position of the match, or None, and how far the search came."""

    position: int | None
    reached: int
    complete: bool  # it came to the end of the log, or to its beginning


async def window_after(facts: Facts, task: str, attempt: int, begin: int) -> Window:
    """Return the window from a position on, which is the beginning of a line."""
    pieces, is_last = await _read(facts, task, attempt, begin, begin + WINDOW)
    lines, end = _lines(pieces, keep_first=True, is_last=is_last)
    if len(lines) > LINES:
        return Window(begin, lines[LINES].position, lines[:LINES], False)
    return Window(begin, max(begin, end), lines, is_last)


async def window_before(facts: Facts, task: str, attempt: int, end: int) -> Window:
    """Return the window that ends at a position, which is the beginning of a line."""
    begin = max(0, end - WINDOW)
    pieces, _ = await _read(facts, task, attempt, begin, end)
    lines, _ = _lines(pieces, keep_first=not begin, is_last=False, keep_rest=True)
    if begin and lines and (first := lines[0]).left_out:
        start = await _gap_begin(facts, task, attempt, first.position)
        lines[0] = Line(start, left_out=first.position + first.left_out - start)
    lines = lines[-LINES:]
    return Window(lines[0].position if lines else begin, end, lines, False)


async def window_around(facts: Facts, task: str, attempt: int, position: int) -> Window:
    """Return a window with the line of a position, and some before it."""
    begin = max(0, position - WINDOW // 4)
    pieces, is_last = await _read(facts, task, attempt, begin, begin + WINDOW)
    lines, end = _lines(pieces, keep_first=not begin, is_last=is_last)
    is_early, is_late = bool(lines) and lines[0].position > position, position >= end
    if is_early or is_late:  # its line is longer than what was read of it
        lines, end = _lines(pieces, keep_first=is_early or not begin, is_last=is_last, keep_rest=is_late)
    first = sum(line.position <= position for line in lines)
    start = max(0, first - LINES // 4)
    if len(lines) > start + LINES:
        end, is_last = lines[start + LINES].position, False
    lines = lines[start : start + LINES]
    return Window(lines[0].position if lines else begin, max(begin, end), lines, is_last)


async def last_window(facts: Facts, task: str, attempt: int, size: int = WINDOW) -> Window:
    """Return the window at the end of what is printed."""
    _, stored = await facts.stored(task, attempt)
    begin = max(0, stored - size)
    pieces, is_last = await _read(facts, task, attempt, begin, stored + _UNSHIPPED, size)
    begin = pieces[0][0] if pieces else begin
    lines, end = _lines(pieces, keep_first=not begin, is_last=is_last)
    lines = lines[-LINES:]
    return Window(lines[0].position if lines else begin, max(begin, end), lines, is_last)


async def search_forward(facts: Facts, task: str, attempt: int, begin: int, find: Finder) -> Search:
    """Search from a position on."""
    ends = time.monotonic() + PATIENCE
    position, rest = begin, b""  # the rest of a line that goes on in the next piece
    async with aclosing(facts.log(task, attempt, begin, False)) as pieces:
        async for piece in pieces:
            start, data = piece["offset"] - len(rest), rest + (b"" if "left_out" in piece else exact(piece["data"]))
            cut = len(data) if "left_out" in piece else data.rfind(b"\n") + 1
            is_long = not cut and len(data) > _LONGEST
            if (at := find(data if is_long else data[:cut])) >= 0:
                return Search(start + at, start + at, False)
            if is_long:  # a match may begin at its end
                cut = len(data) - _LONGEST // 16
            rest, position = data[cut:], piece["next"]
            if position - begin >= SCAN or time.monotonic() > ends:
                return Search(None, position - len(rest), False)
    at = find(rest)
    return Search(position - len(rest) + at if at >= 0 else None, position, True)


async def search_backward(facts: Facts, task: str, attempt: int, end: int, needle: str) -> Search:
    """Search for text before a position."""
    find_last, ends, reached = _last(needle), time.monotonic() + PATIENCE, end
    while reached > 0:
        begin = max(0, reached - _BACK)
        pieces, _ = await _read(facts, task, attempt, begin, min(end, reached + len(needle.encode()) * 2))
        for start, data, _ in reversed(pieces):
            if (at := find_last(data)) >= 0:
                return Search(start + at, start + at, False)
        is_gap = bool(begin and pieces and pieces[0][2])
        reached = await _gap_begin(facts, task, attempt, begin) if is_gap else begin
        if end - reached >= SCAN or time.monotonic() > ends:
            return Search(None, reached, not reached)
    return Search(None, 0, True)


Finder = Callable[[bytes], int]
"""Returns where in some lines the first match begins, or -1."""


def text_finder(needle: str) -> Finder:
    """Return a finder of text, whatever its case."""
    if needle.isascii():
        lowered = needle.lower().encode()
        return lambda data: data.lower().find(lowered)
    pattern = _any_case(needle)
    return lambda data: match.start() if (match := pattern.search(data)) else -1


def _last(needle: str) -> Finder:
    if needle.isascii():
        lowered = needle.lower().encode()
        return lambda data: data.lower().rfind(lowered)
    pattern = _any_case(needle)
    return lambda data: max((match.start() for match in pattern.finditer(data)), default=-1)


def _any_case(needle: str) -> re.Pattern[bytes]:
    """Return a pattern of bytes. Bytes have no case beyond ASCII, so it lists both forms of each letter."""
    letters = ("|".join(re.escape(form) for form in {letter.lower(), letter.upper()}) for letter in needle)
    return re.compile("".join(f"(?:{forms})" for forms in letters).encode())


_HINTS = (
    b"traceback",
    b"error",
    b"exception",
    b"fatal",
    b"critical",
    b"panic",
    b"segmentation",
    b"core dumped",
    b"killed",
    b"out of memory",
)
_ERROR = re.compile(
    rb"Traceback \(most recent call last\)"
    rb"|\b[A-Za-z_][\w.]*(?:Error|Exception)\b(?:: |:?\s*$)"  # the last line of a traceback, of Java's too
    rb"|\b(?:ERROR|FATAL|CRITICAL|PANIC)\b"
    rb"|(?i:\b(?:fatal )?error: (?![-+.\d]))|(?i:\bpanic: )"  # `error: 0.02` is a measure
    rb"|(?i:\bsegmentation fault\b|\bcore dumped\b|\bout of memory\b)|\bKilled\b\s*$"
)


def find_error(data: bytes) -> int:
    """Return where the first line begins that reports an error, or -1: a finder. Lines with a hint are read closely, all others are not."""
    lowered, first = data.lower(), -1
    for hint in _HINTS:
        at = lowered.find(hint)
        while at >= 0 and (first < 0 or at < first):
            begin = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            if _ERROR.search(data[begin : min(end, begin + 4096)].rstrip(b"\r")):
                first = begin
                break
            at = lowered.find(hint, end)
    return first


# -- reading --


async def _read(
    facts: Facts, task: str, attempt: int, begin: int, end: int, newest: int | None = None
) -> tuple[list[tuple[int, bytes, int]], bool]:  # fmt: skip
    """Read what is between two positions. Return (position, bytes, bytes left out) in order, and whether nothing follows.

    `newest`: only as many of the newest bytes are kept.
    """
    rows: list[tuple[int, bytes, int]] = []
    async with aclosing(facts.log(task, attempt, begin, False)) as pieces:
        async for piece in pieces:
            start, left_out = piece["offset"], piece.get("left_out", 0)
            data = b"" if left_out else exact(piece["data"])[: end - start]
            if rows and data and not rows[-1][2]:
                start, before, _ = rows.pop()
                data = before + data
            if newest is not None and len(data) > newest:
                start, data = start + len(data) - newest, data[-newest:]
                rows.clear()
            rows.append((start, data, left_out))
            if piece["next"] >= end:
                return rows, False
    return rows, True


async def _gap_begin(facts: Facts, task: str, attempt: int, position: int) -> int:
    """Return where the gap begins that has a position in it: by halves, for only its end can be read."""
    low, high = 0, position
    while low < high:
        middle = (low + high) // 2
        async with aclosing(facts.log(task, attempt, middle, False)) as pieces:
            piece = await anext(aiter(pieces), None)
        if piece is not None and "left_out" in piece and piece["next"] >= position:
            high = middle
        else:
            low = middle + 1
    return high


def _lines(
    rows: list[tuple[int, bytes, int]], keep_first: bool, is_last: bool, keep_rest: bool = False
) -> tuple[list[Line], int]:
    """Return the lines, and the position after the last whole one.

    `keep_first`: the first bytes begin a line; else they are dropped, as the end of a line. A line without an end is open where nothing
    follows (`is_last`), is kept where `keep_rest`, and is else left for the next window. An only line is kept in any case.
    """
    lines: list[Line] = []
    end = 0
    for row, (start, data, left_out) in enumerate(rows):
        if left_out:
            lines.append(Line(start, left_out=left_out))
            end = start + left_out
            continue
        if not row and not keep_first and 0 < (skipped := data.find(b"\n") + 1) < len(data):
            start, data = start + skipped, data[skipped:]
        *whole, rest = data.split(b"\n")
        for text in whole:
            lines.append(Line(start, text))
            start += len(text) + 1
        end = start
        if rest and row == len(rows) - 1 and is_last:
            lines.append(Line(start, rest, open=True))
        elif rest and (row < len(rows) - 1 or keep_rest or not lines):
            lines.append(Line(start, rest))
            end = start + len(rest)
    return lines, end
