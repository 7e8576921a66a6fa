"""The commands print these plain lines: tables, tasks, the end of a job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainmaster.core.machine.reasons import sentence
from trainmaster.core.spec.quantities import format_bytes, format_count, format_seconds
from trainmaster.core.states import state_word
from trainmaster.log.output import readable as readable_text

TAIL = 20  # of a failing task, lines shown
_SHOWN = 8  # names in a list before it is cut short
CONTROL = re.compile(  # it begins with one set of characters: text without any of them is passed at 260 MB/s, else at 37
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f](?:(?<=\x1b)(?:(\[[0-9;:]*m)|\[[0-?]*[ -/]*[@-~]|[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]+[0-~]|.))?"
)
_RESET = "\x1b[0m"
_ODD = re.compile(r"[0-9]{5,17}B")  # a size that nobody writes
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_STYLES = 16  # changes of colour since the last reset that a letter keeps where its line moves back


def clean(text: str, colours: bool = True) -> str:
    """Return lines of a program as a terminal may show them: no moving, no erasing, no titles; colours at most, each to its line's end.

    A line that wrote over itself (a progress bar) is shown as it was last.
    """
    text = CONTROL.sub(lambda sequence: sequence[0] if sequence[1] else "", last_state(readable_text(text)))
    if not colours:
        return _COLOUR.sub("", text)
    if "\x1b" not in text:
        return text
    return "\n".join(
        line + _RESET if "\x1b" in line and not line.endswith(_RESET) else line for line in text.split("\n")
    )


def last_state(text: str) -> str:
    """Return lines as they were last seen where they wrote over themselves, as a progress bar does."""
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    if "\b" in text:
        text = "\n".join(_without_backspaces(line) if "\b" in line else line for line in text.split("\n"))
    return text


def _without_backspaces(line: str) -> str:
    """Return a line as a terminal shows it where the line moves back and writes over its own letters, each in its last colour."""
    cells: list[tuple[tuple[str, ...], str]] = []  # of each letter, the colours that are on, and the letter
    colours: tuple[str, ...] = ()
    at = end = 0

    def write(letters: str) -> None:
        nonlocal at
        cells[at : at + len(letters)] = [(colours, letter) for letter in letters]
        at += len(letters)

    for sequence in CONTROL.finditer(line):
        write(line[end : sequence.start()])
        end = sequence.end()
        if sequence[0] == "\b":
            at = max(0, at - 1)
        elif sequence[1]:
            colours = () if sequence[0] in (_RESET, "\x1b[m") else (*colours, sequence[0])[-_STYLES:]
    write(line[end:])
    parts: list[str] = []
    on: tuple[str, ...] = ()
    for styles, letter in cells:
        if styles != on:
            parts.append(_RESET * bool(on) + "".join(styles))
            on = styles
        parts.append(letter)
    return "".join(parts) + _RESET * bool(on)


def columns(rows: Sequence[Sequence[object]], head: Sequence[str]) -> list[str]:
    """Return aligned lines; the last column may be as long as it likes."""
    texts = [[str(cell) for cell in row] for row in (list(head), *rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]


def readable(value: Any) -> Any:
    """Return a value out of a written job, for people: sizes that nobody wrote, like `107374182B`, to three figures."""
    if isinstance(value, dict):
        return {name: readable(part) for name, part in value.items()}
    odd = isinstance(value, str) and _ODD.fullmatch(value)
    return format_bytes(int(value[:-1])) if odd else value


def ago(at: float | None, now: float) -> str:
    return "" if at is None else f"{format_seconds(max(0.0, round(now - at)))} ago"


def names(entries: Sequence[str]) -> str:
    """Return names as a list in words: `worker:0, worker:1 and 6 more`."""
    if len(entries) <= _SHOWN:
        return ", ".join(entries)
    return ", ".join(entries[: _SHOWN - 1]) + f" and {len(entries) - _SHOWN + 1} more"


def not_shipped(left_out: Sequence[str]) -> str:
    """Name the files of a job that its tasks will not have."""
    return f"not shipped, because they lead elsewhere or are not files: {names(left_out)}"


def task_rows(status: Mapping[str, Any]) -> list[str]:
    """Return one line a task: state, phase, attempt, node, progress, cores, memory."""
    rows = []
    for task in status["tasks"]:
        rows.append(
            (
                task["task"],
                _stage(task),
                task["attempt"],
                task.get("node") or "-",
                progress(task),
                _figure(task.get("cpu"), "{:.1f}"),
                format_bytes(task["memory"]) if task.get("memory") else "-",
                _words(task),
            )
        )
    return columns(rows, ("TASK", "STATE", "ATTEMPT", "NODE", "PROGRESS", "CORES", "MEMORY", ""))


def _stage(task: Mapping[str, Any]) -> str:
    """Return a task's state, and finer what it does: the phase that the program named, or ours."""
    finer = task.get("doing") or task["phase"]
    return state_word(task) if finer == task["state"] else f"{task['state']} ({finer})"


def _words(task: Mapping[str, Any]) -> str:
    """Say how the task ended, or for whom its program waits, or how its last attempt before the present one ended."""
    if task.get("waits"):
        return str(task["waits"])
    past = task.get("past") or ()
    if not task.get("words") and past:
        return sentence(f"attempt {past[-1]['attempt']}", past[-1]["words"])
    return str(task.get("words", ""))


def progress(task: Mapping[str, Any]) -> str:
    """Return `42 % step 1200`, whichever is known."""
    value, step = task.get("progress"), task.get("step")
    parts = [f"{value * 100:.0f} %"] if isinstance(value, int | float) else []
    parts += [f"step {step}"] if step is not None else []
    return " ".join(parts) or "-"


def _figure(value: Any, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else "-"


def standing(status: Mapping[str, Any], now: float) -> str:
    """Return one line about a job that has not ended: its state, for how long, what it waits for or does."""
    activity = status["waiting"] or status["phase"]
    doing = f": {activity}" if activity != status["state"] else ""
    again = f", {format_count(status['restarts'], 'restart')}" if status.get("restarts") else ""
    return f"{status['job']} {status['state']}, submitted {ago(status['submitted'], now)}{again}{doing}"


def shard_figures(shards: Mapping[str, int]) -> str:
    """Return `1,580 of 1,700 shards done, 40 held by tasks, 80 to be given out`; the log alone says what is done, and no more."""
    done = f"{shards['done']:,} of {format_count(shards['total'], 'shard')} done"
    done += f", {shards['aside']:,} set aside" if shards.get("aside") else ""
    return f"{done}, {shards['held']:,} held by tasks, {shards['free']:,} to be given out" if "held" in shards else done


def ended_lines(status: Mapping[str, Any], sizes: Mapping[str, Mapping[str, Any]] | None = None) -> list[str]:
    """Return the last words about a job: what came out of it, or why it failed and what to do."""
    took = format_seconds(round((status.get("ended") or status["at"]) - status["submitted"], 1))
    again = f", after {format_count(status['restarts'], 'restart')}" if status.get("restarts") else ""
    lines = [f"{status['job']} {status['state']} after {took}{again}"]
    if status["state"] == "succeeded":
        lines += [f"  {name}: {url}{_size((sizes or {}).get(name))}" for name, url in status.get("outputs", {}).items()]
        _, failed = _alike(
            [task for task in status["tasks"] if task["state"] == "failed" and task.get("counts", True)], {}
        )
        lines += [
            f"  {sentence(names(tasks), words)}: completion.failures allows it" for words, tasks in failed.items()
        ]
    else:
        lines += failure_lines(status)
    lines += [f"  given up at the end: {text}" for text in status.get("gave_up", ())]
    return lines + loss_lines(status)


def loss_lines(status: Mapping[str, Any]) -> list[str]:
    """Name what the job did not keep: one line for the output of all its tasks, one for each reason that a checkpoint is missing."""
    outputs = [loss for loss in status.get("losses", ()) if loss["kind"] == "log"]
    checkpoints: dict[tuple[str, int | None], list[str]] = {}
    for loss in status.get("losses", ()):
        if loss["kind"] == "checkpoint":
            checkpoints.setdefault((loss["detail"], loss["set"]), []).append(loss["task"])
    lines = []
    if outputs:
        size = format_bytes(sum(loss.get("bytes", 0) for loss in outputs))
        tasks = names(list(dict.fromkeys(loss["task"] for loss in outputs)))
        why = outputs[0]["detail"].partition(" could not be written")[2]
        lines.append(f"  lost: {size} of the output of {tasks} could not be written{why}")
    for (detail, newest), tasks_of in checkpoints.items():
        writers = f" of {names(tasks_of)}" if any(tasks_of) else ""
        stored = "was ever stored" if newest is None else f"was stored after set {newest}"
        lines.append(f"  lost: no checkpoint{writers} {stored}: {detail}")
    promises: dict[tuple[str, str], list[str]] = {}
    for loss in status.get("losses", ()):
        if loss["kind"] == "promise":
            promises.setdefault((loss["of"].removeprefix("promise "), loss["detail"]), []).append(loss["task"])
    lines += [f"  not kept: {of} of {names(tasks)}: {detail}" for (of, detail), tasks in promises.items()]
    work = [loss for loss in status.get("losses", ()) if loss["kind"] == "work"]
    lines += [f"  lost: work on input {loss['of'].removeprefix('work ')}: {loss['detail']}" for loss in work[:_SHOWN]]
    asides = [loss for loss in status.get("losses", ()) if loss["kind"] == "shard"]
    lines += [f"  lost: records of input {loss['of']}: {loss['detail']}" for loss in asides[:_SHOWN]]
    if len(asides) > _SHOWN:
        lines.append(f"  lost: {len(asides) - _SHOWN} more shards were set aside: tm audit {status['job']}")
    return lines + _lacking_lines(status)


def _lacking_lines(status: Mapping[str, Any]) -> list[str]:
    """Name the files that an output or a checkpoint does not have, tasks that lack the same ones in one line."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for loss in status.get("losses", ()):
        if loss["kind"] == "files":
            tasks.setdefault((loss["detail"].removeprefix("not stored: "), loss["of"]), []).append(loss["task"])
    lines = [f"  lost: {files}: not in the {place} of {names(tasks[files, place])}" for files, place in tasks]
    more = [f"  lost: files of {len(lines) - _SHOWN} more outputs; the job's events name them"]
    return lines[:_SHOWN] + more[: len(lines) > _SHOWN]


def left_out_lines(left_out: Mapping[str, int]) -> list[str]:
    """Name the output that was gone when it was to be read; bytes by task."""
    if not (size := sum(left_out.values())):
        return []
    tasks = names([task for task in left_out if left_out[task]])
    missing = f"  missing: {format_count(size, 'byte')} of the output of {tasks}"
    return [f"{missing}: printed faster than it was read, and the log keeps no more than logs.limit; raise that"]


def output_sizes(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return files and bytes of each output, over the tasks that committed."""
    sizes: dict[str, dict[str, int]] = {}
    for event in events:
        if event["type"] in ("output-committed", "part-committed"):
            for name, output in (event.get("outputs") or {}).items():
                total = sizes.setdefault(name, {"files": 0, "bytes": 0})
                for key in total:
                    total[key] += int(output.get(key) or 0)
    return sizes


def _size(figures: Mapping[str, Any] | None) -> str:
    return f" ({format_count(figures['files'], 'file')}, {format_bytes(figures['bytes'])})" if figures else ""


def failure_lines(status: Mapping[str, Any]) -> list[str]:
    """Say why the job failed: the first failing task with its last lines, what to do; the same failure of others in one line.

    Where the job failed by one task's failure, the first line is that; where by a rule of its own (too many failures, its time), it is the
    rule, and the tasks follow.
    """
    end = status.get("reason") or {}
    failed = sorted(
        (task for task in status.get("tasks", ()) if task["state"] in ("failed", "lost")),
        key=lambda task: task.get("since") or 0.0,
    )
    named = next((task for task in status.get("tasks", ()) if task["task"] == end.get("task")), end)
    if named.get("reason") == end.get("reason"):
        first = end
        words = end.get("words") or "ended"
        lines = [f"  {sentence(end['task'], words) if end.get('task') else words}"]
    else:
        first = failed[0] if failed else {}
        lines = [
            f"  {end['words']}",
            *(f"  {sentence(task['task'], task.get('words') or task['state'])}" for task in failed[:1]),
        ]
    lines += [f"  | {clean(line, colours=False)}" for line in (first.get("tail") or ())[-TAIL:]]
    alike, others = _alike(failed, first)
    if alike:
        lines.append(f"  the same happened to {names(alike)}")
    lines += [f"  {sentence(names(tasks), words)}" for words, tasks in others.items()]
    if end.get("advice"):
        lines.append(f"  {end['advice']}")
    return lines


def _alike(failed: Sequence[Mapping[str, Any]], first: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """Return other failed tasks: those with the first one's error, and the rest by their words."""
    alike: list[str] = []
    others: dict[str, list[str]] = {}
    for task in failed:
        if task["task"] == first.get("task"):
            continue
        if task.get("reason") == first.get("reason") and _last_line(task) == _last_line(first):
            alike.append(task["task"])
        else:
            others.setdefault(task.get("words") or task["state"], []).append(task["task"])
    return alike, others


def _last_line(task: Mapping[str, Any]) -> str:
    """Return the last line that is not empty, numbers left out: ranks and addresses differ where errors do not."""
    lines = [line.strip() for line in task.get("tail") or () if line.strip()]
    return re.sub(r"\d+", "#", lines[-1]) if lines else ""
