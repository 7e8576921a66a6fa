"""A whole agent, as a process of its own, under a master of this test: attempts from their preparation to their end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until_async
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed

import trainmaster
from trainmaster.core.frames import Joiner, content_frames, split
from trainmaster.core.machine.orders import order_faults, order_message
from trainmaster.data.archives import pack
from trainmaster.data.checkpoints import save_set
from trainmaster.data.sources import list_input
from trainmaster.engines.statuses import BY_AGENT, BY_ENGINE, OUT_OF_REACH, TERMINATED
from trainmaster.host import places
from trainmaster.host import processes as marked
from trainmaster.host.linux import look

SOURCE = str(Path(trainmaster.__file__).parent.parent)
# As in a container; once the agent has ended it says what of the modules that are seldom needed was loaded.
LAZY = f"""
import json, sys
sys.path.insert(0, {SOURCE!r})
from trainmaster.lazy import SELDOM, lazily
lazily()
from trainmaster.agent.main import run
spec = json.load(sys.stdin)
run(spec)
loaded = [name for name in SELDOM if vars(sys.modules[name]).get("__file__")]
open(spec["cwd"] + "/loaded", "w").write(" ".join(loaded))
"""
START = f"import sys; sys.path.insert(0, {SOURCE!r}); sys.argv = ['agent']; import trainmaster.agent.__main__"


class Master:
    """Gives orders, acknowledges reports, remembers everything."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder, self.runtime = folder, runtime / "job"
        self.runtime.mkdir(exist_ok=True)
        self.socket = str(self.runtime / "master.sock")
        self.epoch, self.acked = 1, 0
        self.connection: ServerConnection | None = None
        self.hellos: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self.logs: dict[int, str] = {}
        self.ends: set[int] = set()
        self.agent: subprocess.Popen[bytes] | None = None
        self.away = self.deaf = False  # whether it closes each connection at once; whether it acknowledges nothing
        self.unacknowledged: list[dict[str, Any]] = []

    def spec(self, **more: Any) -> dict[str, Any]:
        return {
            "job_id": "job", "task": "worker:0", "serial": 1, "socket": self.socket, "token": "secret",
            "storage": str(self.folder / "storage"), "runtime": str(self.runtime), "secrets": {"": {"HF_TOKEN": "hidden"}},
            "cwd": str(self.folder), **more,
        }  # fmt: skip

    def begin(self, code: str = START, **more: Any) -> None:
        self.agent = subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE)
        assert self.agent.stdin is not None
        self.agent.stdin.write(json.dumps(self.spec(**more)).encode())
        self.agent.stdin.close()

    async def serve(self, connection: ServerConnection) -> None:
        if self.away:
            return
        joiner = Joiner()
        with contextlib.suppress(ConnectionClosed):
            async for frame in connection:
                if (message := joiner.add(frame)) is not None:
                    await self.take(message, connection)

    async def take(self, message: dict[str, Any], connection: ServerConnection) -> None:
        match message["type"]:
            case "hello":
                self.hellos.append(message)
                await connection.send(json.dumps({"type": "welcome", "epoch": self.epoch, "acked": self.acked}))
                self.connection = connection
            case "report" if self.deaf:
                self.unacknowledged.append(message)
            case "report":
                if message["n"] > self.acked:
                    self.acked = message["n"]
                    self.reports.append(message)
                await connection.send(json.dumps({"type": "ack", "n": message["n"]}))
            case "sample":
                self.samples.append(message)
            case "log":
                self.logs[message["id"]] = self.logs.get(message["id"], "") + message["data"]
                if message["end"]:
                    self.ends.add(message["id"])
                await self.say({"type": "window", "id": message["id"], "frames": 1})

    async def say(self, message: dict[str, Any]) -> None:
        await until_async(lambda: self.connection is not None)
        assert self.connection is not None
        for frame in split(message):
            await self.connection.send(frame)

    async def order(self, verb: str, attempt: int = 1, **fields: Any) -> None:
        order = order_message(self.epoch, attempt, verb, **{"id": str(attempt)} | fields)
        assert order_faults(order) == []
        await self.say(order)

    async def report(self, kind: str, attempt: int = 1) -> dict[str, Any]:
        """The first report of a kind about an attempt, once it has come."""

        def found() -> dict[str, Any] | None:
            return next((r for r in self.reports if r["kind"] == kind and r["attempt"] == attempt), None)

        told = await until_async(
            found, what=lambda: f"{kind} among {[(r['kind'], r.get('reason')) for r in self.reports]}"
        )
        assert told is not None
        return told

    async def start(
        self, command: list[str] | str, attempt: int = 1, prepare: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        """Bring an attempt to running, or to its end."""
        await self.order("prepare", attempt, **(prepare or {"workdir": "share", "cwd": str(self.folder)}))
        await self.report("ready", attempt)
        await self.order("start", attempt, command=command, **fields)

    async def run(self, command: list[str] | str, **fields: Any) -> dict[str, Any]:
        """Run a command to the end of attempt 1."""
        await self.start(command, **fields)
        return await self.report("ended")

    def log(self, attempt: int = 1) -> str:
        path = self.folder / "storage" / "logs" / "worker-0" / f"{attempt}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def play(tmp_path: Path, home: Any) -> Callable[..., None]:
    """`play(act)`: run `act(master)` with a master that listens; the agent that it begins is gone afterwards, with all of its own."""

    @contextlib.asynccontextmanager
    async def stage() -> AsyncIterator[Master]:
        folder = tmp_path / "place"
        folder.mkdir()
        master = Master(folder, home.runtime)
        try:
            async with unix_serve(master.serve, master.socket, compression=None, max_size=64 * 1024):
                yield master
        finally:
            if master.agent is not None:
                master.agent.terminate()
                try:
                    await asyncio.to_thread(master.agent.wait, 60)
                finally:
                    master.agent.kill()
            shutil.rmtree(home.runtime / "job")
            places.remove_job_dir("job")

    def run(act: Callable[[Master], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with stage() as master:
                await act(master)

        asyncio.run(whole())

    return run


def test_an_attempt_from_its_preparation_to_the_leave(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        command = "echo out; echo err >&2; echo $HF_TOKEN $GREETING $TRAINMASTER_ATTEMPT $TRAINMASTER_PORT_MAIN $PYTHONUNBUFFERED"
        prepare = {"workdir": "share", "cwd": str(master.folder), "ports": {"main": 0, "fixed": 4711}}
        await master.start(command, prepare=prepare, env={"GREETING": "hello {port:main} {address}"})
        ended = await master.report("ended")
        ready = await master.report("ready")
        port = ready["ports"]["main"]
        assert ready["ports"]["fixed"] == 4711
        assert (ended["reason"], ended["status"], ended["figures"]) == ("exit", 0, {"status": 0})
        assert ended["tail"][-1] == f"hidden hello {port} 127.0.0.1 1 {port} 1"
        assert sorted(master.log().split("\n"))[1:3] == ["err", f"hidden hello {port} 127.0.0.1 1 {port} 1"]
        assert [r["n"] for r in master.reports] == list(range(1, len(master.reports) + 1))
        await master.order("leave")
        await master.report("left")
        assert master.agent is not None
        assert await until_async(lambda: master.agent.poll() is not None)
        assert master.agent.returncode == 0
        assert [path.name for path in master.runtime.glob("*.sock")] == ["master.sock"]

    play(act)


def test_an_agent_loads_nothing_that_is_seldom_needed(play: Callable[..., None]) -> None:
    """A signal handler of the loop loaded `inspect`, and a Unix socket `ssl`: a quarter of what an agent takes until its program starts."""

    async def act(master: Master) -> None:
        master.begin(LAZY)
        await master.run("true")
        await master.order("leave")
        await until_async(lambda: master.agent is not None and master.agent.poll() is not None)
        assert (master.folder / "loaded").read_text() == ""

    play(act)


def test_no_name_of_a_role_is_too_long_for_a_socket(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        room = 107 - len(
            f"{master.runtime}//{places._LONGEST_SOCKET}"
        )  # the longest directory in which a master has its own
        deep = master.runtime / ("d" * room)
        deep.mkdir()
        master.begin(task=f"{'r' * 63}:0", runtime=str(deep))
        ended = await master.run('test -S "$TRAINMASTER_SOCKET" && echo there')
        assert ended["tail"] == ["there"]

    play(act)


def test_orders_that_come_twice_do_nothing_twice(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        for _ in range(3):
            await master.order("prepare", workdir="share", cwd=str(master.folder))
        await master.report("ready")
        for _ in range(3):
            await master.order("start", command="echo once >> counted")
        await master.report("ended")
        await master.order("start", command="echo once >> counted")
        await master.order("stop")
        await master.start("true", attempt=2)
        await master.report("ended", 2)
        assert (master.folder / "counted").read_text() == "once\n"
        assert [r["kind"] for r in master.reports if r["attempt"] == 1] == [
            "ready", "started", "ended", "ended",  # a stop takes back what ended well and is not committed
        ]  # fmt: skip

    play(act)


def test_a_stop_ends_a_running_attempt_and_the_next_follows_in_the_same_container(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.start("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done")
        await master.report("started")
        await until_async(lambda: "ready" in master.log())
        await master.order("stop", signal="SIGTERM", grace=20)
        ended = await master.report("ended")
        assert ended["stopped"] is True
        assert master.log().endswith("saved\n")
        await master.start("echo second", attempt=2)
        assert (await master.report("ended", 2))["tail"] == ["second"]
        assert "stopped" not in await master.report("ended", 2)
        await master.order("stop", attempt=3)
        assert (await master.report("ended", 3))["stopped"] is True

    play(act)


def test_a_later_attempt_ends_the_one_before(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.start("exec sleep 1000")
        pid = (await master.report("started"))["pid"]
        await master.order("prepare", 2, workdir="share", cwd=str(master.folder))
        await master.report("ready", 2)
        assert look(pid) is None
        await master.order("start", 1, command="touch forbidden")
        await master.order("start", 2, command="true")
        await master.report("ended", 2)
        assert not (master.folder / "forbidden").exists()

    play(act)


@pytest.mark.parametrize(("command", "reason", "figures"), [
    ("exit 3", "exit", {"status": 3}),
    ("kill -9 $$", "signal", {"name": "SIGKILL", "core": False}),
    (["./not-there"], "command-not-found", None),
    (["/etc/passwd"], "not-executable", None),
])  # fmt: skip
def test_a_bad_end_is_reported_with_its_reason(
    play: Callable[..., None], command: Any, reason: str, figures: Any
) -> None:
    async def act(master: Master) -> None:
        master.begin()
        ended = await master.run(command)
        assert ended["reason"] == reason
        assert figures is None or ended["figures"] == figures

    play(act)


def test_a_port_in_use_is_blamed_on_us_once(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        prepare = {"workdir": "share", "cwd": str(master.folder), "ports": {"main": 0}}
        command = "echo 'OSError: [Errno 98] Address already in use' >&2; exit 1"
        await master.start(command, prepare=prepare)
        assert (await master.report("ended"))["reason"] == "address-in-use"
        await master.start(command, attempt=2, prepare=prepare)
        assert (await master.report("ended", 2))["reason"] == "exit"
        assert (await master.report("ready"))["ports"] != (await master.report("ready", 2))["ports"]

    play(act)


def test_copies_files_and_a_directory_of_its_own(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        source = master.folder / "source"
        source.mkdir()
        (source / "code.txt").write_text("code")
        master.begin()
        await master.start(
            'echo "$RANK $(cat $PEERS) $(cat code.txt) $(pwd)"',
            prepare={"workdir": "copy", "archive": pack(["."], f"{master.folder}/files", str(source)).path},
            env={"PEERS": "{files}/peers.json"}, copies=[{"RANK": "0"}, {"RANK": "1"}],
            files={"peers.json": "at {address}", "./list.txt": "in the directory"},
        )  # fmt: skip
        await master.report("ended")
        work = master.folder / "storage" / "work" / "worker-0"
        assert sorted(master.log().split("\n"))[1:] == [f"worker:0.{n} {n} at 127.0.0.1 code {work}" for n in "01"]
        assert (work / "list.txt").read_text() == "in the directory"

    play(act)


def test_large_files_that_came_ahead_of_a_start_are_there(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        digest, frames = content_frames(b'{"worker": "' + b"x" * 100_000 + b'"}')
        master.begin()
        await master.order("prepare", workdir="share", cwd=str(master.folder))
        await master.report("ready")
        assert master.connection is not None
        for frame in frames:
            await master.connection.send(frame)
        await master.order(
            "start", command="cat $PEERS $SAME $SMALL | wc -c", files={"small.txt": "four"},
            env={"PEERS": "{files}/peers.json", "SAME": "{files}/same.json", "SMALL": "{files}/small.txt"},
            contents={"peers.json": digest, "same.json": digest},
        )  # fmt: skip
        await master.report("ended")
        assert master.log().split() == [str(2 * 100_014 + 4)]

    play(act)


def test_an_environment_that_is_fixed_up_for_long_holds_up_nothing_else(play: Callable[..., None]) -> None:
    """conda-unpack may take minutes: an agent that answers no master meanwhile is written off."""

    async def act(master: Master) -> None:
        begun, go, programs = master.folder / "begun", master.folder / "go", master.folder / "env" / "bin"
        programs.mkdir(parents=True)
        (programs / "conda-unpack").touch()
        (programs / "python").write_text(f"#!/bin/sh\ntouch {begun}; until test -e {go}; do sleep 0.02; done\n")
        (programs / "python").chmod(0o755)
        master.begin(environment=str(programs.parent))
        await master.order("prepare", workdir="share", cwd=str(master.folder))
        await until_async(begun.exists)
        assert master.connection is not None
        master.connection.transport.abort()
        await until_async(lambda: len(master.hellos) == 2)
        assert master.reports == []
        go.touch()
        await master.report("ready")

    play(act)


def test_a_disk_that_hangs_at_the_end_of_a_program_holds_up_no_report(play: Callable[..., None]) -> None:
    """A named pipe that nobody writes answers as little as a mount that hangs."""

    async def act(master: Master) -> None:
        pipe = master.folder / "errors.json"
        os.mkfifo(pipe)
        master.begin()
        ended = await master.run(f"echo last words; touch {pipe}; exit 3", env={"TORCHELASTIC_ERROR_FILE": str(pipe)})
        assert (ended["reason"], ended["status"], ended["tail"]) == ("exit", 3, ["last words"])
        await master.order("leave")
        await master.report("left")

    play(act)


def test_files_cannot_leave_their_folder(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        ended = await master.run("true", files={"../../outside": "x"})
        assert ended["reason"] == "staging-failed"

    play(act)


def test_a_prepare_command_runs_once_a_container(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        prepare = {"workdir": "share", "cwd": str(master.folder), "prepare": "echo prepared | tee -a times"}
        await master.start("cat times", prepare=prepare)
        await master.report("ended")
        assert master.log() == "prepared\nprepared\n"
        await master.start("cat times", attempt=2, prepare=prepare)
        assert (await master.report("ended", 2))["tail"] == ["prepared"]

    play(act)


def test_a_prepare_command_that_fails_ends_the_attempt(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.order("prepare", workdir="share", cwd=str(master.folder), prepare="echo no; exit 5")
        ended = await master.report("ended")
        assert (ended["reason"], ended["figures"], ended["tail"]) == ("prepare-failed", {"status": 5}, ["no"])

    play(act)


def test_an_order_of_a_newer_master_is_obeyed_and_a_malformed_one_ends_the_attempt(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.say(order_message(1, 1, "prepare", workdir="share", cwd=str(master.folder), colour="green"))
        await master.report("ready")
        await master.say(order_message(1, 1, "start", memory="much"))
        ended = await master.report("ended")
        detail = "a malformed order to start: command is missing, memory must be whole or none, not 'much'"
        assert (ended["reason"], ended["figures"]) == ("agent-lost", {"detail": detail})

    play(act)


def test_a_prepare_command_is_stopped_as_the_role_says(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin(grace=3.0)
        command = "trap 'echo as said; exit 1' INT; echo ready; while :; do sleep 0.02; done"
        stop = {"signal": "SIGINT", "grace": 20}
        await master.order("prepare", workdir="share", cwd=str(master.folder), prepare=command, stop=stop)
        await until_async(lambda: "ready" in master.log())
        os.unlink(master.socket)
        assert master.connection is not None
        master.connection.transport.abort()
        await until_async(lambda: master.agent is not None and master.agent.poll() is not None)
        assert master.log() == "ready\nas said\n"

    play(act)


@pytest.mark.parametrize("memory_limit", [BY_ENGINE, BY_AGENT])
def test_memory_over_the_limit_is_ended_and_told_with_figures(play: Callable[..., None], memory_limit: str) -> None:
    """With a control group where one can be made, and by looking where not."""

    async def act(master: Master) -> None:
        master.begin(memory_limit=memory_limit)
        command = [
            sys.executable,
            "-c",
            "b = bytearray(200 << 20); print('held', flush=True); __import__('signal').pause()",
        ]
        ended = await master.run(command, memory=100 << 20)
        assert ended["reason"] == "out-of-memory"
        assert ended["figures"]["limit"] == 100 << 20
        assert ended["figures"]["used"] > 99 << 20

    play(act)


def test_files_that_a_program_maps_are_no_memory_of_its_own(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        program = (
            "import mmap, os, time\n"
            "held, size = [], 0\n"
            "files = {line.split()[-1] for line in open('/proc/self/maps')}\n"
            "with open(max(filter(os.path.isfile, files), key=os.path.getsize), 'rb') as file:\n"
            "    while size < 300 << 20:\n"
            "        held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))\n"
            "        size += len(held[-1])\n"
            "        sum(held[-1][n] for n in range(0, len(held[-1]), 4096))\n"
            "print('mapped', flush=True); time.sleep(1000)"
        )
        await master.start([sys.executable, "-c", program], memory=100 << 20)
        await until_async(lambda: "mapped" in master.log())
        seen = len(master.samples)
        await until_async(lambda: len(master.samples) > seen)
        assert master.samples[-1]["memory"] < 100 << 20
        await master.order("stop", signal="SIGKILL")
        assert (await master.report("ended"))["stopped"] is True

    play(act)


def test_a_silent_idle_program_is_ended_as_stalled(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        ended = await master.run("echo begun; exec sleep 1000", stall=1, stop={"signal": "SIGTERM", "grace": 5})
        assert ended["reason"] == "stalled"
        assert ended["figures"]["seconds"] >= 1
        assert "sleep state S" in master.log()

    play(act)


def test_followers_hear_what_is_printed_and_the_end(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        os.mkfifo(master.folder / "gate")
        await master.say({"type": "follow", "id": 5, "attempt": 1, "offset": 0})
        await master.start("echo one; read line < gate; echo two")
        await until_async(lambda: master.logs.get(5) == "one\n")
        await asyncio.to_thread((master.folder / "gate").write_text, "go\n")
        await master.report("ended")
        await until_async(lambda: 5 in master.ends)
        assert master.logs[5] == master.log()
        await master.say({"type": "follow", "id": 6, "attempt": 1, "offset": 2})
        await until_async(lambda: 6 in master.ends)
        assert master.logs[6] == master.log()[2:]

    play(act)


def test_progress_is_reported_and_sampled(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.start("echo 'reporter progress:0.25' >&2; exec sleep 1000")
        assert (await master.report("progress"))["value"] == 0.25
        sample = await until_async(lambda: next((one for one in master.samples if one["progress"] == 0.25), None))
        assert sample["memory"] > 0

    play(act)


def test_a_program_survives_a_new_master_that_comes_within_the_grace(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.start("exec sleep 1000")
        pid = (await master.report("started"))["pid"]
        assert master.connection is not None
        assert master.hellos[0]["holds"] == {}
        master.epoch = 2
        master.connection.transport.abort()
        await until_async(lambda: len(master.hellos) == 2)
        assert (master.hellos[1]["epoch"], master.hellos[1]["attempt"]) == (1, 1)
        assert look(pid) is not None
        await master.order("stop", signal="SIGKILL")
        await master.report("ended")

    play(act)


def test_an_agent_without_a_master_ends_its_program_after_the_grace(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin(grace=3.0)
        await master.start("exec sleep 1000", stop={"grace": 1})
        pid = (await master.report("started"))["pid"]
        os.unlink(master.socket)
        assert master.connection is not None
        master.connection.transport.abort()
        await until_async(lambda: master.agent is not None and master.agent.poll() is not None)
        assert look(pid) is None
        assert master.agent is not None
        assert master.agent.poll() == OUT_OF_REACH, "for the engine that sees the container end"

    play(act)


def test_an_agent_whose_runtime_directory_is_gone_ends_its_program_after_the_grace(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        gone = await asyncio.create_subprocess_exec("true")
        await gone.wait()
        master.begin(on_this_machine=True, memory_limit=BY_AGENT, grace=3.0, master_pid=gone.pid)
        await master.start("exec sleep 1000", stop={"grace": 1})
        pid = (await master.report("started"))["pid"]
        shutil.rmtree(master.runtime)
        assert master.connection is not None
        master.connection.transport.abort()
        await until_async(lambda: master.agent is not None and master.agent.poll() is not None)
        assert look(pid) is None
        master.runtime.mkdir()

    play(act)


def test_an_agent_that_is_killed_takes_its_program_along(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.start("exec sleep 1000")
        pid = (await master.report("started"))["pid"]
        assert master.agent is not None
        master.agent.send_signal(signal.SIGKILL)
        await until_async(lambda: (found := look(pid)) is None or not found.alive)

    play(act)


def resident(pid: int) -> int:
    """The proportional set size of a process, KiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))


def test_an_agent_stays_small(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.start("exec sleep 1000")
        await until_async(lambda: len(master.samples) >= 2)
        assert master.agent is not None
        assert resident(master.agent.pid) < 30 * 1024

    play(act)


def test_a_program_of_the_local_engine_is_marked_and_its_agent_stands_by(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin(on_this_machine=True, memory_limit=BY_AGENT, master_pid=os.getpid())
        await master.start("exec sleep 1000", memory=1 << 30)
        pid = (await master.report("started"))["pid"]
        assert [(made.kind, made.process.pid) for made in marked.living("job")] == [("program", pid)]
        assert master.agent is not None
        assert (master.runtime / "agents" / "worker-0@1").read_text() == f"{master.agent.pid}\n"
        await master.order("stop", signal="SIGKILL", grace=5)
        await master.report("ended")
        assert marked.living("job") == []

    play(act)


@pytest.mark.parametrize("kind", ["download", "list", "mount"])
def test_inputs_are_there_before_the_program(play: Callable[..., None], kind: str) -> None:
    async def act(master: Master) -> None:
        data = master.folder / "data"
        data.mkdir()
        for name in ("a", "b"):
            (data / name).write_text(name)
        stamps = {file.path: file.stamp for file in list_input(str(data)).files}
        files = [[path, 1, stamp] for path, stamp in stamps.items()]
        given = {"as": kind, "url": str(data), "local": "train", "prefix": f"{data}/", "files": files}
        master.begin()
        prepare = {"workdir": "copy", "inputs": {"train": given}}
        await master.start("cat $TRAINMASTER_INPUT_TRAIN/* || cat $TRAINMASTER_INPUT_TRAIN", prepare=prepare)
        await master.report("ended")
        told = master.log()
        assert told.endswith("ab" if kind != "list" else f"{data}/a\n{data}/b\n")

    play(act)


def test_outputs_are_uploaded_and_committed_with_leave_alone(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        out = master.folder / "out"
        output = {"model": {"url": str(out), "as": "upload", "layout": "task", "overwrite": False, "local": "model"}}
        master.begin()
        prepare = {"workdir": "copy", "outputs": output}
        await master.start("mkdir -p $TRAINMASTER_OUTPUT_MODEL && echo weights > model/w", prepare=prepare)
        uploaded = await master.report("uploaded")
        assert uploaded["outputs"]["model"]["files"] == 1
        assert not (out / "worker-0").exists()
        await master.order("commit", outputs=output)
        assert (await master.report("committed"))["outputs"]["model"]["bytes"] == 8
        assert (out / "worker-0" / "w").read_text() == "weights\n"

    play(act)


def test_an_output_that_was_not_written_is_named(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        output = {"model": {"url": str(master.folder / "out"), "as": "upload", "layout": "task", "local": "model"}}
        master.begin()
        await master.start("true", prepare={"workdir": "copy", "outputs": output})
        await until_async(lambda: [r for r in master.reports if r.get("reason") == "output-missing"])

    play(act)


def test_a_save_while_running_holds_what_is_there(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        out = master.folder / "out"
        output = {"model": {"url": str(out), "as": "upload", "layout": "task", "local": "model"}}
        master.begin()
        prepare = {"workdir": "copy", "outputs": output}
        await master.start("mkdir model; echo 1 > model/w; echo ready; exec sleep 1000", prepare=prepare)
        await master.report("started")
        await until_async(lambda: "ready" in master.log())
        name = "2026-01-02T03-04-05Z"
        for _ in range(2):
            await master.order("save", id=name)
        saved = await master.report("saved")
        assert (saved["save"], saved["files"], saved["bytes"]) == (name, 1, 2)
        assert (out / "_saves" / name / "worker-0" / "w").read_text() == "1\n"

    play(act)


def test_a_warning_reaches_a_program_that_asks(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        program = (
            "import threading; from trainmaster import runtime; told = threading.Event(); found = []\n"
            "runtime.warning(lambda warned: (found.append(warned), told.set()))\n"
            "print('ready', flush=True); told.wait(60); print(round(found[0].seconds), found[0].why)"
        )
        await master.start([sys.executable, "-c", program])
        await until_async(lambda: "ready" in master.log())
        await master.order("warn", id="1", seconds=30, why="preempted", signal=None)
        assert (await master.report("ended"))["tail"][-1].endswith("preempted")

    play(act)


def test_a_warning_reaches_a_program_that_the_engine_ends_already(play: Callable[..., None]) -> None:
    """What tells of the deletion of a pod, and its signal, come by different ways."""

    async def act(master: Master) -> None:
        master.begin()
        program = (
            "import signal, threading; from trainmaster import runtime; told = threading.Event()\n"
            "signal.signal(signal.SIGTERM, lambda *_: print('asked to end', flush=True))\n"
            "runtime.warning(lambda warned: (print('warned:', warned.why, flush=True), told.set()))\n"
            "print('ready', flush=True)\nwhile not told.wait(0.02): pass\n"
        )
        stop = {"signal": "SIGTERM", "grace": 60}
        await master.start([sys.executable, "-c", program], stop=stop)
        await until_async(lambda: "ready" in master.log())
        assert master.agent is not None
        master.agent.terminate()
        await until_async(lambda: "asked to end" in master.log())
        await master.order("warn", id="1", seconds=30, why="preempted", signal=None)
        assert await asyncio.to_thread(master.agent.wait, 60) == TERMINATED
        assert master.log().endswith("warned: preempted\n")

    play(act)


def test_a_program_that_names_many_phases_floods_nobody(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        program = (
            "from trainmaster import runtime\n"
            "for n in range(2000):\n    with runtime.phase(f'part {n}'):\n        runtime.progress(step=n)\n"
            "runtime.phase('the last').__enter__()\nprint('ready', flush=True)\n"
            "import time; time.sleep(1000)"
        )
        await master.start([sys.executable, "-c", program])
        await until_async(lambda: [sample for sample in master.samples if sample["phase"] == "the last"])
        assert len(master.reports) < 20

    play(act)


def test_a_warning_is_a_signal_only_where_one_is_asked_for(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin()
        await master.start("trap 'echo warned; exit 0' USR1; echo ready; while :; do sleep 0.02; done")
        await master.report("started")
        await until_async(lambda: "ready" in master.log())
        await master.order("warn", id="1", seconds=30, why="preempted", signal=None)
        await master.order("warn", id="2", seconds=30, why="preempted", signal="SIGUSR1")
        assert (await master.report("ended"))["tail"][-1] == "warned"

    play(act)


def test_a_kill_is_reported_while_the_program_has_left_something_behind_and_survives_a_stop(
    play: Callable[..., None],
) -> None:
    async def act(master: Master) -> None:
        master.begin(code=f"{START.partition('; import')[0]}; from trainmaster.agent.attempt import program; program.LEFT_BEHIND = 6; "
                     "import trainmaster.agent.__main__")  # fmt: skip
        left = master.folder / "left"
        stays = f"(trap '' TERM; echo left; touch {left}; while :; do sleep 0.05; done)"
        await master.start(f"{stays} & until test -e {left}; do sleep 0.02; done; kill -9 $$")
        died = await master.report("died")
        assert (died["reason"], died["figures"]["name"]) == ("signal", "SIGKILL")
        assert not any(report["kind"] == "ended" for report in master.reports)
        await master.order("stop", signal="SIGTERM", grace=5)  # as to its peers
        ended = await master.report("ended")
        assert (ended["reason"], ended["elapsed"], ended["tail"]) == ("signal", died["elapsed"], ["left"])
        assert "stopped" not in ended
        assert [r["kind"] for r in master.reports][-2:] == ["died", "ended"]

    play(act)


def test_a_failure_is_reported_while_its_last_set_is_still_stored_and_survives_a_stop(
    play: Callable[..., None],
) -> None:
    async def act(master: Master) -> None:
        gate = master.folder / "gate"
        checkpoint = {"path": "ckpt", "url": str(master.folder / "sets"), "every": 100, "keep": 3, "set": None}
        hangs = (
            "import os, time; from trainmaster.data.store.stores import LocalStore as Store; get = Store.get; "
            f"wait = lambda: [time.sleep(0.02) for _ in iter(lambda: os.path.exists({str(gate)!r}), True)]; "
            "Store.get = lambda store, path: (wait(), get(store, path))[1]"  # as a storage that does not answer
        )
        master.begin(code=f"{START.partition('; import')[0]}; {hangs}; import trainmaster.agent.__main__")
        prepare = {"workdir": "copy", "checkpoint": checkpoint}
        await master.start("mkdir ckpt; echo 1 > ckpt/step; echo cause; exit 3", prepare=prepare)
        died = await master.report("died")
        assert (died["reason"], died["status"]) == ("exit", 3)
        await master.order("stop", signal="SIGTERM", grace=5)  # a peer's failure was told first
        assert not any(report["kind"] == "ended" for report in master.reports)
        gate.touch()
        ended = await master.report("ended")
        assert (ended["reason"], ended["status"], ended["elapsed"]) == ("exit", 3, died["elapsed"])
        assert "stopped" not in ended
        assert ended["tail"] == ["cause"]
        kinds = [r["kind"] for r in master.reports]
        assert kinds[-3:] == ["died", "checkpoint", "ended"]

    play(act)


def test_checkpoints_are_stored_behind_training_and_put_back(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        checkpoint = {"path": "ckpt", "url": str(master.folder / "sets"), "every": 0.2, "keep": 3, "set": None}
        master.begin()
        prepare = {"workdir": "copy", "checkpoint": checkpoint}
        command = "trap 'echo 2 > ckpt/step; exit 0' TERM; mkdir ckpt; echo 1 > ckpt/step; echo ready; while :; do sleep 0.02; done"
        await master.start(command, prepare=prepare)
        first = await master.report("checkpoint")
        assert (first["set"], first["files"], first["bytes"], first["marks"]) == (1, 1, 2, {})
        await master.order("stop", signal="SIGTERM", grace=20)
        await master.report("ended")
        sets = [r["set"] for r in master.reports if r["kind"] == "checkpoint"]
        kinds = [r["kind"] for r in master.reports]
        assert kinds[-1] == "ended", "the set that was saved in the grace is told before the end"
        (master.folder / "storage" / "work" / "worker-0" / "ckpt" / "step").write_text("torn")
        for attempt, number in ((2, sets[-1]), (3, 1)):
            again = {**prepare, "checkpoint": {**checkpoint, "every": 100, "set": number}}
            await master.start("cat ckpt/step", attempt=attempt, prepare=again)
            assert (await master.report("ended", attempt))["tail"] == [str(sets.index(number) + 1)]
            assert (await master.report("ready", attempt))["restored"]["set"] == number

    play(act)


def test_a_checkpoint_path_that_leads_elsewhere_is_refused_in_words(play: Callable[..., None]) -> None:
    """It was told as a fault of ours, and the attempt began again and again."""

    async def act(master: Master) -> None:
        checkpoint = {"path": "ckpt", "url": str(master.folder / "sets"), "every": 100, "keep": 3, "set": None}
        (master.folder / "ckpt").symlink_to("/etc")
        master.begin()
        prepare = {"workdir": "share", "cwd": str(master.folder), "checkpoint": checkpoint}
        await master.start("true", prepare=prepare)
        ended = await master.report("ended")
        assert ended["reason"] == "staging-failed"
        assert "is a link that leads out of its folder" in ended["figures"]["detail"]

    play(act)


@pytest.mark.parametrize("how", ["terminated", "left"])
def test_an_agent_that_ends_tells_and_stores_first_what_its_program_did_in_the_grace(
    play: Callable[..., None], how: str
) -> None:
    """Why an attempt has ended whose container the engine ends, the engine tells."""

    async def act(master: Master) -> None:
        checkpoint = {"path": "ckpt", "url": str(master.folder / "sets"), "every": 100, "keep": 3, "set": None}
        master.begin()
        prepare = {"workdir": "copy", "checkpoint": checkpoint}
        command = (
            "trap 'mkdir ckpt; echo 2 > ckpt/step; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
        )
        await master.start(command, prepare=prepare)
        await until_async(lambda: "ready" in master.log())
        assert master.agent is not None
        if how == "left":
            await master.order("leave")
        else:
            master.agent.terminate()
        assert await asyncio.to_thread(master.agent.wait, 60) == (0 if how == "left" else TERMINATED)
        kinds = [report["kind"] for report in master.reports]
        assert kinds[kinds.index("started") + 1 :] == ["checkpoint", *(["ended"] if how == "left" else []), "left"]
        if how == "left":
            ended = await master.report("ended")
            assert (ended["stopped"], ended["status"], ended["tail"][-1]) == (True, 0, "saved")

    play(act)


def test_an_end_that_no_master_has_yet_is_reported_to_the_next_though_the_engine_ends_the_container(
    play: Callable[..., None],
) -> None:
    """Else the next master finds a container that was ended, and runs the whole program again."""

    async def act(master: Master) -> None:
        master.begin()
        go = master.folder / "go"
        await master.start(f"until test -e {go}; do sleep 0.02; done")
        await master.report("started")
        assert master.connection is not None
        master.deaf = True
        go.touch()
        await until_async(lambda: any(report["kind"] == "ended" for report in master.unacknowledged))
        master.away = True
        master.connection.transport.abort()
        assert master.agent is not None
        master.agent.terminate()
        agent_log = master.folder / "storage" / "logs" / "worker-0" / "agent.log"
        await until_async(lambda: "the agent ends: terminated" in agent_log.read_text())
        master.away = master.deaf = False
        ended = await master.report("ended")
        assert (ended["reason"], ended["status"]) == ("exit", 0)
        assert await asyncio.to_thread(master.agent.wait, 60) == TERMINATED

    play(act)


@pytest.mark.parametrize(
    ("command", "reason", "status"), [("true", "exit", 0), ("exit 3", "exit", 3)], ids=["well", "failed"]
)
def test_an_end_that_no_master_has_yet_is_reported_to_the_next_that_comes_after_the_grace(
    play: Callable[..., None], command: str, reason: str, status: int
) -> None:
    """The agent left with it, and the next master ran the whole program again."""

    async def act(master: Master) -> None:
        master.begin(grace=3.0)
        go = master.folder / "go"
        await master.start(f"until test -e {go}; do sleep 0.02; done; {command}")
        await master.report("started")
        assert master.connection is not None
        master.away = True
        master.connection.transport.abort()
        go.touch()
        agent_log = master.folder / "storage" / "logs" / "worker-0" / "agent.log"
        await until_async(lambda: "the grace has run out" in agent_log.read_text())
        assert master.agent is not None
        assert master.agent.poll() is None
        master.epoch, master.away = 2, False
        ended = await master.report("ended")
        assert (ended["reason"], ended["status"], ended.get("stopped")) == (reason, status, None)
        await master.order("leave")
        assert await asyncio.to_thread(master.agent.wait, 60) == 0

    play(act)


def test_outputs_that_are_uploaded_wait_for_a_master_after_the_grace(play: Callable[..., None], tmp_path: Path) -> None:
    """No master can have them committed once the agent has left, though the last one knew how the program ended."""

    async def act(master: Master) -> None:
        master.begin(grace=3.0)
        outputs = {"model": {"url": f"{tmp_path}/model", "local": "model", "as": "upload", "layout": "task"}}
        await master.start("echo 1 > model", prepare={"workdir": "copy", "outputs": outputs})
        await master.report("uploaded")
        assert master.connection is not None
        master.away = True
        master.connection.transport.abort()
        agent_log = master.folder / "storage" / "logs" / "worker-0" / "agent.log"
        await until_async(lambda: "the grace has run out" in agent_log.read_text())
        master.epoch, master.away = 2, False
        await until_async(lambda: len(master.hellos) == 2)
        await master.order("commit")
        await master.report("committed")

    play(act)


def test_an_agent_gives_up_an_end_that_no_master_takes(play: Callable[..., None]) -> None:
    async def act(master: Master) -> None:
        master.begin(grace=3.0, patience=5.0)
        go = master.folder / "go"
        await master.start(f"until test -e {go}; do sleep 0.02; done")
        await master.report("started")
        assert master.connection is not None
        master.away = True
        master.connection.transport.abort()
        go.touch()
        assert master.agent is not None
        assert await asyncio.to_thread(master.agent.wait, 60) == OUT_OF_REACH

    play(act)


def test_an_agent_that_was_told_to_leave_waits_for_no_master_to_confirm_it(play: Callable[..., None]) -> None:
    """A job's end: the master lets its agents go, and is gone. Each job took as long as an agent may take to close."""

    async def act(master: Master) -> None:
        master.begin(close_within=600)
        go = master.folder / "go"
        await master.start(f"until test -e {go}; do sleep 0.02; done")
        await master.report("started")
        master.deaf = True
        go.touch()
        await until_async(lambda: any(report["kind"] == "ended" for report in master.unacknowledged))
        await master.order("leave")
        await until_async(lambda: any(report["kind"] == "left" for report in master.unacknowledged))
        assert master.connection is not None
        assert master.agent is not None
        master.away = True
        master.connection.transport.abort()
        master.agent.terminate()
        await asyncio.to_thread(master.agent.wait, 60)

    play(act)


def test_an_output_holds_nothing_of_the_attempt_before(play: Callable[..., None], tmp_path: Path) -> None:
    """It begins with what came with the files, what the prepare command made, and the checkpoint that lies in it."""
    (tmp_path / "ckpt").write_text("restored\n")
    save_set(f"{tmp_path}/sets", f"{tmp_path}/ckpt", "worker:0", 1)
    checkpoint = {"path": "model/ckpt", "url": f"{tmp_path}/sets", "set": 1}

    async def act(master: Master) -> None:
        source = master.folder / "source"
        (source / "model").mkdir(parents=True)
        (source / "model" / "vocabulary").write_text("shipped\n")
        outputs = {
            name: {"url": f"{tmp_path}/out", "as": "upload", "layout": "task", "overwrite": False, "local": name}
            for name in ("model", "report")
        }
        prepare = {
            "workdir": "copy", "archive": pack(["."], f"{tmp_path}/files", str(source)).path, "outputs": outputs,
            "prepare": "mkdir model/logs", "checkpoint": checkpoint,
        }  # fmt: skip
        master.begin()
        look = "test ! -e report && find model | sort && head model/vocabulary model/ckpt && "
        spoil = "mkdir report; touch report/stale model/stale; echo spoilt | tee model/vocabulary model/ckpt; rm -r model/logs; exit 1"
        await master.start(f"{look} {spoil}", prepare=prepare)
        await master.report("ended")
        await master.start(f"{look} touch model/good report", attempt=2, prepare=prepare)
        uploaded = await master.report("uploaded", 2)
        assert master.log() == f"{master.log(2)}spoilt\n"
        assert all(line in master.log(2) for line in ("model/logs\n", "shipped\n", "restored"))
        assert (uploaded["outputs"]["model"]["files"], uploaded["outputs"]["report"]["files"]) == (3, 1)

    play(act)


def test_a_shared_directory_is_left_as_it_is(play: Callable[..., None], tmp_path: Path) -> None:
    async def act(master: Master) -> None:
        (master.folder / "model").mkdir()
        (master.folder / "model" / "mine").write_text("of the user")
        output = {"url": f"{tmp_path}/out", "as": "upload", "layout": "task", "overwrite": False, "local": "model"}
        prepare = {"workdir": "share", "cwd": str(master.folder), "outputs": {"model": output}}
        master.begin()
        await master.start("touch model/first; exit 1", prepare=prepare)
        await master.report("ended")
        await master.start("ls model", attempt=2, prepare=prepare)
        assert (await master.report("ended", 2))["tail"] == ["first", "mine"]

    play(act)
