"""The programs that can have a template: those that a plain `python script.py` or `python -m module` runs.

A command that is text counts where a shell would do nothing with it but execute it. The running program's executable, and the environment
that it began with, show whether the interpreter is the one on PATH or a script that starts another. A shell that waits for the program has
the program as its only child; a warm start does without the shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import attrs

from trainmaster.core.plain import Plain

ENDED = "the program has ended already"
_PLAIN = re.compile(r"[\w@%+:,./-][\w@%+=:,./-]*(\s+[\w@%+=:,./-]+)*", re.ASCII)  # nothing that a shell expands
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_FLAGS = re.compile(r"-[uBObq]+")


@attrs.frozen(slots=True, eq=False, repr=False)
class PythonCommand(Plain):
    """A command that runs a Python program. `form`: "file" or "module"; `target`: its path or name.

    `harmless`: the same interpreter with the same flags, and a program that does nothing.
    """

    words: Sequence[str]
    harmless: Sequence[str]
    form: str
    target: str

    def folder(self, cwd: str) -> str:
        """Return the directory that the interpreter puts first on sys.path."""
        return cwd if self.form == "module" else os.path.dirname(os.path.realpath(os.path.join(cwd, self.target)))


def python_command(command: Sequence[str] | str) -> PythonCommand | None:
    """Return what the command runs, or None where it is not a plain `python script.py` or `python -m module`."""
    if isinstance(command, str):
        if not _PLAIN.fullmatch(command.strip()):
            return None
        words = command.split()
    else:
        words = list(command)
    if not words or not _PYTHON.fullmatch(os.path.basename(words[0])):
        return None
    rest = words[1:]
    while rest and _FLAGS.fullmatch(rest[0]):
        rest = rest[1:]
    harmless = (*words[: len(words) - len(rest)], "-c", "")
    if len(rest) > 1 and rest[0] == "-m":
        return PythonCommand(tuple(words), harmless, "module", rest[1])
    if rest and not rest[0].startswith("-") and rest[0].endswith(".py"):
        return PythonCommand(tuple(words), harmless, "file", rest[0])
    return None


def oddity(pid: int, command: PythonCommand, environ: Mapping[str, str], cwd: str) -> str:
    """Return how the running program differs from one that the interpreter on PATH runs by this command; "" where it does not."""
    try:
        executable = os.path.realpath(f"/proc/{pid}/exe", strict=True)
        with open(f"/proc/{pid}/environ", "rb") as file:
            born = {tuple(entry.partition(b"=")[::2]) for entry in file.read().split(b"\0") if entry}
    except OSError:
        return ENDED
    if executable != _executable(command.words[0], environ, cwd):
        return f"{executable} runs it, and not {command.words[0]} itself"
    names = {
        os.fsdecode(name) for name, _ in born ^ {(os.fsencode(name), os.fsencode(environ[name])) for name in environ}
    }
    return f"what starts it changes {', '.join(sorted(names))}" if names else ""


def _executable(name: str, environ: Mapping[str, str], cwd: str) -> str:
    """Return the file that is executed by this name."""
    folders = [""] if "/" in name else environ.get("PATH", os.defpath).split(":")
    paths = (os.path.join(cwd, folder, name) for folder in folders)
    return os.path.realpath(next((path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)), name))


def mapped_files(pid: int) -> list[str]:
    """Return the files that a process has mapped: its libraries, compiled modules among them."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.rstrip("\n").split(maxsplit=5) for line in file]
    except OSError:
        return []
    return sorted({fields[5] for fields in lines if len(fields) == 6 and fields[5].startswith("/")})


def private_memory(pid: int) -> int:
    """Return the bytes that a process shares with no file: those that it costs."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"RssAnon:")), 0)
    except OSError:
        return 0
