"""A dead master's successor: begun once, by the lowest agent that lives, with the secrets through a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from waiting import until, until_async

from trainmaster.agent.link import successor
from trainmaster.agent.link.successor import Presence
from trainmaster.host.linux import look

MASTER = """
import json, os, pathlib, signal, socket, sys
place = pathlib.Path(sys.argv[1])
told = sys.stdin.read()
with open(place / "begun", "a") as file:
    file.write(json.dumps({"pid": os.getpid(), "told": json.loads(told), "argv": sys.argv, "session": os.getsid(0)}) + "\\n")
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(place / "master.sock"))
listening.listen()
signal.pause()
"""


def agent(place: str, task: str, ready: object) -> None:
    """An agent's part in it: present, and seeing to a successor."""

    seen = Path(f"{place}/seen-{task.replace(':', '-')}")

    async def act() -> None:
        presence = Presence(f"{place}/agents", task, 1)
        ready.set()  # type: ignore[attr-defined]
        await until_async(Path(place, "go").exists)

        def spawn() -> int:
            told = {"token": "t", "secrets": {"A": "b"}, "by": task}
            command = [sys.executable, "-I", "-c", MASTER]
            output = f"{place}/logs/trace"
            return successor.spawn(place, told, cwd="/", output=output, umask=0o022, command=command)

        while not await successor.answers(f"{place}/master.sock"):
            await successor.succeed(place, presence, f"{place}/master.sock", spawn, lambda: None)
        await asyncio.to_thread(seen.touch)
        await asyncio.Event().wait()

    asyncio.run(act())


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[dict[str, multiprocessing.process.BaseProcess]]:
    context = multiprocessing.get_context("fork")
    started = {}
    try:
        for task in ("worker:10", "worker:2", "ps:0"):
            ready = context.Event()
            started[task] = context.Process(target=agent, args=(str(tmp_path), task, ready))
            started[task].start()
            assert ready.wait(60)
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.join()
        for begun in masters(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(begun["pid"], signal.SIGKILL)


def masters(place: Path) -> list[dict]:  # type: ignore[type-arg]
    path = place / "begun"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_lowest_living_agent_starts_the_only_successor(tmp_path: Path, agents: dict[str, object]) -> None:
    (tmp_path / "go").touch()
    until(lambda: len(list(tmp_path.glob("seen-*"))) == 3)
    (begun,) = masters(tmp_path)
    assert begun["told"] == {"token": "t", "secrets": {"A": "b"}, "by": "ps:0"}
    assert begun["session"] == begun["pid"], "detached"
    assert "b" not in begun["argv"]


def test_where_the_lowest_has_died_the_next_one_does_it(
    tmp_path: Path, agents: dict[str, multiprocessing.process.BaseProcess]
) -> None:
    agents["ps:0"].kill()
    agents["ps:0"].join()
    (tmp_path / "go").touch()
    until(lambda: len(list(tmp_path.glob("seen-*"))) == 2)
    (begun,) = masters(tmp_path)
    assert begun["told"]["by"] == "worker:2"


def test_nobody_succeeds_a_master_that_lives(tmp_path: Path) -> None:
    presence = Presence(str(tmp_path / "agents"), "worker:0", 1)

    def never() -> int:
        raise AssertionError("started a successor")

    asyncio.run(
        successor.succeed(str(tmp_path), presence, str(tmp_path / "none.sock"), never, lambda: look(os.getpid()))
    )
    presence.close()


def test_a_master_is_dead_though_another_process_has_its_pid(tmp_path: Path) -> None:
    presence = Presence(str(tmp_path / "agents"), "worker:0", 1)
    ours = look(os.getpid())
    assert ours is not None
    dead = attrs.evolve(ours, start=ours.start - 1)
    begun = []

    def spawn() -> int:
        with subprocess.Popen(["true"]) as process:
            begun.append(process.pid)
        return process.pid

    asyncio.run(successor.succeed(str(tmp_path), presence, str(tmp_path / "none.sock"), spawn, lambda: dead))
    assert len(begun) == 1
    presence.close()


def test_presence_is_in_order_of_index_not_of_letters(tmp_path: Path) -> None:
    found = [Presence(str(tmp_path), f"worker:{n}", 3) for n in (2, 10, 1)]
    assert found[1].lower() == ["worker-1@3", "worker-2@3"]
    found[2].close()
    assert found[1].lower() == ["worker-2@3"]
    assert (tmp_path / "worker-2@3").read_text() == f"{os.getpid()}\n"
    for presence in found[:2]:
        presence.close()


def test_a_container_has_one_agent(tmp_path: Path) -> None:
    first, next_one = Presence(str(tmp_path), "worker:0", 4), Presence(str(tmp_path), "worker:0", 5)
    with pytest.raises(BlockingIOError):
        Presence(str(tmp_path), "worker:0", 4)
    first.close()
    Presence(str(tmp_path), "worker:0", 4).close()
    next_one.close()


def test_an_answer_is_a_connection_taken(tmp_path: Path) -> None:
    async def act() -> None:
        assert not await successor.answers(str(tmp_path / "none.sock"))
        server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), str(tmp_path / "a.sock"))
        assert await until_async(lambda: successor.answers(str(tmp_path / "a.sock")))
        server.close()

    asyncio.run(act())
