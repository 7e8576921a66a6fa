"""Find the lines in which a program describes its own failure, where they are more than the last lines of its log.

Three sources have them. Programs that are wrapped by `torch.distributed.elastic`'s `record`, and torchrun for the first of its workers
that failed, write the exception as JSON to the file that TORCHELASTIC_ERROR_FILE names (error_handler.py there). Python's
`faulthandler` prints the stacks of all threads when a signal kills the interpreter, after which the extension modules may fill
more than the last lines. `runtime.reports.cannot_go_on` writes the same JSON, with "is_lasting" beside the message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainmaster.agent.output.spool import tail
from trainmaster.core.foreign import printable

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LARGEST = 1024 * 1024  # bytes of an error file that are read
FAR = 128 * 1024  # bytes of the end of a log in which a fault is looked for
_FATAL = "Fatal Python error:"
_LINE = 2000  # characters


class ErrorFiles:
    """The error files of one attempt's copies."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self._redact = redact  # before a text is cut: half of a secret is not known as one
        self._paths: list[str] = []
        self._before: dict[str, float] = {}  # when each was last changed, at the start

    def variables(
        self, environ: Mapping[str, str], copies: Sequence[Mapping[str, str]], stem: str
    ) -> tuple[dict[str, str], ...]:
        """Return the variables of each copy, with a file for its error. A file that the program already names stays."""
        is_named = ERROR_FILE in environ
        self._paths = [environ[ERROR_FILE]] if is_named else [f"{stem}-{number}.json" for number in range(len(copies))]
        self._before = {path: _modified(path) for path in self._paths}
        if is_named:
            return tuple(dict(copy) for copy in copies)
        return tuple({ERROR_FILE: path, **copy} for path, copy in zip(self._paths, copies, strict=True))

    def lines(self, count: int) -> list[str]:
        """Return the last lines of the exception that was recorded first; none where no file was written since the start."""
        for path in self._written():
            if text := recorded(path):
                return [line[:_LINE] for line in self._redact(text).splitlines()[-count:]]
        return []

    def why_lasting(self) -> str:
        """Return why the program cannot go on in another attempt either; "" where it does not say so."""
        for path in self._written():
            error = _content(path)
            if isinstance(error, dict) and error.get("is_lasting") is True and isinstance(error.get("message"), str):
                return printable(self._redact(str(error["message"])), _LINE)
        return ""

    def _written(self) -> list[str]:
        """Return the files that were written since the start, the first one first."""
        files = [(modified, path) for path in self._paths if (modified := _modified(path)) != self._before[path]]
        return [path for _, path in sorted(files)]


def recorded(path: str) -> str:
    """Return the stack, or the message, in an error file; "" where it has none."""
    error = _content(path)
    if isinstance(error, dict):
        stack = (error.get("extraInfo") or {}).get("py_callstack")
        error = stack or error.get("message")
    return error.strip() if isinstance(error, str) else ""


def _content(path: str) -> Any:
    """Return the "message" of an error file: an object or a text; None where it has none."""
    try:
        with open(path, "rb") as file:
            error = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return error.get("message") if isinstance(error, dict) else None


def lines(path: str, count: int) -> list[str]:
    """Return the start of the last `faulthandler` output in a log: the signal, and the stack of the thread that it hit."""
    log = tail(path, FAR, FAR)
    begin = next((n for n in range(len(log) - 1, -1, -1) if log[n].startswith(_FATAL)), None)
    if begin is None or begin >= len(log) - count:  # it is among the last lines anyway
        return []
    current = next((n for n in range(begin, len(log)) if log[n].startswith("Current thread")), begin + 1)
    end = next((n for n in range(current, len(log)) if not log[n].strip()), len(log))
    return [log[begin], *log[current:end]][:count]


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return -1.0
