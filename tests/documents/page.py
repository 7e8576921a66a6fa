"""Read a page of the documents: its console blocks, the files that it shows, and the markers above them.

A block is fenced by ```. In a `console` block, a line that begins with `$ ` is a command, and the lines below it are output that must
appear; `...` stands for anything. A block of another language with a title (```yaml title="job.yaml") is a file of the reader.

A marker is an HTML comment directly above a block:

    <!-- before: COMMANDS -->             what the reader has done before, in the same shell
    <!-- not run: REASON -->              nothing of this block is run
    <!-- not run (ssh, kinit): REASON --> the commands of this block that contain one of these words are not run
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import attrs

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)(?P<options>.*)")
_TITLE = re.compile(r'title="([^"]+)"')
_MARKER = re.compile(r"(?P<kind>before|not run)(?: \((?P<words>[^)]*)\))?: *(?P<value>.*)", re.DOTALL)


@attrs.frozen
class Command:
    line: int
    text: str
    expected: tuple[str, ...] = ()
    why_not: str = ""  # why it is not run


@attrs.frozen
class Block:
    line: int
    before: tuple[str, ...]
    commands: tuple[Command, ...]

    @property
    def reasons(self) -> list[str]:
        """Why commands of this block are not run, each reason once."""
        return list(dict.fromkeys(command.why_not for command in self.commands if command.why_not))


@attrs.frozen
class File:
    line: int
    before: tuple[str, ...]
    name: str
    text: str


def read_page(text: str) -> Iterator[Block | File]:
    """Yield the console blocks and the files of a page, in their order."""
    lines = text.splitlines()
    number, comments = 0, ""
    while number < len(lines):
        start = number
        if fence := _FENCE.fullmatch(lines[number]):
            number = _end(lines, number + 1, fence["indent"] + "```")
            content = [line.removeprefix(fence["indent"]) for line in lines[start + 1 : number]]
            title = _TITLE.search(fence["options"])
            if fence["language"] == "console":
                before, reasons = _markers(start + 1, comments)
                yield Block(start + 1, before, tuple(_commands(start + 1, content, reasons)))
            elif title:
                yield File(start + 1, _markers(start + 1, comments)[0], title[1], "\n".join(content) + "\n")
            comments = ""
        elif lines[number].lstrip().startswith("<!--"):
            while "-->" not in lines[number]:
                number += 1
            comments += "\n".join(lines[start : number + 1])
        else:
            comments = ""
        number += 1


def _end(lines: Sequence[str], number: int, fence: str) -> int:
    for end in range(number, len(lines)):
        if lines[end] == fence:
            return end
    raise ValueError(f"line {number}: the block has no end")


def _markers(line: int, comments: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the commands before a block, and why commands of it are not run, by the word that they contain."""
    before: list[str] = []
    reasons: dict[str, str] = {}
    for comment in re.findall(r"<!--(.*?)-->", comments, re.DOTALL):
        if not (marker := _MARKER.fullmatch(comment.strip())):
            raise ValueError(f"line {line}: unknown marker {comment.strip()!r}")
        if marker["kind"] == "before":
            before += marker["value"].splitlines()
        else:
            reasons |= {word.strip(): marker["value"] for word in (marker["words"] or "").split(",")}
    return tuple(before), reasons


def _commands(line: int, content: Sequence[str], reasons: Mapping[str, str]) -> Iterator[Command]:
    number = 0
    while number < len(content):
        if not content[number].startswith("$ "):
            raise ValueError(f"line {line + 1 + number}: a console block begins with a command: $ ...")
        start, text = number, [content[number].removeprefix("$ ")]
        while text[-1].endswith("\\") and number + 1 < len(content):
            number += 1
            text.append(content[number])
        number += 1
        output = number
        while number < len(content) and not content[number].startswith("$ "):
            number += 1
        command = "\n".join(text)
        why_not = next((why for word, why in reasons.items() if word in command), "")
        yield Command(line + 1 + start, command, tuple(content[output:number]), why_not)
