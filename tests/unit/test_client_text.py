"""What the commands say: lines out of pieces, tables, the end of a job, programs' output made harmless."""

from __future__ import annotations

import io
import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.client.watch.lines import LONGEST, REPORTER, Lines, last, without_progress, without_reports
from trainmaster.client.watch.logs import check_task
from trainmaster.client.watch.view import watch
from trainmaster.client.watch.watched import Watching, spark
from trainmaster.core.errors import NotFound
from trainmaster.core.machine.report import job_progress
from trainmaster.words.events import event_line
from trainmaster.words.text import (
    clean,
    columns,
    ended_lines,
    names,
    output_sizes,
    shard_figures,
    standing,
    task_rows,
)


def piece(data: str, task: str = "worker:0", attempt: int = 1) -> dict[str, object]:
    return {"task": task, "attempt": attempt, "offset": 0, "next": len(data), "data": data}


@given(st.lists(st.text(alphabet="ab\n", max_size=5)))
def test_lines_are_what_was_written_however_it_was_cut(parts: list[str]) -> None:
    lines = Lines()
    blocks = [block for part in parts for _, block in lines.add(piece(part))] + [block for _, block in lines.close()]
    assert all(block.endswith("\n") for block in blocks)
    assert "".join(blocks).splitlines() == "".join(parts).splitlines()


def test_lines_of_tasks_and_attempts_do_not_mix() -> None:
    lines = Lines()
    assert lines.add(piece("half")) == []
    assert lines.add(piece("other\n", "worker:1")) == [("worker:1", "other\n")]
    assert lines.add(piece("anew\n", attempt=2)) == [("worker:0", "half\n"), ("worker:0", "anew\n")]
    assert lines.close() == []


def test_a_line_without_end_is_cut() -> None:
    lines = Lines()
    assert lines.add(piece("x" * LONGEST)) == []
    assert lines.add(piece("x" * 5)) == [("worker:0", "x" * (LONGEST + 5) + "\n")]
    assert lines.add(piece("x" * 5)) == []
    assert lines.close() == [("worker:0", "xxxxx\n")]


@given(st.lists(st.sampled_from(["a", "\n", "w:0.1 ", REPORTER, "0.5", "\r"]), max_size=12))
def test_a_block_has_no_lines_of_progress(parts: list[str]) -> None:
    block = "".join(parts) + "\n"
    rest = "".join(rest for _, rest in without_reports([("w:0", block)]))
    wanted = [line for line in block.split("\n") if not line.removeprefix("w:0.1 ").startswith(REPORTER)]
    assert rest == "\n".join(wanted)


@given(st.lists(st.sampled_from(["a", "\n", "rep", REPORTER, "0.5", "\r"]), max_size=12))
def test_lines_of_progress_are_left_out_however_they_were_cut(parts: list[str]) -> None:
    got = "".join(one["data"] for one in without_progress(piece(part) for part in parts))
    text = "".join(parts)
    assert got == "".join(line for line in re.findall("[^\n]*\n|[^\n]+", text) if not line.startswith(REPORTER))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain\ttext", "plain\ttext"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("a\x1b[2Jb\x1b[1;1Hc", "abc"),
        ("\x1b]0;title\x07here", "here"),
        ("10 %\r20 %\r30 %", "30 %"),
        ("windows\r", "windows"),
        ("bell\x07\x00", "bell"),
    ],
)
def test_a_program_cannot_move_on_the_terminal(line: str, shown: str) -> None:
    assert clean(line) == shown
    assert "\x1b" not in clean(line, colours=False)


@given(
    st.lists(st.sampled_from(["a", "\n", "\r", "\x1b[31m", "\x1b[0m", "\x1b]0;t", "\x07", "\x1b[2J", "\x1b", "\udc80"]))
)
def test_many_lines_are_cleaned_as_each_of_them_is(parts: list[str]) -> None:
    text = "".join(parts)
    assert clean(text) == "\n".join(clean(line) for line in text.split("\n"))


def test_a_colour_ends_with_its_line() -> None:
    assert clean("\x1b[31mred\nplain\n") == "\x1b[31mred\x1b[0m\nplain\n"


@pytest.mark.parametrize("cut", range(12))
def test_the_last_lines_are_cut_out_of_the_pieces(cut: int) -> None:
    text = "\n\u00e9a\n\nbcd\nef\n"
    parts = [{"task": "worker:0", "attempt": 1, "data": data} for data in (text[:cut], text[cut:])]
    parts[0] |= {"offset": 0, "next": len(text[:cut].encode())}
    parts[1] |= {"offset": len(text[:cut].encode()), "next": len(text.encode())}
    other = {"task": "worker:1", "attempt": 1, "offset": 0, "next": 1, "data": "x"}
    for count, wanted in enumerate(
        ("", "x", "ef\nx", "bcd\nef\nx", "\nbcd\nef\nx", "\u00e9a\n\nbcd\nef\nx", text + "x", text + "x")
    ):
        found = last([*parts, other], count)
        assert "".join(part["data"] for part in found) == wanted
        assert all(part["next"] - part["offset"] == len(part["data"].encode()) for part in found)
        assert all(one["next"] == two["offset"] for one, two in itertools.pairwise(found) if two["task"] == "worker:0")


def test_columns_are_aligned() -> None:
    assert columns([("a", 1), ("bbb", "long")], ("N", "VALUE")) == ["N    VALUE", "a    1", "bbb  long"]


def test_many_names_are_cut_short() -> None:
    assert names(["worker:0"]) == "worker:0"
    assert names([f"w:{i}" for i in range(20)]) == "w:0, w:1, w:2, w:3, w:4, w:5, w:6 and 13 more"


def ended(state: str = "failed", **more: object) -> dict[str, object]:
    return {
        "job": "digits-abcdef",
        "state": state,
        "submitted": 100.0,
        "at": 112.5,
        "restarts": 0,
        "outputs": {},
        "tasks": [],
        **more,
    }


def task(name: str = "worker:0", state: str = "running", **more: object) -> dict[str, object]:
    return {"task": name, "state": state, "phase": state, "attempt": 1, "started": 100.0, **more}


def test_success_names_what_came_out() -> None:
    events = [
        {"type": "output-committed", "outputs": {"model": {"files": 2, "bytes": 1024}}},
        {"type": "output-committed", "outputs": {"model": {"files": 1, "bytes": 1024}}},
    ]
    lines = ended_lines(ended("succeeded", outputs={"model": "/out"}), output_sizes(events))
    assert lines == ["digits-abcdef succeeded after 12.5 s", "  model: /out (3 files, 2 KiB)"]


def test_failure_tells_the_first_and_equal_ones_once() -> None:
    tail = ["Traceback", "ValueError: rank 0 is wrong"]
    reason = {"reason": "exit", "words": "exited with status 1", "advice": "look", "task": "worker:0", "tail": tail}
    tasks = [
        {
            "task": f"worker:{i}",
            "state": "failed",
            "reason": "exit",
            "words": "exited with status 1",
            "tail": [f"ValueError: rank {i} is wrong"],
        }
        for i in range(4)
    ]
    tasks.append({"task": "ps:0", "state": "lost", "reason": "node-lost", "words": "its node n1 was lost"})
    assert ended_lines(ended(reason=reason, tasks=tasks, restarts=1)) == [
        "digits-abcdef failed after 12.5 s, after 1 restart",
        "  worker:0 exited with status 1",
        "  | Traceback",
        "  | ValueError: rank 0 is wrong",
        "  the same happened to worker:1, worker:2, worker:3",
        "  ps:0: its node n1 was lost",
        "  look",
    ]


def test_success_names_who_failed_all_the_same() -> None:
    tasks = [task(state="succeeded"), task("worker:1", "failed", reason="exit", words="exited with status 3")]
    assert ended_lines(ended("succeeded", tasks=tasks))[1:] == [
        "  worker:1 exited with status 3: completion.failures allows it"
    ]


def test_a_rule_of_the_job_is_reported_by_itself_and_then_who_failed_and_why() -> None:
    """What the rule counted is not the first failing task's own reason."""
    reason = {
        "reason": "too-many-failures",
        "words": "2 of 8 tasks failed, more than allowed",
        "task": "try:1",
        "tail": [],
    }
    failed = {"state": "failed", "reason": "exit", "words": "exited with status 1"}
    tasks = [
        task("try:1", "succeeded", reason=""),
        task("try:5", **failed, since=7.0, tail=["boom 5"]),
        task("try:3", **failed, since=5.0, tail=["boom 3"]),
    ]
    assert ended_lines(ended(reason=reason, tasks=tasks))[1:] == [
        "  2 of 8 tasks failed, more than allowed",
        "  try:3 exited with status 1",
        "  | boom 3",
        "  the same happened to try:5",
    ]


def test_rows_of_tasks_say_what_they_do_and_what_they_did_not() -> None:
    status = {
        "tasks": [
            task(doing="compiling"),
            task("worker:1", attempt=2, past=[{"attempt": 1, "words": "was killed by SIGKILL"}]),
            task(
                "worker:2",
                attempt=2,
                past=[{"attempt": 1, "words": "was killed"}],
                waits="waits for the lock x, which ps:0 holds",
            ),
            task("ps:0", "killed", reason="not-needed", words="was stopped, the job being complete"),
        ]
    }
    rows = [line.split(maxsplit=1)[1] for line in task_rows(status)[1:]]
    assert rows[0].startswith("running (compiling)")
    assert rows[1].endswith("attempt 1 was killed by SIGKILL")
    assert rows[2].endswith("waits for the lock x, which ps:0 holds")
    assert rows[3].startswith("stopped ")


def test_a_job_that_has_not_ended_is_said_in_one_line() -> None:
    status = {**ended("running"), "phase": "running", "waiting": "", "submitted": 100.0}
    assert standing(status, 136.0) == "digits-abcdef running, submitted 36 s ago"
    status |= {"phase": "1 of 2 running, 1 pending", "restarts": 1}
    assert standing(status, 136.0) == "digits-abcdef running, submitted 36 s ago, 1 restart: 1 of 2 running, 1 pending"


def test_shards_are_counted_in_words() -> None:
    told = shard_figures({"done": 1580, "held": 40, "free": 80, "total": 1700})
    assert told == "1,580 of 1,700 shards done, 40 held by tasks, 80 to be given out"
    assert shard_figures({"done": 1580, "total": 1700}) == "1,580 of 1,700 shards done", "no master is there to ask"


def test_only_the_last_lines_of_a_failing_task_are_shown() -> None:
    reason = {"reason": "exit", "words": "exited", "task": "worker:0", "tail": [f"line {i}" for i in range(100)]}
    lines = ended_lines(ended(reason=reason))
    assert [line for line in lines if "|" in line] == [f"  | line {i}" for i in range(80, 100)]


def test_the_last_lines_name_what_was_lost() -> None:
    log = {
        "kind": "log",
        "bytes": 2**20,
        "detail": "1,048,576 bytes of its output could not be written: disk full",
        "at": 1.0,
    }
    checkpoint = {"kind": "checkpoint", "detail": "nobody answers", "attempt": 1, "at": 1.0}
    losses = [
        {**log, "task": "worker:0", "attempt": 1},
        {**log, "task": "worker:0", "attempt": 2},
        {**log, "task": "worker:1", "attempt": 1},
        {**checkpoint, "task": "worker:0", "set": 4},
        {**checkpoint, "task": "", "set": None},
    ]
    for state in ("succeeded", "killed", "failed"):
        assert ended_lines(ended(state, losses=losses, reason={"words": "x"}))[-3:] == [
            "  lost: 3 MiB of the output of worker:0, worker:1 could not be written: disk full",
            "  lost: no checkpoint of worker:0 was stored after set 4: nobody answers",
            "  lost: no checkpoint was ever stored: nobody answers",
        ]


def test_an_unknown_event_is_shown_as_such() -> None:
    assert "{'speed': 3}" in event_line({"v": "1.9", "n": 7, "at": 0.5, "epoch": 1, "type": "warped", "speed": 3})


CAUSE = {"task": "worker:1", "attempt": 1, "reason": "signal", "figures": {"name": "SIGKILL"}}


@pytest.mark.parametrize(
    ("kind", "data", "told"),
    [
        ("master-started", {}, "master 1 started"),
        (
            "ordered",
            {"verb": "prepare", "tasks": [["w:0", 1, 1, "1"], ["w:1", 1, 1, "1"]]},
            "prepare was sent to w:0, w:1",
        ),
        ("sized", {"sizes": {"ps": 1, "worker": 2}}, "the gang begins with 1 x ps, 2 x worker"),
        ("progressed", {"task": "w:0", "value": 0.5, "step": 7}, "w:0 made progress: 50 % step 7"),
        ("shards-done", {"input": "train", "ranges": [[0, 10]], "task": "w:0"}, "10 shards of train done by w:0"),
        (
            "uploaded",
            {"task": "w:0", "outputs": {"m": {"files": 1, "bytes": 2}}},
            "w:0 uploaded its outputs: 1 file, 2 B",
        ),
        ("rewound", {"set": None}, "the group goes back to its beginning"),
        ("rewound", {"set": 3}, "the group goes back to checkpoint set 3"),
        ("settled", {"cause": CAUSE}, "the cause of a failure was settled: worker:1 was killed by SIGKILL"),
        ("kill-requested", {"by": "ada", "why": "had enough"}, "ada asked to kill the job: had enough"),
        ("ended", {"state": "failed", "reason": "exit"}, "the job ended: exited"),
        ("step-done", {"step": "outputs", "gave_up": "no room"}, "step done: outputs: no room"),
        (
            "incident",
            {"unit": "group:0", "cause": CAUSE, "again": True, "costs": True, "spent": 1, "limit": 3},
            "a failure was taken up: worker:1 was killed by SIGKILL; all start again (restart 1 of 3)",
        ),
    ],
)
def test_events_say_whom_and_how_much(kind: str, data: dict[str, object], told: str) -> None:
    line = event_line({"v": "1.0", "n": 7, "at": 86400.5, "epoch": 1, "type": kind, **data})
    assert line.endswith(f"  {told}")
    assert re.match(r"1970-01-0[12] \d\d:\d\d:00\.500 [+-]\d{4}      7  ", line)


def test_watching_is_plain_where_nobody_looks() -> None:
    out, err = io.StringIO(), io.StringIO()
    status = {**ended("running"), "phase": "granted 0/1", "waiting": "waiting for cores: asked 4, free 2"}
    items = [
        {"lost": 4.0},
        {"status": status},
        {"status": {**status, "waiting": "waiting for cores: asked 4, free 3"}},
        {"log": piece("one\ntw")},
        {"log": piece("o\nreporter progress:0.5\nlast")},
        {"end": ended("succeeded")},
    ]
    assert watch("digits-abcdef", items, out, err)["state"] == "succeeded"
    assert out.getvalue() == "worker:0 one\nworker:0 two\nworker:0 last\n"
    assert err.getvalue().splitlines() == [
        "digits-abcdef: no master answers since 4 s; it is taken up again",
        "digits-abcdef: waiting for cores: asked 4, free 2",
        "digits-abcdef succeeded after 12.5 s",
    ]


def test_a_sample_counts_once() -> None:
    seen = Watching("digits-abcdef")
    for at, cpu in [(101, 0.5), (101, 0.5), (102, 1.0)]:
        seen.take({"status": {**ended("running"), "tasks": [task(cpu=cpu, at=at)]}})
    assert list(seen.cpu["worker:0"]) == [0.5, 1.0]
    assert spark([0.0, 0.5, 1.0], 1.0) == "▁▅█"


@pytest.mark.parametrize(
    ("task", "roles_too", "words"),
    [
        ("wrker", True, "has no task wrker; did you mean worker?"),
        ("wrker", False, "has no task wrker; did you mean worker:0?"),
        ("wroker:1", True, "has no task wroker:1; did you mean worker:1?"),
        ("worker", False, "has no task worker; did you mean worker:0?"),
        ("worker:7", True, "has no task worker:7\n"),
        ("sidecar", True, "has no task sidecar\n"),
        (
            "worker:0.1",
            True,
            "worker:0.1 is not a task but one of the copies of the program of worker:0\n  name the task: worker:0",
        ),
    ],
)
def test_a_task_that_is_misspelt_is_reported_with_the_nearest(task: str, roles_too: bool, words: str) -> None:
    with pytest.raises(NotFound) as error:
        check_task("", task, ["worker:0", "worker:1", "ps:0"], roles_too)
    assert words in str(error.value)


def test_a_job_has_come_as_far_as_its_shards_or_the_mean_of_its_tasks() -> None:
    tasks = [
        {"state": "succeeded", "counts": True}, {"state": "running", "counts": True, "progress": 0.5},
        {"state": "running", "counts": False, "progress": 0.9}, {"state": "pending", "counts": True},
    ]  # fmt: skip
    status: dict[str, Any] = {"state": "running", "shards": {}, "tasks": tasks}
    assert job_progress(status) == 0.5
    assert job_progress({**status, "tasks": tasks[3:]}) is None
    assert job_progress({**status, "shards": {"train": {"total": 10, "done": 6, "aside": 1}}}) == 0.7
    assert job_progress({**status, "state": "succeeded"}) == 1.0
