"""Results of other systems' programs: each is run as a command, judged by its exit status, and written as a row of README.md.

A program prints its own figures; the last line that begins with `figures:` is kept. A command that exits with 75 (`EX_TEMPFAIL`) refused
the program for something that is missing; its last line says what.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REFUSED = 75
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
VERDICTS = {0: "passed", REFUSED: "refused"}


@dataclass(frozen=True)
class Program:
    """One program of theirs: a name, the command that runs it, its variables, and the seconds that it may take."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    limit: float = 1800.0


@dataclass(frozen=True)
class Result:
    system: str
    name: str
    verdict: str  # passed, refused or failed
    seconds: float
    words: str


RunPrograms = Callable[[Path, Path], Iterable[Program]]  # a checkout, a folder for what is made -> what is to run


class Report:
    """Runs programs one after the other, and keeps their results."""

    def __init__(self, work: Path | None, only: str) -> None:
        self.work = Path(tempfile.mkdtemp(prefix="theirs-")) if work is None else work.resolve()
        self.only = only
        self.results: list[Result] = []

    def collect(self, system: str, source: Path, run_programs: RunPrograms) -> None:
        folder = self.work / system
        folder.mkdir(parents=True, exist_ok=True)
        for program in run_programs(source, folder):
            if self.only in f"{system} {program.name}":
                self.results.append(self._run(system, program, folder))

    def has_failures(self) -> bool:
        return any(result.verdict == "failed" for result in self.results)

    def write(self, page: Path) -> None:
        """Put the rows of this run in the place of the last run's rows of the same programs."""
        head, rest = page.read_text().split(BEGIN)
        old, tail = rest.split(END)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        origin = f"{time.strftime('%Y-%m-%d')}, {commit.stdout.strip()}"
        rows = {tuple(row.split(" | ")[:2]): row for row in old.strip().splitlines()[2:]}
        for result in self.results:
            words = result.words.replace("|", "\\|")
            row = (
                f"| {result.system} | {result.name} | {result.verdict} | {result.seconds:.0f} s | {words} | {origin} |"
            )
            rows[tuple(row.split(" | ")[:2])] = row
        table = [
            "| system | program | result | time | figures, or why | run |",
            "|---|---|---|---|---|---|",
            *rows.values(),
        ]
        page.write_text(f"{head}{BEGIN}\n" + "\n".join(table) + f"\n{END}{tail}")

    def _run(self, system: str, program: Program, folder: Path) -> Result:
        log = folder / f"{program.name.replace('/', '_').replace(' ', '_')}.log"
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                program.command, cwd=folder, env={**os.environ, **program.environ}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status = process.wait(program.limit)
            except subprocess.TimeoutExpired:
                status = -1
            finally:  # a program may leave workers behind
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        seconds = time.monotonic() - began
        verdict = VERDICTS.get(status, "failed")
        words = f"no end within {program.limit:.0f} s" if status == -1 else _last_words(log, verdict)
        print(f"{system} {program.name}: {verdict} in {seconds:.0f} s; {words}", file=sys.stderr)
        return Result(system, program.name, verdict, seconds, words)


def _last_words(log: Path, verdict: str) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    figures = [line.removeprefix("figures:").strip() for line in lines if line.startswith("figures:")]
    return figures[-1] if figures else "" if verdict == "passed" or not lines else lines[-1][:200]
