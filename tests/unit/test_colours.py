"""Colours: on a terminal, unless NO_COLOR is set or --color says otherwise."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

TM = [sys.executable, "-m", "trainmaster.cli"]


def shown(arguments: list[str], is_terminal: bool, **environ: str) -> str:
    """What a command prints, to a terminal or to a pipe."""
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    if not is_terminal:
        done = subprocess.run(
            [*TM, *arguments], capture_output=True, text=True, check=False, env=clean | environ, timeout=60
        )
        return done.stdout + done.stderr
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*TM, *arguments], stdout=theirs, stderr=theirs, env=clean | {"TERM": "xterm"} | environ
    ) as process:
        os.close(theirs)
        output = b""
        try:
            while piece := os.read(ours, 65536):
                output += piece
        except OSError:  # nobody writes any more
            pass
        process.wait(60)
    os.close(ours)
    return output.decode()


@pytest.mark.parametrize(
    ("options", "is_terminal", "environ", "has_colours"),
    [
        ([], True, {}, True),
        ([], False, {}, False),
        ([], True, {"NO_COLOR": "1"}, False),
        ([], True, {"NO_COLOR": ""}, True),
        (["--color", "never"], True, {}, False),
        (["--color=always"], False, {}, True),
        (["--color=always"], True, {"NO_COLOR": "1"}, True),
        (["--color=auto"], True, {"NO_COLOR": "1"}, False),
    ],
)
def test_words_have_colours(
    home, options: list[str], is_terminal: bool, environ: dict[str, str], has_colours: bool
) -> None:
    """Before the command and after it; an error is printed outside of both."""
    for line in ([*options, "status", "nothing"], ["status", *options, "nothing"]):
        output = shown(line, is_terminal, **environ)
        assert "there is no job nothing" in output
        assert ("\x1b[3" in output) is has_colours, output


@pytest.mark.parametrize("options", [[], ["--color=never"]])
def test_a_watched_job_has_colours(home, options: list[str]) -> None:
    """Its failure, and what leads the lines of its tasks."""
    output = shown(
        ["run", *options, "-n", "2", "--restart", "never", "--", "sh", "-c", "echo hello; sleep 1; exit 3"], True
    )
    assert "hello" in output
    assert ("m\x1b[0m" in output or "\x1b[3" in output or "\x1b[1m" in output) is (not options), output
