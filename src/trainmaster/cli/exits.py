"""Commands that watch a job end with its exit status, and have options about it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any, TypeVar

import click

from trainmaster.core.spec.signals import signal_number
from trainmaster.core.states import outputs_given_up

F = TypeVar("F", bound=Callable[..., Any])

_OF_REASON = {"command-not-found": 127, "not-executable": 126, "out-of-memory": 128 + signal.SIGKILL}  # as shells count

exit_status_option = click.option(
    "--exit-status", "exits_as", type=click.Choice(["job", "program"]), default="job", show_default=True,
    help="of a job that failed: the job's status, or the exit status of the program that failed first",
)  # fmt: skip
_on_leaving = (
    "on Ctrl-C, SIGTERM, SIGHUP or SIGQUIT, or once nobody reads the output: leave the job running, or kill it"
)
_detach = click.Choice(["leave", "kill"])
detach_option = click.option(
    "--detach", type=_detach, help=f"{_on_leaving}; default: Ctrl-C and SIGTERM kill a job on this machine, all else leaves it",
)  # fmt: skip
watching_detach_option = click.option("--detach", type=_detach, default="leave", show_default=True, help=_on_leaving)


def exit_status(status: dict[str, Any], exits_as: str = "job") -> int:
    """Return 0 for success, 1 where the job failed or was killed, 3 where what it ran on failed, or its outputs are not whole. As
    `program`: the status of the program that failed first.
    """
    if status.get("state") == "succeeded":
        return 3 if outputs_given_up(status) else 0
    from trainmaster.core.machine.reasons import ENGINE, REASONS, US

    end = status.get("reason") or {}
    if exits_as == "program" and (program := _program_status(end)):
        return program
    reason = REASONS.get(end.get("reason", ""))
    return 3 if reason is not None and reason.fault in (ENGINE, US) else 1


def _program_status(end: dict[str, Any]) -> int:
    """Return the exit status of the program that a job's end names, 128 and the number for a signal; 0 where none is known."""
    reason, figures = end.get("reason", ""), end.get("figures") or {}
    if reason == "signal" or "sent" in figures:
        with contextlib.suppress(ValueError):
            return 128 + signal_number(str(figures.get("sent") or figures.get("name")))
        return 0
    return _OF_REASON.get(reason) or int(figures.get("status") or 0)
