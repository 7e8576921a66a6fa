"""The engines on which the conformance suite runs, each a row of `ENGINES`, and what a test sees of a job: what its user sees.

A row says how an engine is set up and taken down; all else goes through the Python API and the `tm` command, which are the same for
every engine. Jobs ask for little, so that several fit on any machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from waiting import until

import trainmaster
from trainmaster.client.connect import Past
from trainmaster.core.errors import TrainmasterError

LIMIT = 90.0  # s for a job to end; reached by a failure alone
SMALL = {"cores": 0.05, "memory": "64MiB"}
TM = str(Path(sys.executable).parent / "tm")


def python(program: str) -> list[str]:
    """A Python program as a command."""
    return [sys.executable, "-u", "-c", textwrap.dedent(program)]


def role(command: str | Sequence[str], replicas: Any = 1, **keys: Any) -> dict[str, Any]:
    """A role of small tasks."""
    return {"command": command, "replicas": replicas, "resources": SMALL, **keys}


def workers(command: str | Sequence[str], replicas: Any = 1, **keys: Any) -> dict[str, Any]:
    """The roles of a job that has workers alone."""
    return {"worker": role(command, replicas, **keys)}


@attrs.define
class Submitted:
    """A job as its user sees it."""

    run: trainmaster.Run

    @property
    def id(self) -> str:
        return self.run.id

    def end(self, limit: float = LIMIT) -> dict[str, Any]:
        """Its final status, once it has ended."""
        try:
            return self.run.wait(limit, check=False)
        except TimeoutError:
            told = "\n".join(str(event) for event in self.events()[-30:])
            raise AssertionError(f"{self.id} has not ended after {limit} s: {self.run.status()}\n{told}") from None

    def succeeded(self, limit: float = LIMIT) -> dict[str, Any]:
        status = self.end(limit)
        assert status["state"] == "succeeded", self.story(status)
        assert status["gave_up"] == []
        return status

    def failed(self, reason: str, limit: float = LIMIT) -> dict[str, Any]:
        """Its final status, which must be a failure for this reason; returns the reason as told."""
        status = self.end(limit)
        assert status["state"] == "failed", self.story(status)
        assert status["reason"]["reason"] == reason, self.story(status)
        assert status["gave_up"] == []
        return dict(status["reason"])

    def story(self, status: Mapping[str, Any]) -> str:
        """All that helps to see why a test failed."""
        lines = [f"{status['state']}: {status['reason']}", *(str(task) for task in status["tasks"])]
        return "\n".join([*lines, *(str(event) for event in self.events()), *self.run.logs()])

    def status(self) -> dict[str, Any]:
        return self.run.status()

    def events(self) -> list[dict[str, Any]]:
        return list(self.run.events())

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Its events of one type."""
        return [event for event in self.events() if event["type"] == kind]

    def task(self, key: str) -> dict[str, Any]:
        return next(task for task in self.run.status()["tasks"] if task["task"] == key)

    def lines(self, task: str = "worker:0", attempt: int | None = None) -> list[str]:
        """What a task printed."""
        return list(self.run.logs(task, attempt))

    def until_line(self, wanted: str, task: str = "worker:0") -> None:
        """Wait until a task has printed this."""

        def printed() -> bool:
            try:
                return any(wanted in line for line in self.lines(task))
            except TrainmasterError:  # nothing of the job is there yet
                return False

        until(printed, what=lambda: f"{wanted!r} of {task}; {self.id} is {self.run.status()}")

    def until_status(self, what: str, condition: Any, limit: float = LIMIT) -> dict[str, Any]:
        """Wait for a condition on the status; returns that status."""

        def found() -> dict[str, Any] | None:
            try:
                status = self.run.status()
            except TrainmasterError:  # nothing of the job is there yet
                return None
            return status if condition(status) else None

        got: dict[str, Any] | None = until(found, limit, what=lambda: f"{what}; {self.id} is {self.run.status()}")
        assert got is not None
        return got

    @property
    def storage(self) -> Path:
        return Path(os.environ["TRAINMASTER_STATE_DIR"]) / "jobs" / self.id


class Engine:
    """What every row offers."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # the submitter's directory
        self.jobs: list[Submitted] = []

    def submit(self, roles: Mapping[str, Any], key: str = "", **keys: Any) -> Submitted:
        """Start a job; relative paths are below `folder`."""
        job = {"name": "t", "roles": roles, **self.own(), **keys}
        made = Submitted(trainmaster.submit(job, directory=self.folder, idempotency_key=key))
        self.jobs.append(made)
        return made

    def tm(self, *arguments: str, limit: float = LIMIT, **more: Any) -> subprocess.CompletedProcess[str]:
        """A command of the submitter, to its end."""
        return subprocess.run(
            [TM, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=limit, check=False, **more
        )

    def write(self, name: str, content: str | bytes) -> Path:
        """A file of the submitter."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def own(self) -> dict[str, Any]:
        """Keys that every job needs on this engine."""
        return {}

    def close(self) -> None:
        """Take everything down; fails where a job left something that the engine can see."""


class Local(Engine):
    """This machine."""

    name = "local"

    def close(self) -> None:
        from trainmaster.engines.local.limits import ancestry

        for made in self.jobs:
            self._end(made)
        groups = [entry.name for folder in ancestry("memory") for entry in folder.iterdir()]
        left = [name for name in groups for made in self.jobs if name.startswith(f"trainmaster-{made.id}")]
        assert not left, f"left control groups behind: {left}"

    def _end(self, made: Submitted) -> None:
        """End a job that a failed test has left running."""
        from trainmaster.engines.local.client import LocalClient
        from trainmaster.engines.local.sweep import sweep

        past = Past(made.id)
        end = time.monotonic() + 10
        while processes_of(made.id) and time.monotonic() < end:
            try:
                if past.state().ended is None:
                    break
            except TrainmasterError:
                break
        if processes_of(made.id):
            LocalClient(lambda job: []).kill(made.id)
            sweep()


def processes_of(job: str) -> list[Any]:
    """The living processes of a job of the local engine."""
    from trainmaster.engines.local import processes

    return processes.living(job)


ENGINES: dict[str, type[Engine]] = {"local": Local}
