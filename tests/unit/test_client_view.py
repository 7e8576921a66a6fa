"""Watching a job: what is said of failures, and what a terminal shows."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from trainmaster.client.watch.lines import Lines
from trainmaster.client.watch.printing import Choice
from trainmaster.client.watch.rows import Rows, rows
from trainmaster.client.watch.view import First, watch
from trainmaster.client.watch.watched import COLOURS, Watching, colour, spark


def task(name: str = "worker:0", state: str = "running", **more: object) -> dict[str, Any]:
    return {"task": name, "state": state, "phase": state, "attempt": 1, "started": 100.0, **more}


def status(*tasks: dict[str, Any], state: str = "running", **more: object) -> dict[str, Any]:
    return {
        "job": "digits-abcdef", "state": state, "submitted": 100.0, "at": 112.5, "restarts": 0, "outputs": {}, "phase": state,
        "waiting": "", "tasks": list(tasks), **more,
    }  # fmt: skip


def cause(who: str = "worker:0", reason: str = "exit", **figures: object) -> dict[str, Any]:
    return {"task": who, "attempt": 1, "reason": reason, "figures": figures or {"status": 1}}


def event(kind: str, **more: object) -> dict[str, Any]:
    return {"event": {"n": 1, "at": 110.0, "epoch": 1, "type": kind, **more}}


def incident(unit: str, why: dict[str, Any], **more: object) -> dict[str, Any]:
    told = {"again": True, "costs": True, "spent": 1, "limit": 3, "until": 110.0} | more
    return event("incident", unit=unit, cause=why, **told)


def said(*items: dict[str, Any]) -> list[str]:
    """What is told of failures on a pipe, without the job's name."""
    err = io.StringIO()
    both = status(task(), task("worker:1"))
    watch("digits-abcdef", [{"status": both}, *items, {"end": status(state="succeeded")}], io.StringIO(), err)
    return [line.removeprefix("digits-abcdef: ") for line in err.getvalue().splitlines()[:-1]]


def test_a_restart_says_who_failed_by_what_and_what_follows() -> None:
    killed = cause("worker:1", "signal", name="SIGKILL")
    assert said(incident("group:0", killed), event("rewound", group=0, set=3)) == [
        "worker:1 was killed by SIGKILL; all start again (restart 1 of 3)",
        "they begin from checkpoint set 3",
    ]
    assert said(incident("worker:0", cause(), spent=2)) == [
        "worker:0 exited with status 1; it starts again (restart 2 of 3)"
    ]
    lost = cause("worker:0", "node-lost", node="n1")
    assert said(incident("worker:0", lost, costs=False, until=114.0)) == [
        "worker:0: its node n1 was lost; it starts again in 4 s (not charged)"
    ]


def test_the_cause_is_said_where_it_proves_to_be_another() -> None:
    broken, killed = cause("worker:0"), cause("worker:1", "signal", name="SIGKILL")
    assert said(incident("group:0", broken), event("settled", unit="group:0", cause=killed))[1:] == [
        "the cause of it: worker:1 was killed by SIGKILL"
    ]
    assert said(incident("group:0", broken), event("settled", unit="group:0", cause=broken))[1:] == []


def test_a_failure_for_good_is_said_where_the_job_goes_on() -> None:
    failed = event("task-failed", **cause("worker:1"))
    assert said(failed, event("left", task="worker:1")) == ["worker:1 exited with status 1, for good"]
    assert said(failed, event("ending", state="failed", reason="exit")) == []  # its last words say it


def test_only_what_is_waited_for_is_said_on_a_pipe() -> None:
    phases = [{"status": status(phase=phase)} for phase in ("granted 1/2", "staged 0/2", "ending", "failed")]
    assert said(*phases) == []
    waits = "waits for 1 core: 0 of 2 free"
    assert said({"status": status(waiting=waits)}, {"status": status(waiting=waits)}) == [waits]


def test_the_live_rows_say_for_whom_a_program_waits() -> None:
    seen = Watching("digits-abcdef")
    waits = "waits for its peers: 1 of at least 2 are there, worker:1 has not come"
    seen.take({"status": status(task(waits=waits), task("worker:1"))})
    assert f"digits-abcdef worker:0 {waits}" in " ".join(drawn(seen, width=120))
    seen.take({"status": status(task(waits=waits), waiting="waits for memory")})
    assert "waits for memory" in " ".join(drawn(seen, width=120)), "what the job waits for comes first"


def drawn(seen: Watching, now: float = 110.0, width: int = 80, height: int = 40) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(rows(seen, now, height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_rows_have_a_head_and_figures_stand_under_each_other() -> None:
    seen = Watching("digits-abcdef")
    for at, cpu in enumerate((0.5, 1.0, 12.0)):
        seen.take(
            {
                "status": status(
                    task(cpu=cpu, at=101 + at, memory=2**20, progress=0.5), task("worker:10", cpu=0.1, at=101)
                )
            }
        )
    head, *lines = drawn(seen)[1:]
    assert head.split() == ["TASK", "STATE", "PROGRESS", "CORES", "MEMORY"]
    assert lines[0].split() == ["worker:0", "running", "10", "s", "50", "%", "12.0", spark([0.5, 1, 12], 1), "1", "MiB"]
    assert lines[0].index("12.0") + 1 == lines[1].index("0.1")
    assert head.index("CORES") == lines[0].index("12.0")


def test_a_task_that_is_over_has_no_figures_and_one_stopped_at_the_end_is_no_victim() -> None:
    seen = Watching("digits-abcdef")
    seen.take({"status": status(task(cpu=0.5, at=101, memory=2**20, doing="compiling"), task("ps:0", cpu=0.5, at=101))})
    assert drawn(seen)[2].startswith("worker:0  compiling 10 s")
    seen.take(
        {
            "status": status(
                task(state="succeeded", cpu=0.5, at=101, memory=2**20),
                task("ps:0", "killed", reason="not-needed", cpu=0.5, at=101),
            )
        }
    )
    head, *lines = drawn(seen)[1:]
    assert head.split() == ["TASK", "STATE", "CORES", "MEMORY"], "columns stay where they were"
    assert lines == ["worker:0  succeeded", "ps:0      stopped"]


def test_a_group_that_started_again_before_somebody_watched_is_reported_as_a_group() -> None:
    seen = Watching("digits-abcdef")
    seen.take(incident("group:0", cause("worker:1", "signal", name="SIGKILL")))
    assert seen.news == ["worker:1 was killed by SIGKILL; all start again (restart 1 of 3)"]


def test_what_a_dead_master_knew_is_still_shown() -> None:
    seen = Watching("digits-abcdef")
    seen.take({"status": status(task(cpu=0.5, at=101, memory=2**20, step=7))})
    seen.take({"status": status(task())})
    assert "step 7" in drawn(seen)[2]
    # A sample of the attempt before.
    seen.take({"status": status(task(attempt=2, started=105.0, cpu=0.5, at=101, step=7))})
    assert "step" not in drawn(seen)[2]


def test_half_of_the_terminal_is_left_to_the_output() -> None:
    seen = Watching("digits-abcdef")
    seen.take({"status": status(*[task(f"worker:{i}") for i in range(40)])})
    lines = drawn(seen, height=24)
    assert len(lines) == 12
    assert lines[-1] == "and 31 more"
    assert len(drawn(seen, height=200)) == 23


def test_no_task_is_red() -> None:
    assert not {31, 91} & set(COLOURS.values())


def test_the_first_line_is_taken_away_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    shown, seen = First(out, Choice()), Watching("digits-abcdef")
    seen.take({"status": status(phase="staged 0/1")})
    shown.draw(seen)
    shown.lines([("worker:0", "hello\n")])
    shown.close()
    line, rest = out.getvalue().split("digits-abcdef staged 0/1")
    assert line == "\r\x1b[K"
    assert rest.startswith("\r\x1b[K\x1b[")
    assert rest.endswith("worker:0 \x1b[0mhello\n")


def test_what_is_shown_from_the_middle_on_begins_with_a_line() -> None:
    lines = Lines()
    tail = {"task": "w:0", "attempt": 1, "offset": 100, "next": 110, "data": "lf a line\nwhole\n"}
    assert lines.add(tail) == [("w:0", "whole\n")]
    assert lines.add({**tail, "offset": 110, "data": "more\n"}) == [("w:0", "more\n")]
    assert lines.add({**tail, "task": "w:1", "data": "no end"}) == []
    assert lines.add({**tail, "task": "w:1", "offset": 106, "data": "\nthen\n"}) == [("w:1", "then\n")]


def test_rows_and_the_output_above_them_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    shown, seen = Rows(out, Choice()), Watching("digits-abcdef")
    try:
        seen.take({"status": status(task())})
        shown.draw(seen)
        shown.lines([("worker:0", "\x1b[31mred\n\x1b[2Jlast\n"), ("worker:1", "other\n")])
    finally:
        shown.close()
    colours = [COLOURS[colour(name)] for name in ("worker:0", "worker:1")]
    lines = [line for line in out.getvalue().split("\n") if line.endswith(("red\x1b[0m", "last", "other"))]
    assert lines == [
        f"\x1b[{colours[0]}mworker:0 \x1b[0m\x1b[31mred\x1b[0m",
        f"\x1b[{colours[0]}mworker:0 \x1b[0mlast",
        f"\x1b[{colours[1]}mworker:1 \x1b[0mother",
    ]
