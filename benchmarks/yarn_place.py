"""The YARN that figures are measured on: one started on this machine for it, and removed again; and what runs in its containers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import figures

from trainmaster.clusters import hadoop
from trainmaster.clusters.hadoop import Settings

T = TypeVar("T")

LIMIT = 300.0  # s


@contextmanager
def place(settings: Settings) -> Iterator[tuple[dict[str, str], Path]]:
    """The environment of who uses the cluster, and a folder of one's own that its nodes see."""
    with figures.place() as environ, tempfile.TemporaryDirectory(prefix="tm-bench-yarn-") as folder:
        at = Path(folder, "hadoop")
        before = dict(os.environ)
        try:
            environ |= hadoop.up(settings, folder=at).environ
            os.environ.update(environ)
            yield environ, Path(folder)
        finally:
            hadoop.down(folder=at)
            os.environ.clear()
            os.environ.update(before)


def stamps(file: Path, count: int) -> list[float]:
    """When so many programs ran that each append a line of `date +%s.%N`."""
    return until(lambda: lines if len(lines := list(map(float, _lines(file)))) >= count else [])


def until(holds: Callable[[], T]) -> T:
    ends = time.monotonic() + LIMIT
    while not (found := holds()):
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(0.02)
    return found


def pids(of: Mapping[str, str]) -> dict[str, int]:
    """name -> pid, of the processes in containers that have all of a name's words ("container word") in directory and command line."""
    found: dict[str, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            where = os.readlink(f"/proc/{entry}/cwd")
            line = Path(f"/proc/{entry}/cmdline").read_text(errors="replace")
        except OSError:
            continue
        for name, words in of.items():
            container, word = words.split()
            if container in where and word in line and "begin.py" in line:
                found[name] = int(entry)
    return found


def _lines(file: Path) -> list[str]:
    text = file.read_text() if file.exists() else ""
    return text[: text.rfind("\n") + 1].split()
