"""A job driven by hand: a test tells what happens, line by line, and looks at the events and actions that follow."""

from __future__ import annotations

from typing import Any

from trainmaster.core.decide.drive import Drive
from trainmaster.core.machine import stimuli
from trainmaster.core.machine.actions import Action, Ask, CommitFor, Order, Release, Step
from trainmaster.core.machine.events import Event, faults
from trainmaster.core.machine.state import Task


def role(replicas: Any = 1, scope: str = "task", limit: int = 3, **more: Any) -> dict[str, Any]:
    return {"command": "true", "replicas": replicas, "restart": {"scope": scope, "limit": limit}, **more}


def job(*, gang: bool = True, timeouts: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A job; roles are those of `more` whose value has a command."""
    roles = {name: value for name, value in more.items() if isinstance(value, dict) and "command" in value}
    rest = {name: value for name, value in more.items() if name not in roles}
    return {"name": "test", "roles": roles, "gang": gang, "timeouts": {"job": "none", **(timeouts or {})}, **rest}


class Script:
    """One job. `log` has all events, `planned` what was planned last; methods return the events that they brought."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.now = 1000.0
        self.drive = Drive()
        self.log: list[Event] = []
        self.planned: list[Action] = []
        self.numbers: dict[tuple[str, int], int] = {}
        self.take(stimuli.MasterStarted(1), stimuli.Submitted("test-aaaaaa", data))

    @property
    def state(self) -> Any:
        return self.drive.state

    def task(self, key: str) -> Task:
        return self.state.tasks[key]

    def take(self, *told: stimuli.Stimulus, after: float = 0.0) -> list[Event]:
        self.now += after
        events, self.planned = self.drive.take(told, self.now)
        self.log += events
        assert [fault for event in events for fault in faults(event)] == []
        return events

    def last(self, kind: str) -> dict[str, Any]:
        """The data of the newest event of a type."""
        return next(dict(event.data) for event in reversed(self.log) if event.type == kind)

    def count(self, kind: str) -> int:
        return sum(event.type == kind for event in self.log)

    # -- what happens --

    def ask(self) -> list[Event]:
        """Say that what is planned of asks, releases and orders was done."""
        done = tuple(action for action in self.planned if isinstance(action, Ask | Release | Order))
        return self.take(stimuli.Did(done)) if done else []

    def grant(self, *keys: str, node: str = "") -> list[Event]:
        """The engine grants what is asked for these tasks, and their agents connect."""
        self.ask()
        given = [(key, self.task(key).serial) for key in keys]
        events = self.take(*(stimuli.Granted(key, n, f"c/{key}/{n}", node or f"node-{key}") for key, n in given))
        return events + self.take(*(stimuli.Connected(key, n, {"node": node or f"node-{key}"}) for key, n in given))

    def report(
        self, key: str, kind: str, *, attempt: int | None = None, after: float = 0.0, **data: Any
    ) -> list[Event]:
        task = self.task(key)
        n = self.numbers[key, task.serial] = self.numbers.get((key, task.serial), 0) + 1
        return self.take(stimuli.Report(key, task.serial, n, attempt or task.attempt, kind, data), after=after)

    def ready(self, *keys: str) -> None:
        self.ask()
        for key in keys:
            self.report(key, "ready", address="10.0.0.1", ports={"main": 20000})

    def start(self, *keys: str) -> None:
        """From an ask to a running program, together."""
        self.grant(*[key for key in keys if self.task(key).hold != "granted"])
        self.ready(*keys)
        self.ask()
        for key in keys:
            self.report(key, "started", pid=7)
            assert self.task(key).phase == "running", key

    def fail(
        self, key: str, reason: str = "exit", *, elapsed: float = 1.0, after: float = 0.0, **figures: Any
    ) -> list[Event]:
        status = {"status": 1} if reason == "exit" else {}
        return self.report(key, "ended", reason=reason, elapsed=elapsed, figures=figures, after=after, **status)

    def stopped(self, *keys: str) -> None:
        """Agents carry out the stops that are planned."""
        self.ask()
        for key in keys:
            self.report(key, "ended", reason="signal", stopped=True, figures={"name": "SIGTERM"}, elapsed=1.0)

    def succeed(self, *keys: str) -> None:
        """The programs end well; outputs, where there are any, are uploaded."""
        for key in keys:
            self.report(key, "ended", reason="exit", status=0, elapsed=1.0)
            if self.task(key).phase == "exited":
                self.report(key, "uploaded", outputs={"model": {"files": 1}})

    def exited(self, key: str, reason: str | None = None, status: int | None = 1, **figures: Any) -> list[Event]:
        return self.take(stimuli.ContainerExited(key, self.task(key).serial, status, reason, figures))

    def tick(self, seconds: float = 0.0) -> list[Event]:
        return self.take(stimuli.Tick(), after=seconds)

    def close(self) -> list[str]:
        """Carry out the end as agents and a master should; the steps in their order."""
        steps = []
        for _ in range(50):
            if self.drive.closed:
                return steps
            planned = self.planned
            steps += [f"{action.verb} {action.task}" for action in planned if isinstance(action, Order)]
            steps += [f"release {action.task}" for action in planned if isinstance(action, Release)]
            self.ask()
            for action in planned:
                self._carry_out(action, steps)
        raise AssertionError(f"it does not close: {self.planned}")

    def _carry_out(self, action: Action, steps: list[str]) -> None:
        if isinstance(action, Order) and action.verb == "stop":
            self.report(action.task, "ended", reason="signal", stopped=True, elapsed=1.0)
        elif isinstance(action, Order) and action.verb == "leave":
            self.report(action.task, "left")
        elif isinstance(action, Order) and action.verb == "commit":
            self.report(action.task, "committed", outputs={})
        elif isinstance(action, Step | CommitFor):
            steps.append(action.name if isinstance(action, Step) else f"commit for {action.task}")
            self.take(stimuli.Did((action,)))
