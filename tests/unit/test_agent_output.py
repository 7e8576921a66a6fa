"""What programs print, kept whole: long lines, bytes that are no text, much of it, full disks, pipes that stay open."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until_async

from trainmaster.agent.attempt import program
from trainmaster.agent.attempt.program import Launch
from trainmaster.agent.attempt.threads import DiskThread
from trainmaster.agent.output import capture as output
from trainmaster.agent.output import spool
from trainmaster.agent.output.capture import Output
from trainmaster.agent.output.followers import CREDIT, Follows, Source
from trainmaster.agent.output.spool import MIB, Spool
from trainmaster.host import linux
from trainmaster.host import process_tree as processes
from trainmaster.host.allowance import Allowance


@pytest.fixture(autouse=True)
def orphans() -> Iterator[None]:
    linux.adopt_orphans()
    yield
    processes.reap_orphans(os.getpid(), ())
    linux.adopt_orphans(False)


def collect(command: list[str] | str, kept: Spool, told: Callable[[float], None] = lambda value: None) -> Output:
    """Run `command` to its end, with its output in the spool."""

    async def act() -> Output:
        collector = Output(kept, told)
        environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
        running = await program.start(Launch(command, "/", environ, Allowance.present()), collector.ends)
        collector.started()
        await running.wait()
        await running.tidy()
        await collector.drained()
        return collector

    return asyncio.run(act())


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_both_streams_are_kept_in_order(tmp_path: Path) -> None:
    code = "import os\nfor n in range(50): os.write(1 + n % 2, b'%d\\n' % n); __import__('time').sleep(.002)"
    collect(python(code), Spool(str(tmp_path / "log")))
    assert (tmp_path / "log").read_text().split() == [str(n) for n in range(50)]


def test_bytes_that_are_no_text_and_lines_without_end_are_kept(tmp_path: Path) -> None:
    code = "import os\nos.write(1, bytes(range(256)) * 40000)\nos.write(2, b'x' * 3_000_000)"
    collector = collect(python(code), Spool(str(tmp_path / "log")))
    assert sorted((tmp_path / "log").read_bytes()) == sorted(bytes(range(256)) * 40000 + b"x" * 3_000_000)
    assert collector.read == 256 * 40000 + 3_000_000
    assert len(spool.tail(str(tmp_path / "log"))[-1]) <= 2000


def test_the_end_is_not_lost_when_the_program_ends_at_once(tmp_path: Path) -> None:
    for n in range(20):
        collect(f"printf '%s' 'the last words {n}'", Spool(str(tmp_path / str(n))))
        assert (tmp_path / str(n)).read_text() == f"the last words {n}"


def test_a_program_that_closes_its_output_runs_on(tmp_path: Path) -> None:
    collect(f"exec >&- 2>&-; sleep 0.2; echo well > {tmp_path}/done", Spool(str(tmp_path / "log")))
    assert (tmp_path / "done").read_text() == "well\n"
    assert (tmp_path / "log").read_bytes() == b""


def test_a_child_left_behind_does_not_hold_the_end_up(tmp_path: Path) -> None:
    begun = time.monotonic()
    collect("echo before; (setsid sleep 1000 &)", Spool(str(tmp_path / "log")))
    assert time.monotonic() - begun < 100
    assert (tmp_path / "log").read_text() == "before\n"


def test_a_pipe_held_by_a_stranger_is_given_up_after_a_moment(tmp_path: Path) -> None:
    async def act() -> None:
        collector = Output(Spool(str(tmp_path / "log")), lambda value: None)
        held = os.dup(collector.ends[0][0])
        collector.started()
        os.write(held, b"words")
        await collector.drained()
        os.close(held)

    asyncio.run(act())
    assert (tmp_path / "log").read_text() == "words"


def printed(tmp_path: Path, size: int) -> float:
    code = f"import os\nline = b'0123456789abcde\\n' * 65536\nfor n in range({size // MIB}): os.write(1, line)"
    begun = time.monotonic()
    collector = collect(python(code), Spool(str(tmp_path / "log")))
    assert collector.read == size == os.path.getsize(tmp_path / "log")
    return time.monotonic() - begun


def test_200_mb_are_taken_in_seconds(tmp_path: Path) -> None:
    assert printed(tmp_path, 200 * MIB) < 120


@pytest.mark.soak
def test_1_gb_is_taken_in_seconds(tmp_path: Path) -> None:
    assert printed(tmp_path, 1024 * MIB) < 300


def test_progress_lines_on_stderr_are_heard(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = (
        "import os, time\nos.write(2, b'x' * 100 + b'\\nreporter pro'); time.sleep(.1)\n"
        "os.write(2, b'gress:0.42'); time.sleep(.1); os.write(2, b'50\\n')\n"
        f"end = time.time() + 60\nwhile not os.path.exists({str(go)!r}) and time.time() < end: time.sleep(.02)\n"
        "os.write(2, b'reporter progress:7\\nreporter progress:nan\\n'); time.sleep(.1)\n"
        "os.write(2, b'reporter progress:0.5\\nreporter progress: 1.0\\nreporter progress:2\\n')"
    )
    heard: list[float] = []

    def hear(value: float) -> None:
        heard.append(value)
        go.touch()

    collect(python(code), Spool(str(tmp_path / "log")), hear)
    assert heard == [0.425, 1.0]


def test_a_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    kept = Spool(str(tmp_path / "log"), limit=MIB, head=64 * 1024)
    for n in range(400_000):
        kept.write(b"%09d\n" % n)
    assert kept.printed == 4_000_000
    kept.close()
    text = (tmp_path / "log").read_bytes()
    assert MIB // 3 < len(text) <= MIB
    (mark,) = re.finditer(rb"\n\[trainmaster: +(\d+) bytes left out here to keep within 1048576\]\n", text)
    head, end = text[: mark.start()], text[mark.end() :]
    assert head == b"".join(b"%09d\n" % n for n in range(7000))[: 64 * 1024]
    assert len(head) + int(mark[1]) + len(end) == 4_000_000
    assert end.endswith(b"000399999\n")
    again = Spool(str(tmp_path / "log"), limit=MIB, head=64 * 1024)
    again.write(b"more\n")
    again.close()
    assert again.printed == 4_000_005


class Full:
    """A disk that takes nothing while `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self._write = os.write
        monkeypatch.setattr(spool.os, "write", self.write)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.full and threading.current_thread().name == "output":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, data)


def test_a_full_disk_leaves_a_mark_and_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Full(monkeypatch)
    kept = Spool(str(tmp_path / "log"))

    async def act() -> None:
        collector = Output(kept, lambda value: None)
        out = collector.ends[0][0]
        await asyncio.to_thread(os.write, out, b"before\n")
        await until_async(lambda: kept.size == 7)
        disk.full = True
        for _ in range(40):
            await asyncio.to_thread(os.write, out, b"y" * MIB)
        await until_async(lambda: kept.lost == 40 * MIB)
        disk.full = False
        await asyncio.to_thread(os.write, out, b"after\n")
        collector.started()
        await collector.drained()

    asyncio.run(act())
    text = (tmp_path / "log").read_text()
    assert text == f"before\n\n[trainmaster: {40 * MIB} bytes left out here, No space left on device]\nafter\n"


def test_a_dead_disk_does_not_stop_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "STUCK", 0.2)
    answers = threading.Event()
    kept = Spool(str(tmp_path / "log"))
    write = kept.write
    monkeypatch.setattr(kept, "write", lambda data: (answers.wait(60), write(data))[1])

    async def act() -> None:
        collector = Output(kept, lambda value: None)
        running = await program.start(
            Launch(
                python("import os\nfor n in range(64): os.write(1, b'z' * (1 << 20))"),
                "/",
                dict(os.environ),
                Allowance.present(),
            ),
            collector.ends,
        )
        collector.started()
        async with asyncio.timeout(60):
            assert (await running.wait()).well
        await running.tidy()
        answers.set()
        await collector.drained()

    asyncio.run(act())
    text = (tmp_path / "log").read_bytes()
    assert text.count(b"z") + kept.lost == 64 * MIB
    assert kept.lost > 0


def test_the_tail_is_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"".join(b"line %d\n" % n for n in range(10_000)) + b"5%\r50%\r100%\nend \xff")
    assert spool.tail(str(tmp_path / "log"))[-3:] == ["line 9999", "100%", "end \ufffd"]
    assert len(spool.tail(str(tmp_path / "log"))) == 20
    assert spool.tail(str(tmp_path / "none")) == []


# -- following --


def test_a_follower_gets_all_at_its_own_pace(tmp_path: Path) -> None:
    text = "Zeile mit Umlauten: äöü€😀\n" * 20_000
    (tmp_path / "log").write_text(text)
    follows = Follows("worker:0", lambda attempt: Source(str(tmp_path / "log"), MIB))
    follows.follow(7, 1, 0)
    got, offset, pieces = "", 0, 0
    while True:
        piece = follows.next()
        if piece is None:
            assert pieces >= CREDIT
            follows.window(7, 1)
            continue
        pieces += 1
        assert piece["offset"] == offset
        got, offset = got + piece["data"], piece["next"]
        if piece["end"]:
            break
    assert got == text
    assert follows.next() is None


def test_a_follower_waits_for_what_is_still_to_come(tmp_path: Path) -> None:
    kept = Spool(str(tmp_path / "log"))
    kept.write("halb: ä".encode()[:-1])
    ended = False

    def source(attempt: int) -> Source:
        return Source(str(tmp_path / "log"), MIB, growing=not ended, printed=kept.printed)

    follows = Follows("worker:0", source)
    follows.follow(1, 1, 0)
    piece = follows.next()
    assert piece is not None
    assert (piece["data"], piece["end"]) == ("halb: ", False)
    assert follows.next() is None
    kept.write("ä".encode()[1:])
    piece = follows.next()
    assert piece is not None
    assert (piece["data"], piece["offset"]) == ("ä", 6)
    assert follows.next() is None
    kept.close()
    ended = True
    piece = follows.next()
    assert piece is not None
    assert (piece["data"], piece["end"]) == ("", True)


def test_a_reader_who_wants_what_is_there_gets_that_and_an_end(tmp_path: Path) -> None:
    kept = Spool(str(tmp_path / "log"))
    kept.write(b"so far")
    known = {1: Source(str(tmp_path / "log"), MIB, growing=True)}
    follows = Follows("worker:0", known.get)
    follows.follow(1, 1, 0, once=True)
    follows.follow(2, 9, 0, once=True)
    told = []
    while (piece := follows.next()) is not None:
        kept.write(b" and more")
        told.append((piece["id"], piece["data"], piece["end"]))
    assert told == [(1, "so far", False), (2, "", True), (1, "", True)]


class Reading:
    """A reader of a log that is written as it reads: what it got, and what it was told is missing."""

    def __init__(self, kept: Spool) -> None:
        self.follows = Follows("worker:0", lambda attempt: Source(kept.path, kept.head, True, kept.printed))
        self.follows.follow(1, 1, 0)
        self.follows.window(1, 1000)
        self.at, self.got, self.gaps = 0, b"", list[int]()

    def read(self) -> None:
        while (piece := self.follows.next()) is not None:
            assert piece["offset"] == self.at
            self.at = piece["next"]
            if "left_out" in piece:
                assert piece["data"] == f"\n[trainmaster: {piece['left_out']} bytes left out here]\n"
                self.gaps.append(piece["left_out"])
                self.got += b"?" * piece["left_out"]
            else:
                self.got += piece["data"].encode()


def test_a_follower_of_an_attempt_that_is_not_known_here_waits_for_its_file(tmp_path: Path) -> None:
    begun = False
    follows = Follows("worker:0", lambda attempt: Source(str(tmp_path / "log"), MIB, begun=begun))
    follows.follow(1, 1, 0)
    assert follows.next() is None
    (tmp_path / "log").write_text("all of it")
    begun = True
    assert [(follows.next() or {})["data"] for _ in range(2)] == ["all of it", ""]


def test_a_disk_that_hangs_holds_up_no_loop_and_no_other_work_of_the_agent(tmp_path: Path) -> None:
    """A named pipe that nobody writes answers as little as a mount that hangs."""
    os.mkfifo(tmp_path / "log")

    async def act() -> None:
        turned = asyncio.Event()
        follows = Follows("worker:0", lambda attempt: Source(f"{tmp_path}/log", MIB), DiskThread().do, turned.set)
        follows.follow(1, 1, 0)
        assert follows.next() is None
        assert follows.next() is None
        writer = await until_async(lambda: opened(tmp_path / "log"), what="the thread that hangs in open(2)")
        os.close(writer)
        await turned.wait()
        assert (follows.next() or {})["end"], "what is no file has nothing to tell"

    asyncio.run(act())


def opened(pipe: Path) -> int | None:
    """Return a descriptor that writes a named pipe, None while nobody reads it."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


LINES = [b"%09d\n" % n for n in range(400_000)]


def test_a_follower_in_step_misses_nothing_when_the_log_is_compacted(tmp_path: Path) -> None:
    kept = Spool(str(tmp_path / "log"), limit=MIB, head=64 * 1024)
    reading = Reading(kept)
    for n, line in enumerate(LINES):
        kept.write(line)
        if n % 5000 == 0:
            reading.read()
    reading.read()
    kept.close()
    assert reading.got == b"".join(LINES)
    assert reading.gaps == []


def test_a_follower_that_comes_too_late_is_reported_how_much_it_misses(tmp_path: Path) -> None:
    kept = Spool(str(tmp_path / "log"), limit=MIB, head=64 * 1024)
    reading = Reading(kept)
    for n, line in enumerate(LINES):
        kept.write(line)
        if n in (50_000, 150_000, 399_999):
            reading.read()
    kept.close()
    assert len(reading.got) == kept.printed == 4_000_000
    assert len(reading.gaps) == 2  # the first time it came in time
    assert all(got in (b"?"[0], wanted) for got, wanted in zip(reading.got, b"".join(LINES), strict=True))
    assert reading.got.count(b"?") == sum(reading.gaps)


def test_ended_programs_are_signalled_no_more(tmp_path: Path) -> None:
    async def act() -> None:
        collector = Output(Spool(str(tmp_path / "log")), lambda value: None)
        running = await program.start(Launch(["true"], "/", {}, Allowance.present()), collector.ends)
        collector.started()
        await running.wait()
        running.signal(signal.SIGTERM)
        assert await running.stop(signal.SIGTERM, 1.0) == []
        await collector.drained()

    asyncio.run(act())
