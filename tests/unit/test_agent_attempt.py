"""One attempt after another in the same container, without a program: what goes on in threads."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until_async

from trainmaster.agent.attempt import attempt as attempts
from trainmaster.agent.attempt import storage_retry
from trainmaster.agent.attempt.attempt import Attempt
from trainmaster.agent.attempt.materials import Materials
from trainmaster.agent.attempt.place import Place
from trainmaster.agent.attempt.workplace import Workplace
from trainmaster.agent.link.channel import Link
from trainmaster.agent.link.programs import Programs
from trainmaster.agent.output.shipping import Shipping
from trainmaster.agent.supervise import _VERBS, Agent
from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.orders import ORDERS, order_fields, order_message
from trainmaster.data.store.transfer import Flow
from trainmaster.host.allowance import Allowance
from trainmaster.host.process_tree import kin
from trainmaster.log.storage import LocalStorage
from trainmaster.runtime import folders


class Slow(Workplace):
    """A workplace on a storage that answers when it is told to."""

    def __init__(self, work: Path) -> None:
        super().__init__(str(work), str(work / "private"))
        self.steps: list[str] = []
        self.answers = threading.Event()

    def furnish(self, order: Any) -> None:
        self.steps.append(f"begin {order['cwd']}")
        assert self.answers.wait(60)
        self.steps.append(f"end {order['cwd']}")


def order(verb: str, **more: Any) -> dict[str, Any]:
    """The fields of an order that has only what it must, and `more`."""
    return order_fields(order_message(1, 1, verb, **{"workdir": "share"} | more if verb == "prepare" else more))


def place(folder: Path, workplace: Workplace, reports: list[tuple[str, int]]) -> Place:
    async def nothing(*given: Any) -> Any:
        return {}

    return Place(
        job="job", task="worker:0", serial=1, on_this_machine=False, memory_limit="", logs=str(folder), workplace=workplace,
        programs=Programs(str(folder / "none.sock"), nothing), materials=Materials("job", "worker:0", str(folder)),
        allowance=Allowance.present(), environ={}, secrets={}, report=lambda kind, number, **fields: reports.append((kind, number)),
        acknowledged=nothing, sample=lambda message: None, grown=lambda: None,
    )  # fmt: skip


def test_an_agent_obeys_each_verb() -> None:
    assert {*_VERBS, "leave", "warm-up"} == {*ORDERS}


def test_the_password_of_a_url_is_covered_by_itself_too(tmp_path: Path) -> None:
    container = place(tmp_path, Workplace(str(tmp_path), str(tmp_path)), [])
    container.secrets = {"worker": {"DATABASE": "db://me:hunter2-hunter2@here/x"}}
    assert container.secret_values == ["db://me:hunter2-hunter2@here/x", "hunter2-hunter2"]


class Group:
    """A control group for memory, as the kernel would make it."""

    def __init__(self) -> None:
        self.there = True

    def add(self, pid: int = 0) -> None:
        """Nobody is in it."""

    def remove(self) -> None:
        self.there = False


def test_the_control_group_of_a_program_that_could_not_start_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, reports = Group(), []
    monkeypatch.setattr(Place, "limit_memory", lambda self, limit: group)

    async def act() -> None:
        attempt = Attempt(1, place(tmp_path, Workplace(str(tmp_path), str(tmp_path / "private")), reports))
        attempt.prepare(order("prepare"))
        await until_async(lambda: ("ready", 1) in reports)
        attempt.start(order("start", command=["./missing"], memory=1 << 30))
        await until_async(lambda: ("ended", 1) in reports)
        await attempt.end()

    asyncio.run(act())
    assert not group.there


def test_an_agent_that_is_reported_to_end_ships_the_last_words_of_its_program(tmp_path: Path) -> None:
    reports: list[tuple[str, int]] = []
    command = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"

    async def act() -> None:
        agent = Agent(Link("token", socket=str(tmp_path / "master.sock")))
        stored = LocalStorage(str(tmp_path / "stored"))
        shared = place(tmp_path, Workplace(str(tmp_path), str(tmp_path / "private")), reports)
        agent.settle(shared, Shipping(lambda: stored, "worker:0"))
        running = asyncio.create_task(agent.run())
        agent.receive(order_message(1, 1, "prepare", workdir="share"))
        await until_async(lambda: ("ready", 1) in reports)
        agent.receive(order_message(1, 1, "start", command=command))
        await until_async(lambda: (tmp_path / "1.log").exists() and "ready" in (tmp_path / "1.log").read_text())
        agent.over("terminated")
        await running

    asyncio.run(act())
    assert reports[-1] == ("ended", 1)
    assert (tmp_path / "stored/logs/worker-0/1.log").read_text().endswith("saved\n")


def test_a_part_waits_for_a_storage_that_is_away_while_its_attempt_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program was stopped and has its grace: what it had made was dropped, and done again."""
    monkeypatch.setattr(storage_retry, "AGAIN", 0.01)
    reports: list[tuple[str, int]] = []
    uploads: list[int] = []

    def upload(self: Materials, *arguments: Any) -> dict[str, Any]:
        uploads.append(arguments[-1])
        if len(uploads) == 1:
            failure = StorageFailed("the NameNode restarts", mend="wait")
            failure.__cause__ = OSError(errno.ECONNREFUSED, "refused")
            raise failure
        return {}

    monkeypatch.setattr(Materials, "upload", upload)

    async def act() -> None:
        attempt = Attempt(1, place(tmp_path, Workplace(str(tmp_path), str(tmp_path / "private")), reports))
        attempt._halt.set()  # as the stop of a running program does
        assert await attempt._upload(1, {}) == {}

    asyncio.run(act())
    assert uploads == [1, 1]


def test_a_disk_that_a_program_hangs_on_does_not_hang_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that may hold a Python cannot be opened: it is a pipe which nobody writes to."""
    monkeypatch.setattr(attempts, "STACKS_WITHIN", 0.5)
    library, reports = tmp_path / "libpython3.so", []
    library.write_bytes(Path(re.findall(r"/\S*/libm\.so\.6", maps(os.getpid()))[0]).read_bytes())

    async def act() -> None:
        attempt = Attempt(1, place(tmp_path, Workplace(str(tmp_path), str(tmp_path / "private")), reports))
        attempt.prepare(order("prepare"))
        await until_async(lambda: ("ready", 1) in reports)
        command = f"LD_PRELOAD={library} exec sleep 1000"
        attempt.start(order("start", command=command))
        await until_async(lambda: any(str(library) in maps(process.pid) for process in kin(os.getpid())))
        await until_async(lambda: attempt._watching is not None)
        library.unlink()
        os.mkfifo(f"{library} (deleted)")
        stopping = asyncio.ensure_future(attempt.stop(None, 0.1, shows_stacks=True))
        await turns()
        assert not stopping.done(), "the loop goes on meanwhile"
        await stopping
        await until_async(lambda: ("ended", 1) in reports)
        await attempt.end()
        os.close(os.open(f"{library} (deleted)", os.O_RDWR | os.O_NONBLOCK))

    asyncio.run(act())
    assert re.search(r" sleep state .*\n.*what other processes do was not read", (tmp_path / "1.log").read_text())


def maps(pid: int) -> str:
    """Return the files that a process has in its memory, and where; "" where it has ended."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def turns() -> None:
    """Some turns of the loop, in which what could happen does."""
    looks = iter(range(10))
    await until_async(lambda: next(looks) == 5)


def test_a_copy_that_does_not_give_up_is_over_before_the_next_attempt_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "COPIED_WITHIN", 0.05)

    async def act() -> None:
        workplace, reports = Slow(tmp_path), []
        shared = place(tmp_path, workplace, reports)
        first, second = Attempt(1, shared), Attempt(2, shared)
        try:
            first.prepare(order("prepare", cwd="first"))
            await until_async(lambda: workplace.steps == ["begin first"])
            await first.stop(None, None)
            assert reports == [("ended", 1)], "an end is told in time, whatever hangs"
            second.prepare(order("prepare", cwd="second"))
            await turns()
        finally:
            workplace.answers.set()
        await until_async(lambda: ("ready", 2) in reports)
        assert workplace.steps == ["begin first", "end first", "begin second", "end second"]

    asyncio.run(act())


def test_a_stopped_attempt_has_ended_when_its_copy_has_given_up(tmp_path: Path) -> None:
    async def act() -> None:
        workplace, reports = Slow(tmp_path), []
        first = Attempt(1, place(tmp_path, workplace, reports))
        first.prepare(order("prepare", cwd="first"))
        await until_async(lambda: workplace.steps == ["begin first"])
        stopping = asyncio.create_task(first.stop(None, None))
        await turns()
        try:
            assert reports == []
        finally:
            workplace.answers.set()
        await stopping
        assert (workplace.steps[-1], reports) == ("end first", [("ended", 1)])

    asyncio.run(act())


def prepared(folder: Path, url: str) -> list[tuple[str, int]]:
    """Prepare an attempt that writes an output. Return what was reported, up to its end or to "ready"."""

    async def act() -> list[tuple[str, int]]:
        workplace, reports = Slow(folder), []
        workplace.answers.set()
        output = {"url": url, "as": "upload", "local": "m"}
        Attempt(1, place(folder, workplace, reports)).prepare(order("prepare", cwd="first", outputs={"m": output}))
        await until_async(lambda: {kind for kind, _ in reports} & {"ready", "ended"})
        return reports

    return asyncio.run(act())


def test_an_output_whose_place_cannot_be_written_for_seconds_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, pauses = tmp_path / "results", []
    results.write_text("no directory\n")
    monkeypatch.setattr(Flow, "pause", lambda flow, seconds: pauses.append(seconds))
    assert prepared(tmp_path, f"{results}/m") == [("ended", 1)]
    assert 1 < sum(pauses) < 60
    monkeypatch.setattr(Flow, "pause", lambda flow, seconds: results.unlink())
    assert prepared(tmp_path, f"{results}/m") == [("ready", 1)]


def test_an_output_whose_place_is_away_as_an_attempt_begins_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder, tries = os.mkdir, []

    def away(path: str, *mode: int) -> None:
        tries.append(path)
        if len(tries) < 10:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        make_folder(path, *mode)

    (tmp_path / "private").mkdir()
    monkeypatch.setattr(folders, "os", SimpleNamespace(**{**vars(os), "mkdir": away}))
    monkeypatch.setattr(Flow, "pause", lambda flow, seconds: None)
    monkeypatch.setattr(storage_retry, "AGAIN", 0.01)
    assert prepared(tmp_path, f"{tmp_path}/m") == [("warned", 1), ("ready", 1)]
    assert len(tries) == 10


def test_what_programs_report_is_redacted_before_it_is_cut_and_names_stay_apart(tmp_path: Path) -> None:
    container = place(tmp_path, Workplace(str(tmp_path), str(tmp_path)), [])
    container.secrets = {"worker": {"LOGIN": "hunter2-hunter2", "OTHER": "hunter3-hunter3"}}
    programs = container.programs
    assert programs.shown("x" * 50 + " hunter2-hunter2", 64) == "x" * 50 + " [redacted]"
    assert programs.shown("loss", 64) == programs.secretless("loss") == "loss"
    names = [programs.secretless(f"lock of {name}") for name in ("hunter2-hunter2", "hunter3-hunter3")]
    assert all(name.startswith("lock of [redacted] ") for name in names)
    assert len({*names}) == 2
    assert names[0] == programs.secretless("lock of hunter2-hunter2")


def test_a_name_that_is_reported_often_is_redacted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(Place, "redact", lambda self, text: texts.append(text) or text)
    container = place(tmp_path, Workplace(str(tmp_path), str(tmp_path)), [])
    for _ in range(1000):
        container.programs.shown("loss", 64)
    assert texts == ["loss"]
