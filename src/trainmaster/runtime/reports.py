"""Reports that a program sends, and warnings that it gets: progress, metrics, phases, checkpoints.

A report hardly ever waits, never fails for want of a master, and costs little: progress and metrics are sent a few times a
second at most, the newest winning. Everything goes over one connection of the process, made when first used.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from time import monotonic, sleep, time

from .link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_EVERY = 0.05  # s between two frames of progress
_HELD = 0.25  # s after which a report that was held back is sent, where none comes after it
_PHASE_LIMIT = 0.2  # s that a phase may wait for an agent that is behind
_EXIT_LIMIT = 0.5  # s that the last report may take at the program's end
_CHECKPOINT_LIMIT = 5.0  # s that beginning a checkpoint may wait for the agent


class Warned:
    """The container will be taken back: `why`, and in how many `seconds` from `at` (time.monotonic) on."""

    __slots__ = ("at", "seconds", "why")

    def __init__(self, seconds: float, why: str) -> None:
        self.seconds, self.why, self.at = seconds, why, monotonic()

    @property
    def left(self) -> float:
        """Return the seconds that remain."""
        return max(0.0, self.seconds - (monotonic() - self.at))

    def __repr__(self) -> str:
        return f"Warned(seconds={self.seconds}, why={self.why!r})"


class _Reports:
    """The connection of this process, and the reports that are yet to be sent over it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.phases: list[str] = []
        self.warned: Warned | None = None
        self.callbacks: list[Callable[[Warned], None]] = []
        self.link = Link(path, self._greeting, self.heard)
        self._lock = threading.RLock()
        self._hearing = threading.Lock()  # of `warned` and `callbacks`; nothing is called under it
        self._latest: dict[str, Any] = {}
        self._sent = 0.0
        self._listening = 0  # the process whose thread listens
        self._late, self._sending = threading.Event(), 0  # a report is held back; the process whose thread sends it

    def progress(self, latest: dict[str, Any], metrics: dict[str, Any]) -> None:
        with self._lock:
            self._latest.update(latest)
            if metrics:
                self._latest["metrics"] = {**self._latest.get("metrics", {}), **metrics}
            if monotonic() - self._sent >= _EVERY:
                self.send()
            else:
                self._send_later()

    def send(self) -> None:
        with self._lock:
            if self._latest:
                latest, self._latest, self._sent = self._latest, {}, monotonic()
                if not self.link.post({"op": "progress", **latest}):
                    self._latest = latest  # the newest is sent once the agent is there

    def _send_later(self) -> None:
        if self._sending != os.getpid():
            try:
                threading.Thread(target=self._send_late, name="trainmaster-reports", daemon=True).start()
            except RuntimeError:  # no thread begins any more: the program ends, which sends what is held back
                return
            self._sending = os.getpid()
        self._late.set()

    def _send_late(self) -> None:
        while self._late.wait():
            sleep(_HELD)
            self._late.clear()
            self.send()

    def phase(self) -> None:
        self.send()
        self.link.post({"op": "phase", "name": self.phases[-1] if self.phases else None})
        self.link.flush(_PHASE_LIMIT)  # an unsent report goes with the next call, which a long phase does not make

    def heard(self, frame: dict[str, Any]) -> None:
        if frame.get("op") != "warning":
            return
        with self._hearing:
            if self.warned is not None:
                return
            self.warned = Warned(float(frame["seconds"]), str(frame.get("why", "")))
            callbacks = list(self.callbacks)
        for callback in callbacks:
            callback(self.warned)

    def call(self, callback: Callable[[Warned], None]) -> None:
        """Call `callback` once: now, if a warning is there already, or by the thread that receives one."""
        with self._hearing:
            self.callbacks.append(callback)
            warned = self.warned
        if warned is not None:
            callback(warned)

    def listen(self) -> None:
        with self._lock:
            if self._listening == os.getpid():
                return
            self._listening = os.getpid()
            link = Link(self.path, None, self.heard)
            threading.Thread(target=link.listen, name="trainmaster-warnings", daemon=True).start()

    def _greeting(self) -> dict[str, Any]:
        return {"phase": self.phases[-1]} if self.phases else {}

    def in_child(self) -> None:
        self._lock = threading.RLock()
        self._hearing = threading.Lock()
        self._latest = {}  # the parent sends these
        self._late = threading.Event()


_reports: _Reports | None = None
_making = threading.Lock()


def _get_reports() -> _Reports | None:
    """Return the connection, or None where the program runs without an agent."""
    global _reports
    path = os.environ.get("TRAINMASTER_SOCKET")
    if not path:
        return None
    if _reports is None or _reports.path != path:
        with _making:
            if _reports is None or _reports.path != path:
                _reports = _Reports(path)
    return _reports


def progress(value: float | None = None, *, step: int | None = None, **metrics: float) -> None:
    """Tell how far the program is: `value` of 0 to 1, the step it has completed, and `metrics`, in any combination.

    Value and step are shown with the task. Metrics are charts on the job's page, and are kept with the job: of a task 64
    names, of 64 characters, and numbers alone (a nan is a gap, marked as such). Once a second at most the newest of each is sent, and the
    last ones when the program ends. Two have a meaning: `step_time`, the seconds that this process works itself in a step,
    without its waiting for others, and `throughput`, the work that it does a second, in any unit.
    """
    latest: dict[str, Any] = {}
    if value is not None:
        latest["value"] = min(1.0, max(0.0, float(value)))
    if step is not None:
        latest["step"] = int(step)
    figures = {name: _figure(metric) for name, metric in metrics.items()}
    if reports := _get_reports():
        reports.progress(latest, figures)


def metrics(**figures: float) -> None:
    """Report metrics alone, of anything that float() takes, whatever their names: they do not count as progress.

    They are kept as those of `progress` are.
    """
    if reports := _get_reports():
        reports.progress({}, {name: _figure(metric) for name, metric in figures.items()})


def _figure(value: Any) -> float | str:
    number = float(value)
    return number if math.isfinite(number) else str(number)  # JSON has no nan and no inf


class phase:
    """`with phase("compiling"):` names the work in the block, which is shown with the task.

    No stall is looked for in phases named `staging`, `saving` or `compiling`; in other phases it is.
    """

    def __init__(self, name: str) -> None:
        self.name = str(name)

    def __enter__(self) -> phase:
        if reports := _get_reports():
            reports.phases.append(self.name)
            reports.phase()
        return self

    def __exit__(self, *raised: object) -> None:
        reports = _get_reports()
        if reports and self.name in reports.phases:
            reports.phases.reverse()
            reports.phases.remove(self.name)  # the innermost of that name
            reports.phases.reverse()
            reports.phase()


def begin_checkpoint() -> None:
    """Tell that the content of a checkpoint is fixed now, and that its files will be written."""
    if reports := _get_reports():
        reports.link.ask({"op": "checkpoint", "state": "begin"}, _CHECKPOINT_LIMIT)


def end_checkpoint(well: bool) -> None:
    """Tell that the files of the checkpoint that was begun are whole, or that it failed."""
    if reports := _get_reports():
        reports.send()
        reports.link.post({"op": "checkpoint", "state": "saved" if well else "failed"})


def saved() -> None:
    """Tell that the files under the checkpoint's path are a whole set now."""
    if reports := _get_reports():
        reports.send()
        reports.link.post({"op": "checkpoint", "state": "saved"})


def cannot_go_on(why: str) -> None:
    """Tell, just before this program exits with an error, that its next attempt would end the same way: the job does not begin one.

    The agent reads this in the error file of `torch.distributed.elastic`, in that file's own form.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        import json

        error = {"message": why, "extraInfo": {"timestamp": str(int(time()))}, "is_lasting": True}
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump({"message": error}, file)


def warning(callback: Callable[[Warned], None] | None = None) -> Warned | None:
    """Return the warning that this container will be taken back soon, or None.

    `callback` is called with it once, in a thread of its own, as soon as it comes (at once where it is there already).
    """
    reports = _get_reports()
    if reports is None:
        return None
    if callback is not None:
        reports.call(callback)
        reports.listen()
    elif reports.warned is None:
        reports.link.poll()
    return reports.warned


def warned(frame: dict[str, Any]) -> None:
    """Take a warning that came over another connection of this process."""
    if reports := _get_reports():
        reports.heard(frame)


def _at_exit() -> None:
    if _reports is not None:
        _reports.send()
        _reports.link.flush(_EXIT_LIMIT)


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    if _reports is not None:
        _reports.in_child()


def _arm() -> None:
    import atexit

    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)


_arm()
