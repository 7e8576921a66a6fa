"""The console blocks of the documents are true: each page is typed into a terminal, word by word, and shows what it says.

A reader called ada has a clone of the repository in ~/src/trainmaster, and programs of her own in ~/digits, where each page begins
(tests/programs/reader). `JOB` is the newest job of the page. page.py says how a page names what cannot be run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from conftest import Home
from documents.expected import missing
from documents.page import Block, Command, File, read_page
from documents.terminal import Result, Terminal, opened

ROOT = Path(__file__).parents[2]
READER = ROOT / "tests/programs/reader"
BIN = Path(sys.executable).parent
LIMIT = 120.0  # s for one command
SHOWN = 30  # lines at the beginning and at the end of the output in a failure

FULL = (
    "README.md",
    "docs/index.md",
    "docs/tutorial.md",
    "docs/guides/models.md",
    "docs/guides/embeddings.md",
    "docs/coming-from/torchrun.md",
)
PAGES = [
    "README.md",
    *(
        str(page.relative_to(ROOT))
        for page in sorted(
            [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md"), ROOT / "docs/coming-from/torchrun.md"]
        )
        if "```console" in page.read_text()
    ),
]
# What runs until the reader has seen enough of it, or until `grep -m` has.
WATCHES = re.compile(
    r"^(?!.*grep -m).*(\btm (ui|top|attach|retry|chaos|tensorboard)\b|\btm (logs|events) .*-f\b|\btm .*--(follow|every)\b|ask -N)"
)
ID = re.compile(r"\b([a-z][a-z0-9]*(?:-[a-z0-9]+)*)-(?=[a-z]*\d)([a-z0-9]{6})\b")


@attrs.define
class Reading:
    """One page, read and typed."""

    page: str
    terminal: Terminal
    state: Path
    values: dict[str, str] = attrs.field(factory=dict)  # ids and numbers of the page -> those of this run
    jobs: list[str] = attrs.field(factory=list)  # the oldest first

    def do(self, step: Block | File) -> None:
        for text in step.before:
            self._run(Command(step.line, text))
        if isinstance(step, File):
            self._write(step)
            return
        for number, command in enumerate(step.commands):
            if not command.why_not:
                self._run(command, _status(command, step.commands[number + 1 : number + 2]))

    def _write(self, file: File) -> None:
        if not file.name.startswith("/"):
            place = Path(self.terminal.run("pwd", LIMIT).output.strip())
            (place / file.name).write_text(file.text)

    def _run(self, command: Command, status: int = 0) -> None:
        text = self._filled(command.text)
        is_watch = WATCHES.search(text.partition(" #")[0])
        seen: Callable[[str], bool] | None = None
        if is_watch:
            seen = lambda output: bool(output.strip()) and not missing(command.expected, output, {})  # noqa: E731
        begin = time.monotonic()
        result = self.terminal.run(text, LIMIT, seen)
        print(f"{time.monotonic() - begin:6.1f} s  $ {text}")
        self._note_jobs()
        if result.status not in ((0, 130) if is_watch else (status,)):
            self._fail(command, text, f"exit status {result.status}, not {status}", result)
        if absent := missing(command.expected, result.output, self.values):
            self._fail(command, text, "\n".join(["its output lacks", *absent]), result)

    def _filled(self, text: str) -> str:
        for shown, here in self.values.items():
            text = re.sub(rf"(?<![a-z0-9]){shown}\b", here, text)
        text = ID.sub(
            lambda match: match[0] if match[0] in self.jobs else self._newest(match[1] + "-") or match[0], text
        )
        return re.sub(r"(?<![\w$])JOB\b", self._newest() or "JOB", text)

    def _newest(self, prefix: str = "") -> str:
        return next((job for job in reversed(self.jobs) if job.startswith(prefix)), "")

    def _note_jobs(self) -> None:
        found = {path.name: path.stat().st_ctime for path in self.state.glob("jobs/*") if path.name not in self.jobs}
        self.jobs += sorted(found, key=lambda job: found[job])

    def _fail(self, command: Command, text: str, what: str, result: Result) -> None:
        lines = result.output.splitlines()
        if len(lines) > 2 * SHOWN:
            lines[SHOWN:-SHOWN] = ["..."]
        output = "\n".join(lines)
        pytest.fail(f"{self.page}:{command.line}: $ {text}\n{what}\nit printed\n{output}", pytrace=False)


def _status(command: Command, following: tuple[Command, ...]) -> int:
    """The exit status that a page says: the one that `echo $?` shows behind the command; 2 for an error of `tm`; else 0."""
    if following and following[0].text == "echo $?":
        return int(following[0].expected[0])
    return 2 if any(line.startswith("error: ") for line in command.expected) else 0


@pytest.fixture
def reader(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a reader, whose home directory is new; jobs that a page leaves running are ended."""
    place = tmp_path / "ada"
    (place / ".local/state").mkdir(parents=True)
    home.state.mkdir(exist_ok=True)
    (place / ".local/state/trainmaster").symlink_to(home.state)
    shutil.copytree(READER, place / "digits")
    clone = place / "src/trainmaster"
    clone.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.is_file():
            shutil.copy2(entry, clone)
        elif entry.name not in (".git", "examples"):
            (clone / entry.name).symlink_to(entry)
    kept = shutil.ignore_patterns("data", "out", "ckpt", "model", "__pycache__")
    shutil.copytree(ROOT / "examples", clone / "examples", ignore=kept)
    outer = ("TRAINMASTER_STATE_DIR", "COLUMNS", "LINES", "DISPLAY", "VIRTUAL_ENV", "NO_COLOR")
    env = {name: value for name, value in os.environ.items() if name not in outer and not name.startswith("XDG_")}
    path = f"{BIN}{os.pathsep}{env['PATH']}"
    env |= {"HOME": str(place), "USER": "ada", "LOGNAME": "ada", "PATH": path, "TERM": "xterm", "BROWSER": "true"}
    env["VIRTUAL_ENV_DISABLE_PROMPT"] = "1"
    try:
        yield env
    finally:
        _end_jobs(env)


def _end_jobs(env: dict[str, str]) -> None:
    def tm(*words: str) -> str:
        return subprocess.run(
            ["tm", *words], env=env, capture_output=True, text=True, timeout=LIMIT, check=False
        ).stdout

    for job in json.loads(tm("list", "--running", "--json")):
        tm("kill", job["id"])


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.full, pytest.mark.needs("frameworks")] if page in FULL else [])
        for page in PAGES
    ],
)
def test_a_page_shows_what_happens(
    page: str, reader: dict[str, str], home: Home, record_property: Callable[[str, object], None]
) -> None:
    steps = list(read_page((ROOT / page).read_text()))
    blocks = [step for step in steps if isinstance(step, Block)]
    whole = [block for block in blocks if all(command.why_not for command in block.commands)]
    reasons = list(dict.fromkeys(reason for block in blocks for reason in block.reasons))
    words = f"{page}: {len(blocks) - len(whole)} console blocks run, {len(whole)} not"
    record_property("documents", "; ".join([words, *reasons]))
    print(words, *reasons, sep="; ")
    with opened(Path(reader["HOME"]) / "digits", reader) as terminal:
        reading = Reading(page, terminal, home.state)
        for step in steps:
            reading.do(step)
