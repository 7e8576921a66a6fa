"""Stands in for an agent in tests of the local engine: does what its spec says."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from trainmaster.host import processes


def run(spec: dict[str, Any]) -> None:
    if "exit" in spec:
        sys.exit(spec["exit"])
    if "left" in spec:
        _leave_behind(Path(spec["left"]))
    if "program" in spec:
        _program(spec["job"], spec["task"], spec["serial"], Path(spec["program"]))
    if spec.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def _leave_behind(note: Path) -> None:
    """A process that left our session and has forgotten us, as daemons do."""
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        _sleep(note)


def _program(job: str, task: str, serial: int, note: Path) -> None:
    """A program in a session of its own with a child, marked as an agent marks it."""
    pid = os.fork()
    if not pid:
        os.setsid()
        if os.fork():
            time.sleep(3600)
        _sleep(note)
    processes.mark(job, processes.PROGRAM, task, serial, pid)


def _sleep(note: Path) -> None:
    part = note.with_suffix(".part")
    part.write_text(str(os.getpid()))
    part.rename(note)
    time.sleep(3600)
