"""The actions of a job's pages. Each is a page with a form that confirms it; who may not act sees the command that does the same.

A link to an action changes nothing: only the form's POST does, with the anti-forgery token of its reader's session.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import attrs

from trainmaster.core.foreign import number_in
from trainmaster.core.states import FINAL
from trainmaster.web.access import may_change
from trainmaster.web.contract import Acts, Reader

Form = Mapping[str, str]


@attrs.frozen
class Field:
    """One input of a form. `kind`: text, number or hidden; `value`: the one that it begins with."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""


@attrs.frozen
class Action:
    """One action. `act(acts, form, by)` does it and returns words or, for `retry`, the new job. `words(form)`: its command after `tm`."""

    label: str
    question: str
    words: Callable[[str, Form], list[str]]
    act: Callable[[Acts, Form, str], Awaitable[Any]]
    fields: tuple[Field, ...] = ()
    is_grave: bool = False  # it ends something
    done: str = "Asked for."


async def _kill(acts: Acts, form: Form, by: str) -> None:
    why = form.get("why", "")
    await (acts.kill_task(form["task"], by, why) if form.get("task") else acts.kill(by, why))


async def _scale(acts: Acts, form: Form, by: str) -> None:
    size = form.get("size", "").strip()
    if size and number_in(size) is None:
        raise ValueError(f"the number of members is not a whole number: {size[:40]!r}")
    await acts.scale(form.get("role", ""), int(size) if size else None, by)


async def _cut(acts: Acts, form: Form, by: str) -> None:
    try:
        seconds = float(form.get("seconds", ""))
    except ValueError:
        raise ValueError(f"the seconds are not a number: {form.get('seconds', '')[:40]!r}") from None
    if not 0 < seconds <= 3600:
        raise ValueError("the seconds must be above 0 and at most 3600")
    await acts.cut(form.get("task", ""), seconds, by)


_TASK = Field("task", "Task")
_WHY = Field("why", "Why (it is written into the job's log)")

ACTIONS: Mapping[str, Action] = {
    "save": Action(
        "Save", "Save the outputs as they are now? The programs go on meanwhile.", lambda job, form: ["save", job],
        lambda acts, form, by: acts.save(by), done="A save was asked for; below you see who has saved.",
    ),
    "kill": Action(
        "Kill", "End this? A job that is killed keeps its logs, and the outputs of tasks that finished.",
        lambda job, form: ["kill", job, *([form["task"]] if form.get("task") else [])], _kill, (_TASK, _WHY), is_grave=True,
        done="Its end was asked for.",
    ),
    "signal": Action(
        "Signal", "Send a signal to the program of a task?",
        lambda job, form: ["kill", job, form.get("task") or "TASK", "--signal", form.get("name") or "USR1"],
        lambda acts, form, by: acts.signal(form.get("task", ""), form.get("name", ""), by), (_TASK, Field("name", "Signal", value="USR1")),
        is_grave=True, done="The signal is on its way.",
    ),
    "scale": Action(
        "Scale", "Have an elastic role grow or shrink? No number: as the job's own rules say.",
        lambda job, form: ["scale", job, f"{form.get('role') or 'ROLE'}={form.get('size') or 'N'}"], _scale,
        (Field("role", "Role"), Field("size", "Members", "number")), done="The change was asked for.",
    ),
    "dump": Action(
        "Stacks", "Write the Python stacks of a task's programs into its log?",
        lambda job, form: ["dump", job, form.get("task") or "TASK"], lambda acts, form, by: acts.dump(form.get("task", ""), by),
        (_TASK,), done="The stacks come into the task's log.",
    ),
    "retry": Action(
        "Retry", "Submit the job again as it was, under a new id?", lambda job, form: ["retry", job], lambda acts, form, by: acts.retry(by),
    ),
    "cut": Action(
        "Cut", "Cut the link between the master and a task's agent for a while, to see that the job survives?",
        lambda job, form: ["chaos", job, "--fault", "cut", "--lasting", f"{form.get('seconds') or 10}s"], _cut,
        (_TASK, Field("seconds", "Seconds", "number", "10")), is_grave=True, done="The link is cut.",
    ),
}  # fmt: skip


def buttons(status: Mapping[str, Any], job: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """Return (label, address below `actions/`, is it grave) of each action that makes sense for a job, as its status and its file are."""
    if status["state"] in FINAL:
        chosen = [("retry", "")]
    else:
        replicas = {name: role.get("replicas") or {} for name, role in (job.get("roles") or {}).items()}
        elastic = [name for name, size in replicas.items() if size.get("min") != size.get("max")]
        chosen = [*([("save", "")] if status["outputs"] else []), *(("scale", role) for role in elastic), ("kill", "")]
    return [
        (
            f"{ACTIONS[name].label} {role}".strip(),
            name + (f"?role={quote(role)}" if role else ""),
            ACTIONS[name].is_grave,
        )
        for name, role in chosen
    ]


def command(name: str, job: str, form: Form) -> str:
    """Return the command line that does the same."""
    return shlex.join(["tm", *ACTIONS[name].words(job, form)])


def check_token(reader: Reader, form: Form) -> None:
    """Raise PermissionError where the form is not one of ours for this reader."""
    if not may_change(reader, form.get("csrf", "")):
        raise PermissionError("this form is not of your session; open the page anew")


async def perform(name: str, acts: Acts, form: Form, reader: Reader, home: str) -> str:
    """Do an action; return the address, relative to the job's root, of the page to go to then."""
    result = await ACTIONS[name].act(acts, form, f"user {reader.user}")
    if name == "retry":
        return f"{home}jobs/{quote(str(result))}/"
    return "./"
