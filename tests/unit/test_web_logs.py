"""The pages of logs: windows on logs of any size, searches, lines as they come, and hostile contents."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from printed_logs import Answer, PrintedLogs, get
from starlette.applications import Starlette
from waiting import until_async

from trainmaster.client.jobs.past import Past
from trainmaster.client.jobs.places import job_storage
from trainmaster.core.errors import StorageFailed
from trainmaster.core.spec.job import Logs
from trainmaster.log.output import mark
from trainmaster.web.contract import Reader
from trainmaster.web.pages.app import job_pages
from trainmaster.web.pages.logs import stream, windows
from trainmaster.web.pages.logs.windows import (
    find_error,
    last_window,
    search_backward,
    search_forward,
    text_finder,
    window_after,
    window_around,
    window_before,
)

TASK = "worker:0"
LINE = re.compile(r'<div class="(line[^"]*)" id="([\w-]+)">.*?<div class="text">(.*?)</div></div>', re.DOTALL)


def pages(facts: PrintedLogs, live: bool = True) -> Starlette:
    return job_pages(facts, lambda request: Reader(live=live))  # type: ignore[arg-type]


def shown(html: str) -> list[str]:
    """Return the text of the lines of a page."""
    return [unescape(re.sub(r"<[^>]*>", "", text)) for _, _, text in LINE.findall(html)]


def link(html: str, label: str) -> str:
    """Return the address behind a link, by its text."""
    (address,) = re.findall(rf'href="([^"]*)"[^>]*>{label}</a>', html)
    return "/logs/worker:0" + unescape(address)


@pytest.fixture
def facts(tmp_path: Path) -> PrintedLogs:
    return PrintedLogs(tmp_path, TASK, "worker:1")


def run(act: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(act(), 120))


lines_of_all_lengths = st.lists(
    st.one_of(st.integers(0, 90), st.integers(0, 90), st.integers(200, 700)).map(lambda size: b"x" * size), max_size=60
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lines_of_all_lengths, st.booleans(), st.integers(0, 5000))
def test_windows_follow_each_other_without_gap_or_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes], has_end: bool, at: int
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 256)
    monkeypatch.setattr(windows, "LINES", 20)
    data = b"\n".join(lines) + b"\n" * has_end
    facts = PrintedLogs(tmp_path, TASK)
    facts.path(TASK, 1).write_bytes(data)

    async def act() -> None:
        def text(window: windows.Window) -> bytes:
            return data[window.begin : window.end]

        def rest(window: windows.Window) -> bytes:
            return b"".join(line.data for line in window.lines if line.open)

        window = await window_after(facts, TASK, 1, 0)
        forward = [window]
        while not window.last:
            assert window.lines
            window = await window_after(facts, TASK, 1, window.end)
            assert window.begin == forward[-1].end
            forward.append(window)
        assert b"".join(map(text, forward)) + rest(window) == data
        window = await last_window(facts, TASK, 1)
        assert window.last
        end, backward = rest(window), [window]
        while window.begin:
            window = await window_before(facts, TASK, 1, window.begin)
            assert window.end == backward[-1].begin
            assert window.lines
            backward.append(window)
        assert b"".join(text(window) for window in reversed(backward)) + end == data
        around = await window_around(facts, TASK, 1, at)
        for line in [line for window in (*forward, *backward, around) for line in window.lines]:
            assert data[line.position : line.position + len(line.data)] == line.data
        if at < len(data):
            assert any(line.position <= at <= line.position + max(len(line.data), 1) for line in around.lines)

    run(act)


def test_a_page_reads_its_window_alone(facts: PrintedLogs) -> None:
    path = facts.path(TASK, 1)
    with path.open("wb") as file:
        file.truncate(3 * 1024**3)  # a hole
        file.seek(3 * 1024**3)
        file.write(b"\nfirst of the end\nlast\n")

    async def act() -> None:
        answer = await get(pages(facts), f"/logs/{TASK}")
        assert answer.status == 200
        assert shown(answer.text)[-2:] == ["first of the end", "last"]
        assert [offset for _, offset in facts.opened] == [3 * 1024**3 + 23 - windows.WINDOW]

    run(act)


def test_links_lead_through_the_whole_log_without_scripts(facts: PrintedLogs) -> None:
    facts.path(TASK, 1).write_bytes(b"".join(b"line %06d\n" % n for n in range(20_000)))

    async def act() -> None:
        answer = await get(pages(facts), f"/logs/{TASK}")
        seen = shown(answer.text)
        assert seen[-1] == "line 019999"
        while "earlier</a>" in answer.text:
            answer = await get(pages(facts), link(answer.text, "earlier"))
            seen = shown(answer.text) + seen
        assert seen == [f"line {n:06}" for n in range(20_000)]
        forward = shown(answer.text)
        while "later</a>" in answer.text:
            answer = await get(pages(facts), link(answer.text, "later"))
            forward += shown(answer.text)
        assert forward == seen
        answer = await get(pages(facts), f"/logs/{TASK}?attempt=1&at=50006")
        (here,) = [row for row in LINE.findall(answer.text) if "here" in row[0]]
        assert here[1:] == ("b1-50004", "line 004167")

    run(act)


@pytest.mark.parametrize("needle", ["Needle", "nädel", "<b>"])
def test_a_search_finds_forward_and_backward_what_is_there(facts: PrintedLogs, needle: str) -> None:
    chance = random.Random(7)
    filler = [bytes(chance.choices(b"abc de\xc3\xa4", k=chance.randrange(200))) + b"\n" for _ in range(20_000)]
    for at in (5, 9_000, 19_990):
        filler[at] = f"a {needle.upper()} here\n".encode()
    data = b"".join(filler)
    places = [match.start() for match in re.finditer(re.escape(needle.upper().encode()), data)]
    facts.path(TASK, 1).write_bytes(data)

    async def act() -> None:
        begin, forward = 0, []
        while (found := await search_forward(facts, TASK, 1, begin, text_finder(needle))).position is not None:
            forward.append(found.position)
            begin = found.position + 1
        assert (forward, found.complete) == (places, True)
        end, backward = len(data), []
        while (found := await search_backward(facts, TASK, 1, end, needle)).position is not None:
            backward.append(found.position)
            end = found.position
        assert (backward, found.complete) == (places[::-1], True)

    run(act)


def test_a_search_reads_a_bounded_part_and_goes_on(facts: PrintedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "SCAN", 1024 * 1024)
    line = b"nothing to see in this line of the log\n"
    facts.path(TASK, 1).write_bytes(line * 80_000 + b"the END is here\n" + line * 10)

    async def act() -> None:
        answer = await get(pages(facts), f"/logs/{TASK}?find=end+is")
        steps = 0
        while answer.status == 200:
            assert "was not found as far as byte" in answer.text
            answer = await get(pages(facts), link(answer.text, "search on"))
            steps += 1
        assert steps == 2
        assert answer.headers["location"] == f"?find=end+is&attempt=1&at={len(line) * 80_000}#b1-{len(line) * 80_000}"
        answer = await get(pages(facts), f"/logs/{TASK}{answer.headers['location'].partition('#')[0]}")
        assert '<span class="hit">END is</span>' in answer.text
        nowhere = f"/logs/{TASK}?find=end+is&from={len(line) * 80_000 + 16}"
        answer = await get(pages(facts), nowhere)
        assert "does not come again after" in answer.text
        assert (await get(pages(facts), f"/logs/{TASK}?find=end+is&back=1")).status == 303

    run(act)


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("Traceback (most recent call last):", True), ("ValueError: no", True), ("torch.OutOfMemoryError: CUDA out of memory.", True),
        ("java.lang.IllegalStateException: x", True), ("2026-11-26 ERROR could not", True), ("main.c:3: error: expected ;", True),
        ("panic: runtime", True), ("Segmentation fault (core dumped)", True), ("Killed", True), ("KeyboardInterrupt", False),
        ("loss 0.1 error: 0.02", False), ("mean error 0.3", False), ("0 errors", False), ("test_error_handling ok", False), ("", False),
    ],
)  # fmt: skip
def test_the_line_of_an_error_is_known(line: str, is_error: bool) -> None:
    data = b"fine\n" * 3 + line.encode() + b"\nfine\n"
    assert find_error(data) == (15 if is_error else -1)


def test_the_first_error_is_shown_with_the_end_of_the_task(facts: PrintedLogs) -> None:
    data = (
        b"step error: 0.1\n" * 9_000
        + b"Traceback (most recent call last):\n  File\nValueError: bad\n"
        + b"later\n" * 30_000
    )
    facts.path(TASK, 1).write_bytes(data)
    facts.rows[TASK] |= {"state": "failed", "words": "exited with status <1>"}

    async def act() -> None:
        answer = await get(pages(facts), f"/logs/{TASK}?at=error")
        assert answer.headers["location"] == f"?attempt=1&at={16 * 9_000}#b1-{16 * 9_000}"
        answer = await get(pages(facts), f"/logs/{TASK}?attempt=1&at={16 * 9_000}")
        assert "Attempt 1: exited with status &lt;1&gt;" in answer.text
        answer = await get(pages(facts), f"/logs/{TASK}?at=error&from={len(data) - 60}")
        assert "does not come again" in answer.text

    run(act)


def test_hostile_lines_and_names_are_text(facts: PrintedLogs) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    facts.rows[evil] = {"task": evil, "state": "running", "attempt": 1}
    facts.path(TASK, 1).write_bytes(
        f"{evil}\n\x1b]8;;javascript:alert(1)\x1b\\x\x1b]8;;\x1b\\\n".encode() + b"\xff\x00\x9b\n"
    )

    async def act() -> None:
        for address in (f"/logs/{TASK}", "/logs", f"/logs?tasks={TASK}", f"/logs/{TASK}?find=%3Cscript%3E&from=900"):
            answer = await get(pages(facts), address)
            assert answer.status == 200, answer.text
            assert "<script>alert" not in answer.text
            assert "<img" not in answer.text
            assert "style=" not in answer.text
        assert shown((await get(pages(facts), f"/logs/{TASK}")).text) == [evil, "x", "\ufffd\ufffd"]
        for bad in (
            "at=x",
            "attempt=-1",
            "attempt=9",
            "after=1e9",
            "before=" + "9" * 40,
            "at=" + "9" * 17,
            "from=%D9%A1&find=x",
        ):
            assert (await get(pages(facts), f"/logs/{TASK}?{bad}")).status in (400, 404)
        for path in (
            "/logs/worker:9",
            "/logs/..%2F..",
            "/logs/stream?places=x",
            "/logs/stream?places=worker:9,1,0",
            "/logs?tasks=x",
        ):
            assert (await get(pages(facts), path)).status in (400, 404), path

    run(act)


def test_what_is_left_out_and_long_lines_are_named(tmp_path: Path) -> None:
    logs = Logs(limit=4000, first=100)
    facts = PrintedLogs(tmp_path, TASK, logs=logs)
    facts.path(TASK, 1).write_bytes(b"a" * 99 + b"\n" + mark(5_000_000, 4000) + b"rest\n" + b"z" * 9_000 + b"\n")

    async def act() -> None:
        answer = await get(pages(facts), f"/logs/{TASK}?after=0")
        assert "left out here, to keep within the log" in answer.text
        assert shown(answer.text) == ["a" * 99]
        answer = await get(pages(facts), link(answer.text, "later"))
        assert "7,000 more characters of this line" in answer.text
        (rest,) = [row for row in LINE.findall(answer.text) if row[2] == "rest"]
        assert rest[1] == f"b1-{100 + 5_000_000}"
        window = await window_before(facts, TASK, 1, 100 + 5_000_000)
        assert [(line.position, line.left_out) for line in window.lines] == [(100, 5_000_000)]
        window = await window_before(facts, TASK, 1, 100)
        assert [line.data for line in window.lines] == [b"a" * 99]
        assert (await search_backward(facts, TASK, 1, 5_000_100, "aaa")).position == 96
        raw = await get(pages(facts), f"/logs/{TASK}/raw")
        assert raw.headers["content-disposition"] == 'attachment; filename="digits-abcdef-worker-0-1.log"'
        assert raw.text.startswith("a" * 99 + "\n\n[trainmaster: 5000000 bytes left out here]\nrest\n")

    run(act)


class Following:
    """A page that follows logs."""

    def __init__(self, facts: PrintedLogs, places: str, last: str = "") -> None:
        self._answer = Answer()
        headers = {"last-event-id": last} if last else {}
        address = "/logs/stream?places=" + places.replace(" ", "%20")
        self.task = asyncio.create_task(get(pages(facts), address, self._answer, headers))

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        rows = re.findall(r"id: (.*)\nevent: log\ndata: (.*)\n\n", self._answer.text)
        return [(place, json.loads(data)) for place, data in rows]

    @property
    def lines(self) -> list[str]:
        """Return what the page shows: new lines replace the line that was open."""
        rows: list[tuple[str, str]] = []
        for _, event in self.events:
            if event["html"] and not event["restarted"]:
                rows = [row for row in rows if "open" not in row[0]]
            rows = [("", text) for _, text in rows]
            rows += [
                (classes, unescape(re.sub("<[^>]*>", "", text))) for classes, _, text in LINE.findall(event["html"])
            ]
        return [text for _, text in rows]

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def test_lines_come_as_they_are_printed_over_restarts_to_the_end(facts: PrintedLogs) -> None:
    async def act() -> None:
        await facts.print(TASK, b"one\ntw")
        page = Following(facts, f"{TASK},1,0")
        await until_async(lambda: page.lines == ["one", "tw"])
        await facts.print(TASK, b"o\n 10 %")
        await until_async(lambda: page.lines == ["one", "two", " 10 %"])
        await facts.print(TASK, b"\r 20 %")
        await until_async(lambda: page.lines == ["one", "two", " 20 %"])
        facts.rows[TASK]["attempt"] = 2
        await facts.print(TASK, b"again\n", 2)
        await until_async(lambda: page.lines[-1:] == ["again"])
        (restart,) = [event for _, event in page.events if event["restarted"]]
        assert "attempt 2 began" in restart["html"]
        facts.rows[TASK]["state"] = "succeeded"
        await facts.print(TASK, b"end\n", 2)
        await page.task
        assert page.lines == ["one", "two", " 20 %", "again", "end"]
        assert page.events[-1] == (f"{TASK},2,10", page.events[-1][1])
        assert page.events[-1][1]["over"]

    run(act)


def test_a_page_that_lost_its_connection_goes_on_where_it_was(facts: PrintedLogs) -> None:
    async def act() -> None:
        await facts.print(TASK, b"one\ntwo\n")
        await facts.print("worker:1", b"other\n")
        first = Following(facts, f"{TASK},1,0 worker:1,1,0")
        await until_async(lambda: sorted(first.lines) == ["one", "other", "two"])
        place = first.events[-1][0]
        await first.close()
        await facts.print(TASK, b"three\n")
        second = Following(facts, f"{TASK},1,0 worker:1,1,0", place)
        await until_async(lambda: second.lines == ["three"])
        await second.close()

    run(act)


def test_much_output_is_skipped_and_counted(facts: PrintedLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "EVERY", 0.01)

    async def act() -> None:
        page = Following(facts, f"{TASK},1,0")
        block = b"".join(b"line %08d of a program that prints much\n" % n for n in range(200_000))
        await facts.print(TASK, block)
        facts.rows[TASK]["state"] = "succeeded"
        await facts.wake()
        await page.task
        skipped = sum(event["skipped"] for _, event in page.events)
        texts = page.lines
        assert skipped + sum(len(text) + 1 for text in texts) == len(block)
        assert skipped > 0.8 * len(block)
        assert texts[-1].startswith("line 00199999")
        assert "skipped here, printed faster than a page can show" in "".join(event["html"] for _, event in page.events)

    run(act)


def test_an_attempt_that_never_began_is_not_waited_for(facts: PrintedLogs) -> None:
    """The job is killed while the task waits to be started again."""

    async def act() -> None:
        await facts.print(TASK, b"one\n")
        page = Following(facts, f"{TASK},1,0")
        facts.rows[TASK] |= {"attempt": 2, "state": "pending", "started": None}
        await until_async(lambda: page.lines == ["one"])
        facts.rows[TASK]["state"], facts.ended = "killed", 2.0
        await facts.wake()
        await page.task
        assert not [event for _, event in page.events if event["restarted"]]
        answer = await get(pages(facts, live=False), f"/logs/{TASK}/part?follow=1&attempt=1&after=4")
        assert json.loads(answer.text)["over"]

    run(act)


def test_a_page_behind_a_proxy_polls(facts: PrintedLogs) -> None:
    async def act() -> None:
        app = pages(facts, live=False)
        assert (await get(app, f"/logs/stream?places={TASK},1,0")).status == 403
        await facts.print(TASK, b"one\ntw")

        async def news(attempt: int, after: int) -> dict[str, Any]:
            answer = await get(app, f"/logs/{TASK}/part?follow=1&attempt={attempt}&after={after}")
            content: dict[str, Any] = json.loads(answer.text)
            return content

        content = await news(1, 0)
        assert (shown(content["html"]), content["end"], content["over"]) == (["one", "tw"], 4, False)
        await facts.print(TASK, b"o\n" + b"much\n" * 300_000)
        content = await news(1, 4)
        assert content["skipped"] > 1_000_000
        end = content["end"]
        facts.rows[TASK]["attempt"] = 2
        content = await news(1, end)
        assert (content["attempt"], content["end"], content["restarted"]) == (2, 0, True)
        await facts.print(TASK, b"again\n", 2)
        facts.rows[TASK]["state"] = "failed"
        content = await news(2, 0)
        assert (shown(content["html"]), content["over"]) == (["again"], True)

    run(act)


def test_an_error_of_the_storage_ends_the_stream_and_is_reported_to_who_asks_then(
    facts: PrintedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*arguments: Any) -> Any:
        raise StorageFailed("the disk is <gone>")
        yield

    async def act() -> None:
        monkeypatch.setattr(facts, "log", fails)
        answer = await get(pages(facts), f"/logs/stream?places={TASK},1,0")
        assert (answer.status, "event: log" in answer.text) == (200, False)
        answer = await get(pages(facts), f"/logs/{TASK}/part?follow=1&attempt=1&after=0")
        assert (answer.status, "the disk is &lt;gone&gt;" in answer.text) == (503, True)

    run(act)


def test_several_logs_are_side_by_side(facts: PrintedLogs) -> None:
    async def act() -> None:
        await facts.print(TASK, b"zero\n")
        await facts.print("worker:1", b"one\n")
        answer = await get(pages(facts), "/logs?tasks=worker:0,worker:1")
        assert shown(answer.text) == ["zero", "one"]
        ids = re.findall(r' id="([^"]*)"', answer.text)
        assert len(ids) == len(set(ids))
        assert 'href="logs/worker%3A0?attempt=1&amp;at=0#b1-0"' in answer.text
        assert (await get(pages(facts), "/logs?tasks=" + ",".join(f"worker:{n}" for n in range(9)))).status == 400
        assert "logs/worker%3A1" in (await get(pages(facts), "/logs")).text

    run(act)


PROGRAM = """
import os, sys
attempt = os.environ["TRAINMASTER_ATTEMPT"]
print("\\x1b[32mattempt\\x1b[0m", attempt, "<b>", flush=True)
sys.stdout.write("".join(f"\\r{n} %" for n in range(101)) + "\\n")
if attempt == "1":
    raise ValueError("the first attempt fails")
"""


def test_the_logs_of_a_real_job(tmp_path: Path, home: Any) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "trainmaster.cli", "run", "--name", "real", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (job,) = [path.name for path in (tmp_path / "state" / "jobs").iterdir() if path.name.startswith("real-")]
    facts = PrintedLogs(Path(job_storage(job)), TASK)
    facts.rows = {row["task"]: row for row in Past(job).status()["tasks"]}
    facts.ended = 1.0

    async def act() -> None:
        last = await get(pages(facts), f"/logs/{TASK}")
        assert shown(last.text) == ["attempt 2 <b>", "100 %"]
        assert '<span class="f2">attempt</span> 2 &lt;b&gt;' in last.text
        answer = await get(pages(facts), f"/logs/{TASK}?attempt=1&at=error")
        assert answer.status == 303
        answer = await get(pages(facts), f"/logs/{TASK}{answer.headers['location'].partition('#')[0]}")
        (here,) = [row[2] for row in LINE.findall(answer.text) if "here" in row[0]]
        assert here == "Traceback (most recent call last):"
        assert "ValueError: the first attempt fails" in shown(answer.text)
        assert "Attempt 1: exited with status 1" in answer.text
        assert "it has logged nothing" in (await get(pages(facts), "/logs/master")).text
        page = Following(facts, f"{TASK},1,0")
        await page.task
        assert page.lines[-2:] == ["attempt 2 <b>", "100 %"]

    run(act)
