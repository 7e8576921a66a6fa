"""Records a run of the digits example as a picture of a terminal: `python docs/record.py docs/run.svg`.

The command runs on a terminal of its own; what it draws is replayed into a screen. The last moment with live rows and the end are kept, and
written as SVG. Nothing in the picture is made up.
"""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
WIDTH = 100
SHOWN = 26  # lines of the picture
_MOVES = re.compile(r"\x1b\[(\d*)([A-Za-z])|\x1b\[\?\d+[hl]")


def main() -> None:
    """Run the example and write the picture."""
    target = Path(sys.argv[1])
    shown = ["tm run examples/digits/job.yaml"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "40"}
    environment.pop("NO_COLOR", None)
    output = on_terminal(shown[0].split(), environment)
    middle, end = frames(output)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("$ " + shown[0], style="bold"))
    for line in [*middle, *end][-SHOWN:]:
        console.print(Text.from_ansi(line), soft_wrap=True)
    picture = console.export_svg(title="trainmaster")
    picture = re.sub(
        r"@font-face \{.*?\}", "", picture, flags=re.DOTALL
    )  # fetched from nowhere: any monospaced font will do
    target.write_text(picture.replace(f"{ROOT}/", ""))  # where the clone lies is nobody's business


def on_terminal(command: list[str], environment: dict[str, str]) -> str:
    """The bytes that a command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    command[0] = str(Path(sys.executable).with_name(command[0]))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT, close_fds=True
    )
    os.close(theirs)
    content = b""
    while select.select([ours], [], [], 120)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        content += piece
    os.close(ours)
    if process.wait():
        sys.exit(f"the example ended with status {process.returncode}:\n{content.decode(errors='replace')}")
    return content.decode(errors="replace")


def frames(output: str) -> tuple[list[str], list[str]]:
    """The fullest moment with live rows, and what is left on the screen at the end."""
    lines: list[str] = [""]
    at = 0
    fullest: list[str] = []
    for part in re.split(r"(\x1b\[\d*[A-Za-z]|\x1b\[\?\d+[hl]|\r?\n)", output):
        move = _MOVES.fullmatch(part)
        if part in ("\n", "\r\n"):
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif move and move[2] == "A":
            if len([line for line in lines if "MiB" in line or "GiB" in line]) >= len(
                [line for line in fullest if "MiB" in line or "GiB" in line]
            ):
                fullest = [line for line in lines if line.strip()]
            at = max(0, at - int(move[1] or 1))
        elif move and move[2] == "K":
            lines[at] = ""
        elif move is None or move[2] == "m":
            lines[at] += part.replace("\r", "")
    end = [line for line in lines if line.strip()]
    rows = [line for line in fullest if line not in end]
    return [line for line in fullest if line in end or line in rows][-18:], [
        line for line in end if line not in fullest
    ]


if __name__ == "__main__":
    main()
