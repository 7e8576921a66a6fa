"""The states of jobs and of tasks: one word for each, the same in commands, pages, REST, metrics, the Python API and the documents.

Each table gives a word its meaning, in the order of a life. A task also has a `phase`, which says more finely what it does in its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PENDING, STAGING, RUNNING, ENDING = "pending", "staging", "running", "ending"
SUCCEEDED, FAILED, KILLED, LOST, LEFT = "succeeded", "failed", "killed", "lost", "left"
FINAL = frozenset({SUCCEEDED, FAILED, KILLED, LOST})
OVER = FINAL | {LEFT}  # of a task that runs no more
STOPPED = "stopped"  # killed, as people read it where the job was complete
# Phases of a pending task.
WAITING, QUEUED, HELD, BACKING_OFF, TO_JOIN = "waiting", "queued", "granted", "backing off", "to join"

LIVE_JOBS = {
    PENDING: "no program has started yet",
    RUNNING: "programs have started",
    ENDING: "the outcome is known; programs are stopped, and outputs and logs are stored",
}
JOB_STATES = {
    **LIVE_JOBS,
    SUCCEEDED: "it has ended well",
    FAILED: "it has ended, and not well: its reason says why",
    KILLED: "a user has ended it",
}
# The states of a job in a list: a list may have nothing but its name.
LISTED_STATES = {
    **JOB_STATES,
    "removed": "it was removed where it ran, before its end was seen",
    "unreadable": "its storage cannot be read; the list says why, with the last known state",
}

TASK_STATES = {
    PENDING: "its present attempt has not begun",
    STAGING: "its agent fetches data, or waits for the tasks that it starts together with",
    RUNNING: "its program runs, or its outputs are being stored",
    SUCCEEDED: "it has ended well",
    FAILED: "it has failed for good",
    KILLED: f"it was stopped with its job; `{STOPPED}` in commands and on pages where the job was complete without it",
    LOST: "it has failed for good with its container or node",
    LEFT: "the job no longer has it",
}
# state -> phase -> meaning; in the other states the phase is the state.
TASK_PHASES: dict[str, dict[str, str]] = {
    PENDING: {
        WAITING: "waits for other roles, or for the end of its attempt before",
        QUEUED: "waits for a container",
        HELD: "has a container, in which its agent starts",
        BACKING_OFF: "waits a while after failures",
        "ended": "its attempt has failed; the cause is being settled",
        TO_JOIN: "has a container, and joins the group at its next change of members",
    },
    STAGING: {
        "staging": "fetches data",
        "ready": "waits for the tasks that it starts together with",
        "starting": "starts its program",
    },
    RUNNING: {
        "running": "its program runs",
        "exited": "its program has ended well; outputs are uploaded",
        "uploaded": "waits until its outputs may be committed",
        "committing": "commits its outputs",
    },
}


def state_word(task: Mapping[str, Any]) -> str:
    """Return a task's state as people read it; one that was stopped because the job was complete did not fail by that."""
    return STOPPED if task["state"] == KILLED and task.get("reason") == "not-needed" else str(task["state"])


def outputs_given_up(status: Mapping[str, Any]) -> str:
    """Return why the outputs of an ended job are not whole; "" where they are."""
    return next((step.partition(": ")[2] for step in status.get("gave_up", ()) if step.startswith("outputs: ")), "")
