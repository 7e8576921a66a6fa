"""How `run`, `attach` and `wait` end: the exit status of a job, and what becomes of one whose command is ended by a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

KILLED_WITHIN = 60.0  # seconds that a job which ends with its command has for that; then the command ends before it
_OF_REASON = {"command-not-found": 127, "not-executable": 126, "out-of-memory": 128 + signal.SIGKILL}  # as shells count

exit_status_option = click.option(
    "--exit-status", "exits_as", type=click.Choice(["job", "program"]), default="job", show_default=True,
    help="of a job that failed: the job's status, or the exit status of the program that failed first",
)  # fmt: skip
detach_option = click.option(
    "--detach", type=click.Choice(["leave", "kill"]), default="leave", show_default=True,
    help="on Ctrl-C, SIGTERM, SIGHUP or SIGQUIT: leave the job running, or kill it",
)  # fmt: skip


def exit_status(status: dict[str, Any], exits_as: str = "job") -> int:
    """0 success, 1 the job failed or was killed, 3 what it ran on failed; as `program` the status of the program that failed first."""
    if status.get("state") == "succeeded":
        return 0
    from trainmaster.core.reasons import ENGINE, REASONS, US

    end = status.get("reason") or {}
    if exits_as == "program" and (program := _program_status(end)):
        return program
    reason = REASONS.get(end.get("reason", ""))
    return 3 if reason is not None and reason.fault in (ENGINE, US) else 1


def _program_status(end: dict[str, Any]) -> int:
    """The exit status of the program that a job's end names, 128 and the number for a signal; 0 where none is known."""
    reason, figures = end.get("reason", ""), end.get("figures") or {}
    if reason == "signal":
        number = getattr(signal, str(figures.get("name", "")), None)
        return 128 + number if isinstance(number, int) else 0
    return _OF_REASON.get(reason) or int(figures.get("status") or 0)


def let_go(job: str, interrupt: KeyboardInterrupt, detach: str) -> None:
    """Stop watching a job: say how to find it again, or kill it and wait for its end."""
    from trainmaster.client.view import detached

    if detach != "kill":
        detached(job, lambda text: _say(f"\n{text}"))
        return
    from trainmaster.client.actions import kill
    from trainmaster.client.follow import wait_for_end
    from trainmaster.client.text import ended_lines

    name = signal.Signals(getattr(interrupt, "number", signal.SIGINT)).name
    _say(f"\n{job} ends with this command, as --detach=kill says")
    kill(job, f"its command was ended by {name}")
    status = wait_for_end(job, KILLED_WITHIN)
    for line in ended_lines(status) if status is not None else [f"{job} has not ended after {KILLED_WITHIN:.0f} s"]:
        _say(line)


def _say(text: str) -> None:
    """Print to stderr; where the terminal is gone, nobody reads, and Python must not fail at its own end for that."""
    try:
        click.echo(text, err=True)
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
