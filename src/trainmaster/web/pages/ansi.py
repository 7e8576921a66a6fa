"""Lines of programs as HTML: colours and weights as classes, links nowhere, everything else as text.

A line is first what a terminal would show of it in the end (`words.text.last_state`), then a row of runs of one style each, then text and
`span`s. No other tag is made, no attribute but `class`, and no class but those of `stylesheet`: a page's Content-Security-Policy forbids
style attributes. A colour of 24 bits becomes the nearest of the terminal's 256. A style ends with its line, as it does on the terminal.

    f0 .. f255   letters of a colour, made darker or lighter until they are legible on the page
    k0 .. k255   a background of exactly that colour; its letters are
    c0 .. c255   exactly of a colour, black or white where the program's own would not be legible
    b d i u s v  bold, dim, italic, underlined, struck through, inverse;  hit: what was searched for

`python -m trainmaster.web.pages.ansi` prints the stylesheet, which is kept in `static/ansi.css`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from html import escape

import attrs

from trainmaster.log.output import readable
from trainmaster.words.text import CONTROL, last_state

PAPER = {"light": (0xFF, 0xFF, 0xFF), "dark": (0x16, 0x18, 0x1D)}  # what logs are shown on
CONTRAST = 4.5  # WCAG 2.2, 1.4.3
_BLACK, _WHITE = 16, 231
_FIRST = (
    "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff"
)
_STEPS = (0, 95, 135, 175, 215, 255)  # of the cube of 6 x 6 x 6 colours
_FLAGS = {1: "b", 2: "d", 3: "i", 4: "u", 7: "v", 9: "s", 21: "u"}
_OFF = {22: "bd", 23: "i", 24: "u", 27: "v", 29: "s"}

Colour = tuple[int, int, int]


@attrs.frozen(slots=True)
class Style:
    """The style of letters. A colour is its number in the palette, None: the page's own."""

    letters: int | None = None
    back: int | None = None
    flags: str = ""

    @property
    def classes(self) -> str:
        """Return the classes of its span."""
        letters, back, flags = self.letters, self.back, self.flags
        if "v" in flags and (letters, back) != (None, None):
            flags = flags.replace("v", "")
            if letters is not None:  # else the page's own colour, which differs by theme, would be the background
                letters, back = back, letters
        names = list(flags)
        if back is not None:
            names += [f"c{legible(letters, back)}", f"k{back}"]
        elif letters is not None:
            names.append(f"f{letters}")
        return " ".join(names)


_PLAIN = Style()
_NO_MATCH = (sys.maxsize, sys.maxsize)


def html(data: bytes | str, search: re.Pattern[str] | None = None) -> str:
    """Return a line, without its end, as HTML. Matches of `search` are marked."""
    return _spans(_runs(data, search))


def folded_html(data: bytes | str, search: re.Pattern[str] | None, most: int) -> str:
    """Return a line as HTML, in which all but the first `most` characters are folded."""
    runs = _runs(data, search)
    size = sum(len(text) for _, text in runs)
    if size <= most:
        return _spans(runs)
    first, rest = list[tuple[str, str]](), list[tuple[str, str]]()
    room = most
    for classes, text in runs:
        first.append((classes, text[:room]))
        rest.append((classes, text[room:]))
        room = max(0, room - len(text))
    summary = f"{size - most:,} more characters of this line"
    return f"{_spans(first)}<details><summary>{summary}</summary>{_spans(rest)}</details>"


def _spans(runs: list[tuple[str, str]]) -> str:
    return "".join(
        f'<span class="{classes}">{escape(text, quote=False)}</span>' if classes and text else escape(text, quote=False)
        for classes, text in runs
    )


def _runs(data: bytes | str, search: re.Pattern[str] | None) -> list[tuple[str, str]]:
    """Return the classes and the text of each run of one style."""
    text = data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")
    runs = list(_styled(last_state(readable(text))))
    return runs if search is None else list(_marked(runs, search))


def _styled(text: str) -> Iterator[tuple[str, str]]:
    """Yield the classes and the text of each run of one style."""
    style, end, parts = _PLAIN, 0, list[str]()
    for sequence in CONTROL.finditer(text):
        parts.append(text[end : sequence.start()])
        end = sequence.end()
        if sequence[1] and (changed := restyled(style, sequence[1][1:-1])) != style:
            if run := "".join(parts):
                yield style.classes, run
            style, parts = changed, []
    if run := "".join(parts) + text[end:]:
        yield style.classes, run


def _marked(runs: list[tuple[str, str]], search: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Cut runs where a match begins or ends, and mark those within."""
    spans = (match.span() for match in search.finditer("".join(text for _, text in runs)))
    first, last = next(spans, _NO_MATCH)
    at = 0
    for classes, text in runs:
        begin, end = at, at + len(text)
        while at < end:
            if last <= at:
                first, last = next(spans, _NO_MATCH)
            is_hit = first <= at
            stop = min(end, last if is_hit else first)
            yield f"{classes} hit".strip() if is_hit else classes, text[at - begin : stop - begin]
            at = stop


@functools.lru_cache(4096)
def restyled(style: Style, parameters: str) -> Style:
    """Return the style after a sequence `ESC [ parameters m` (ECMA-48, SGR)."""
    codes = [[_number(part) for part in field.split(":")] for field in parameters.split(";")]
    while codes:
        code = codes.pop(0)
        first = code[0]
        if first == 0:
            style = _PLAIN
        elif first in (38, 48):
            if len(code) == 1:  # its parameters are fields of their own: 38;5;N or 38;2;R;G;B
                count = {5: 2, 2: 4}.get(codes[0][0], 1) if codes else 0
                code, codes = [first, *(field[0] for field in codes[:count])], codes[count:]
            if (colour := _colour(code[1:])) is not None:
                style = attrs.evolve(style, letters=colour) if first == 38 else attrs.evolve(style, back=colour)
        elif 30 <= first <= 37 or 90 <= first <= 97:
            style = attrs.evolve(style, letters=first - 30 if first < 40 else first - 82)
        elif 40 <= first <= 47 or 100 <= first <= 107:
            style = attrs.evolve(style, back=first - 40 if first < 50 else first - 92)
        elif first in (39, 49):
            style = attrs.evolve(style, letters=None) if first == 39 else attrs.evolve(style, back=None)
        elif first in _OFF or code[:2] == [4, 0]:
            off = _OFF.get(first, "u")
            style = attrs.evolve(style, flags="".join(flag for flag in style.flags if flag not in off))
        elif first in _FLAGS and _FLAGS[first] not in style.flags:
            style = attrs.evolve(style, flags=style.flags + _FLAGS[first])
    return style


def _number(text: str) -> int:
    return int(text or 0) if len(text) < 4 else -1


def _colour(code: list[int]) -> int | None:
    """Return the number of a colour: of [5, N], [2, R, G, B] or [2, space, R, G, B]; None for another code."""
    if code[:1] == [5] and len(code) == 2 and 0 <= code[1] < 256:
        return code[1]
    if code[:1] == [2] and len(code) >= 4 and all(0 <= part < 256 for part in code[-3:]):
        return nearest((code[-3], code[-2], code[-1]))
    return None


@functools.cache
def palette() -> tuple[Colour, ...]:
    """Return the 256 colours of xterm."""
    first = tuple((int(text[:2], 16), int(text[2:4], 16), int(text[4:], 16)) for text in _FIRST.split())
    cube = tuple((red, green, blue) for red in _STEPS for green in _STEPS for blue in _STEPS)
    return (*first, *cube, *((8 + 10 * step,) * 3 for step in range(24)))


def nearest(colour: Colour) -> int:
    """Return the colour of the cube or of the greys that is nearest."""
    return min(range(16, 256), key=lambda n: sum((a - b) ** 2 for a, b in zip(palette()[n], colour, strict=True)))


@functools.cache
def legible(letters: int | None, back: int) -> int:
    """Return a colour for letters on a background: their own, or else black or white: one of the two always has the contrast."""
    for choice in (letters, _BLACK, _WHITE):
        if choice is not None and contrast(palette()[choice], palette()[back]) >= CONTRAST:
            return choice
    raise AssertionError("black or white is legible on any colour")


def contrast(letters: Colour, back: Colour) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    low, high = sorted((_luminance(letters), _luminance(back)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Colour) -> float:
    red, green, blue = (part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def on_paper(colour: Colour, theme: str) -> Colour:
    """Return a colour, made darker or lighter as far as it must be to be legible on the page."""
    goal = 0 if theme == "light" else 255
    for step in range(101):
        red, green, blue = (round(part + (goal - part) * step / 100) for part in colour)
        if contrast((red, green, blue), PAPER[theme]) >= CONTRAST:
            return red, green, blue
    raise AssertionError("black and white are legible on the page")


def stylesheet() -> str:
    """Return the rules of all colours."""
    light, dark = ([_hex(on_paper(colour, theme)) for colour in palette()] for theme in ("light", "dark"))
    exact = [_hex(colour) for colour in palette()]
    rules = [
        f".log .f{n}{{color:light-dark({light[n]},{dark[n]})}}.log .c{n}{{color:{exact[n]}}}.log .k{n}{{background:{exact[n]}}}"
        for n in range(256)
    ]
    return "\n".join(
        ["/* Colours of programs' output; `python -m trainmaster.web.pages.ansi` makes this file. */", *rules, ""]
    )


def _hex(colour: Colour) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


if __name__ == "__main__":
    print(stylesheet(), end="")
