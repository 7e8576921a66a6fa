"""Pages are read as a reader reads them, and a page that is wrong fails with its place, its command and what that printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Home
from documents.expected import missing
from documents.page import Block, File, read_page
from documents.terminal import opened
from documents.test_console import Reading, reader

__all__ = ["reader"]  # a fixture

PAGE = """
```yaml title="job.yaml"
name: digits
```

<!-- before: cd work -->
<!-- not run (ssh): needs another machine -->
```console
$ echo one \\
    two
one two
$ ssh HOST
```
"""


def test_a_page_has_files_commands_and_markers() -> None:
    file, block = read_page(PAGE)
    assert isinstance(file, File)
    assert (file.name, file.text) == ("job.yaml", "name: digits\n")
    assert isinstance(block, Block)
    assert block.before == ("cd work",)
    echo, ssh = block.commands
    assert (echo.line, echo.text, echo.expected) == (9, "echo one \\\n    two", ("one two",))
    assert ssh.why_not == "needs another machine"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("<!-- maybe: later -->\n```console\n$ true\n```", "line 2: unknown marker 'maybe: later'"),
        ("```console\ntrue\n```", "line 2: a console block begins with a command"),
    ],
)
def test_what_cannot_be_read_is_an_error(page: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(read_page(page))


def test_figures_may_differ_and_words_may_not() -> None:
    values: dict[str, str] = {}
    shown = ["sh-c5w66m  succeeded after 1.5 s", "...", "pid 32744, ..., rank 1 of 2"]
    assert not missing(shown, "noise\nsh-abcdef succeeded after 2 m 3 s\npid 71, a, b, rank 1 of 2", values)
    assert values == {"c5w66m": "abcdef", "32744": "71"}
    assert missing(["rank 1 of 2"], "rank 0 of 2", {}) == ["rank 1 of 2"]


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ("$ cat nothing", "exit status 1, not 0\nit printed\ncat: nothing: No such file or directory"),
        ("$ false\n$ echo $?\n2", "exit status 1, not 2"),
        ("$ echo hello\ngoodbye", "its output lacks\ngoodbye\nit printed\nhello"),
    ],
)
def test_a_wrong_page_fails_with_its_place(commands: str, words: str, reader: dict[str, str], home: Home) -> None:
    first, *_ = read_page(f"# A page\n\n```console\n{commands}\n```\n")
    with (
        opened(Path(reader["HOME"]) / "digits", reader) as terminal,
        pytest.raises(pytest.fail.Exception) as failure,
    ):
        Reading("page.md", terminal, home.state).do(first)
    command = commands.partition("\n")[0]
    assert str(failure.value).startswith(f"page.md:4: {command}\n{words}")


def test_a_command_that_goes_on_is_ended_by_ctrl_c(reader: dict[str, str]) -> None:
    with opened(Path(reader["HOME"]), reader) as terminal:
        result = terminal.run("echo seen; sleep 1000", 60, lambda output: "seen" in output)
    assert (result.output, result.status) == ("seen", 130)
