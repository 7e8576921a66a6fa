"""Lines of programs as HTML: for any bytes well-formed, with no tag but spans, and with the text that the terminal shows."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.web.pages import ansi
from trainmaster.web.pages.render import STATIC
from trainmaster.words.text import clean

CLASS = re.compile(r"(?:[bdiusv]|hit|[fck](?:\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5]))")
PIECES = [
    "a", "<script>alert(1)</script>", "&amp;", '"', "'", "\r", "\b", "\t", "\x00", "\x1b", "\x1b[31m", "\x1b[1;4;7m", "\x1b[0m", "\x1b[m",
    "\x1b[38;5;200m", "\x1b[48;2;1;2;3m", "\x1b[38:2::9:8:7m", "\x1b[48;5m", "\x1b[99999999999999999999m",
    "\x1b]8;;http://x\x1b\\", "\x1b(B", "\x1b[2K", "\u202e", "\x9b", "é", "\U0001f600",
]  # fmt: skip
lines = st.one_of(
    st.binary(max_size=200).map(lambda data: data.replace(b"\n", b"")),
    st.lists(st.sampled_from([piece.encode() for piece in PIECES] + [b"\xff", b"\xc3"])).map(b"".join),
)


class Spans(HTMLParser):
    """Reads HTML, and fails at all that is no text and no span of ours."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.depth, self.classes = "", 0, list[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag == "span"
        assert self.depth == 0
        ((name, value),) = attributes
        assert name == "class"
        self.classes = str(value).split(" ")
        assert all(CLASS.fullmatch(part) for part in self.classes), value
        self.depth = 1

    def handle_endtag(self, tag: str) -> None:
        assert (tag, self.depth) == ("span", 1)
        self.depth = 0

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


def read(html: str) -> str:
    spans = Spans()
    spans.feed(html)
    spans.close()
    assert spans.depth == 0
    return spans.text


@given(lines, st.sampled_from([None, "a", "<", "é", "sCrIpT"]))
def test_any_bytes_are_text_in_spans(line: bytes, search: str | None) -> None:
    pattern = None if search is None else re.compile(re.escape(search), re.IGNORECASE)
    text = read(ansi.html(line, pattern))
    assert text == clean(line.decode("utf-8", "surrogateescape"), colours=False)
    assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f]", text)


@pytest.mark.parametrize(
    ("line", "html"),
    [
        ("plain <b>", "plain &lt;b&gt;"),
        ("\x1b[31mred\x1b[0m no", '<span class="f1">red</span> no'),
        ("\x1b[1;38;5;208mx", '<span class="b f208">x</span>'),
        ("\x1b[38;2;255;0;0mx\x1b[39my", '<span class="f196">x</span>y'),
        ("\x1b[38:2::0:0:255mx", '<span class="f21">x</span>'),
        ("\x1b[4munder\x1b[24m\x1b[3mslant", '<span class="u">under</span><span class="i">slant</span>'),
        ("\x1b[97mx", '<span class="f15">x</span>'),
        ("\x1b[41mx", '<span class="c231 k1">x</span>'),  # white is legible there
        ("\x1b[37;44mx", '<span class="c7 k4">x</span>'),
        ("\x1b[34;44mhidden", '<span class="c231 k4">hidden</span>'),
        ("\x1b[7mx", '<span class="v">x</span>'),
        ("\x1b[7;31mx", '<span class="c231 k1">x</span>'),
        ("\x1b[31m10 %\r\x1b[32m20 %", '<span class="f2">20 %</span>'),
        ("10/100\b\b\b\b\b\b20/100", "20/100"),
        ("\x1b[35;48mx", '<span class="f5">x</span>'),
        ("http://example.org/?a=1&b=2", "http://example.org/?a=1&amp;b=2"),
    ],
)
def test_a_line_is_shown_as_the_terminal_shows_it_in_the_end(line: str, html: str) -> None:
    assert ansi.html(line) == html


def test_matches_are_marked_across_colours() -> None:
    pattern = re.compile("error", re.IGNORECASE)
    assert ansi.html("an \x1b[31mER\x1b[32mROR!", pattern) == (
        'an <span class="f1 hit">ER</span><span class="f2 hit">ROR</span><span class="f2">!</span>'
    )


def test_every_colour_is_legible() -> None:
    for theme, paper in ansi.PAPER.items():
        assert min(ansi.contrast(ansi.on_paper(colour, theme), paper) for colour in ansi.palette()) >= ansi.CONTRAST
    for back in range(256):
        for letters in (None, *range(0, 256, 5)):
            assert ansi.contrast(ansi.palette()[ansi.legible(letters, back)], ansi.palette()[back]) >= ansi.CONTRAST


def test_the_stylesheet_is_current() -> None:
    assert (STATIC / "ansi.css").read_text() == ansi.stylesheet()


def test_marking_a_search_takes_work_in_proportion_to_the_line() -> None:
    def work(size: int) -> float:
        """Return the seconds of this thread's own work."""
        line, search = "ab " * size, re.compile("a")
        began = time.thread_time()
        assert ansi.html(line, search).count("hit") == size
        return time.thread_time() - began

    assert min(work(80_000) for _ in range(3)) < 9 * min(
        work(20_000) for _ in range(3)
    )  # in proportion 4, as its square 16
