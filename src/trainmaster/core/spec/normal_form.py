"""Find known values in bytes that programs wrote, in any writing of them.

Values and bytes are compared in one *normal form*. There, escapes are decoded once: HTML entities, `u0026` and `x26` behind any number of
backslashes, `%26` of URLs. Left out is what shells, YAML, terminals and line breaks put into the middle: quotes, backslashes, line ends,
ANSI sequences. Letters are small, and `+` is a space, as in forms. A value is looked for in hexadecimal digits too. A match is mapped back
to the bytes that were written.

Bytes without an escape take one pass to bring into the normal form; only where something was found is each byte's place counted.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterable

_SHORTEST = 6  # bytes of a normal form that is looked for
_LEFT_OUT = b"\n\r'\"\\"
_KEPT = re.compile(rb"[^\n\r'\"\\]+")
_SMALL = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ+", b"abcdefghijklmnopqrstuvwxyz ")
_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
_ESCAPE = re.compile(
    rb"\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]|&(?:#(?:[0-9]{1,7}|[xX][0-9a-fA-F]{1,6})|amp|lt|gt|quot|apos);|%[0-9a-fA-F]{2}"
    rb"|\\+(?:u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[nrt])"
)
_TORN = re.compile(  # at the end of a piece: the beginning of an escape, and a whole one that may be half of a pair
    rb"(?:\x1b(?:\[[0-?]{0,32}[ -/]{0,4})?|&(?:#[xX]?[0-9a-fA-F]{0,7}|[a-z]{0,4})|%[0-9a-fA-F]?"
    rb"|(?:\\+u[dD][89abAB][0-9a-fA-F]{2})?\\+(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?|\\+u[dD][89abAB][0-9a-fA-F]{2})\Z"
)
_LONGEST_ESCAPE = 48  # bytes at the end that may be a torn one


def normal(data: bytes) -> bytes:
    """Return the normal form of what was written."""
    if b"\\" in data or b"%" in data or b"&" in data or b"\x1b" in data:
        data = _ESCAPE.sub(lambda escape: _decoded(escape[0]), data)
    return data.translate(_SMALL, _LEFT_OUT)


@functools.lru_cache(4096)
def _decoded(text: bytes) -> bytes:
    if text.startswith(b"\x1b"):
        return b""
    if text.startswith(b"&"):
        digits = text[2:-1]
        if not text.startswith(b"&#"):
            return _ENTITIES[text[1:-1]]
        return _written(int(digits[1:], 16) if digits[:1] in b"xX" else int(digits))
    if text.startswith(b"%"):
        return bytes([int(text[1:], 16)])
    codes = text.lstrip(b"\\")
    if codes[:1] == b"u":
        units = [int(unit, 16) for unit in re.findall(rb"u(....)", text)]
        return _written(0x10000 + ((units[0] - 0xD800) << 10) + units[1] - 0xDC00 if len(units) > 1 else units[0])
    return bytes([int(codes[1:], 16)]) if codes[:1] == b"x" else b"\t" if codes == b"t" else b"\n"


def _written(code: int) -> bytes:
    try:
        return chr(code).encode(errors="surrogateescape")
    except (ValueError, OverflowError):  # no character, or half of one
        return b""


class Known:
    """Values that are looked for. Those whose normal form is shorter than 6 bytes are found as they are, or not at all."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self._needles: dict[bytes, frozenset[int]] = {}  # normal form -> how much of it stands before each line end
        self._plain: set[bytes] = set()
        for value in values:
            lines = value.splitlines(keepends=True)
            for form in (normal, lambda data: data.translate(_SMALL, _LEFT_OUT)):
                if len(needle := form(value)) < _SHORTEST:
                    self._plain.add(value)
                    continue
                ends = {len(form(b"".join(lines[:count]))) for count in range(1, len(lines))}
                self._needles[needle] = self._needles.get(needle, frozenset()) | ends
            self._needles.setdefault(value.hex().encode(), frozenset())
        # A value that begins so may be written with an escape at its very beginning.
        self._begins_with_escape = any(not needle[:1].isalnum() for needle in self._needles)

    def __bool__(self) -> bool:
        return bool(self._needles or self._plain)

    def replaced(self, data: bytes, by: bytes) -> bytes:
        """Return the bytes with each value replaced."""
        return self.split(data, by, is_last=True)[0]

    def split(self, data: bytes, by: bytes, is_last: bool = False) -> tuple[bytes, bytes]:
        """Return the bytes that can be used now, each value in them replaced, and the rest, which may begin one."""
        form = normal(data)
        needles = [needle for needle in self._needles if needle in form]
        spans, cut = self._plain_spans(data), len(data)
        begins = [] if is_last else self._begins(data, form)
        if needles or begins:
            places = _places(data)
            spans += _spans(form, needles, places)
            cut = min([cut, *(places[0][begin] for begin in begins if begin < len(places[0]))])
        if not is_last and self._begins_with_escape and (torn := _torn(data)) is not None:
            cut = min(cut, torn)
        spans = _joined(spans)
        for start, end in reversed(spans):
            if start < cut < end:
                cut = start
        parts, at = [], 0
        for start, end in spans:
            if end <= cut:
                parts += [data[at:start], by]
                at = end
        return b"".join([*parts, data[at:cut]]), data[cut:]

    def _begins(self, data: bytes, form: bytes) -> list[int]:
        """Return where in the normal form values may begin whose rest is not there yet."""
        lengths = [(len(form), self._partial_length(data, form))]
        if (torn := _torn(data)) is not None:
            before = normal(data[:torn])
            lengths.append((len(before), self._partial_length(data[:torn], before)))
        return [end - length for end, length in lengths if length]

    def _plain_spans(self, data: bytes) -> list[tuple[int, int]]:
        return [match.span() for value in self._plain for match in re.finditer(re.escape(value), data)]

    def _partial_length(self, data: bytes, form: bytes) -> int:
        """Return how many bytes at the end of the normal form begin a value. After a line end, only values that go on there count."""
        if data.endswith((b"\n", b"\r")):
            lengths = (n for needle, ends in self._needles.items() for n in ends if form.endswith(needle[:n]))
            return max(lengths, default=0)
        return max((_overlap(form, needle) for needle in self._needles), default=0)


def _overlap(form: bytes, needle: bytes) -> int:
    """Return how many bytes at the end of `form` are a beginning of `needle`, but not all of it."""
    first = needle[:1]
    at = form.find(first, max(0, len(form) - len(needle) + 1))
    while at >= 0 and not needle.startswith(form[at:]):
        at = form.find(first, at + 1)
    return len(form) - at if at >= 0 else 0


def _torn(data: bytes) -> int | None:
    """Return where an escape begins that is not whole; None where none does."""
    match = _TORN.search(data, max(0, len(data) - _LONGEST_ESCAPE))
    return match.start() if match is not None else None


def _places(data: bytes) -> tuple[array[int], array[int]]:
    """Return, for each byte of the normal form, where the bytes that it stands for begin, and where they end."""
    begins, ends, at = array("q"), array("q"), 0

    def add(stop: int) -> None:
        for run in _KEPT.finditer(data, at, stop):
            begins.extend(range(*run.span()))
            ends.extend(range(run.start() + 1, run.end() + 1))

    for escape in _ESCAPE.finditer(data):
        add(escape.start())
        size = len(_decoded(escape[0]).translate(_SMALL, _LEFT_OUT))
        begins.extend([escape.start()] * size)
        ends.extend([escape.end()] * size)
        at = escape.end()
    add(len(data))
    return begins, ends


def _spans(form: bytes, needles: Iterable[bytes], places: tuple[array[int], array[int]]) -> list[tuple[int, int]]:
    spans, (begins, ends) = [], places
    for needle in needles:
        at = form.find(needle)
        while at >= 0:
            end = at + len(needle)
            spans.append((begins[at], ends[end - 1]))
            at = form.find(needle, end)
    return spans


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans in order, those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
