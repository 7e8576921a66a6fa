"""Keep the results of other systems' programs as rows of README.md.

Each system has a script `run SOURCE WORK` in the folder of its name. It prints a line for each program: NAME passed|failed|refused WORDS.
The variable ONLY chooses the programs whose names contain it. A row stays until its program is run again.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER / "README.md"
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->"
HEAD = ["| system | program | result | figures, or why | date, commit |", "|---|---|---|---|---|"]
LINE = re.compile(r"(\S+) (passed|failed|refused)(?: (.*))?")


@dataclass(frozen=True)
class Result:
    system: str
    program: str
    verdict: str
    words: str

    def row(self, origin: str) -> str:
        words = self.words.replace("|", "\\|")
        return f"| {self.system} | {self.program} | {self.verdict} | {words} | {origin} |"


def run_system(system: str, source: Path, work: Path, only: str) -> Iterator[Result]:
    """Run a system's programs and give their results as they come. Raises CalledProcessError if `run` itself fails."""
    work.mkdir(parents=True, exist_ok=True)
    command = [str(FOLDER / system / "run"), str(source), str(work)]
    environ = {**os.environ, "ONLY": only}
    with subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if match := LINE.fullmatch(line.strip()):
                yield Result(system, match[1], match[2], match[3] or "")
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def keep(result: Result) -> None:
    """Put a result in the place of its program's last one, or at the end of its system's rows."""
    head, rest = PAGE.read_text().split(BEGIN)
    old, tail = rest.split(END)
    rows = {tuple(row.split(" | ")[:2]): row for row in old.splitlines()[2:]}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    row = result.row(f"{time.strftime('%Y-%m-%d')}, {commit.stdout.strip()}")
    rows[tuple(row.split(" | ")[:2])] = row
    lines = [*HEAD, *sorted(rows.values(), key=lambda text: text.split(" | ")[0])]
    PAGE.write_text(f"{head}{BEGIN}" + "\n".join(lines) + f"\n{END}{tail}")
