"""Programs started and ended for real: what they find, how they end, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until_async

from trainmaster.agent.attempt import program
from trainmaster.agent.attempt.program import CannotStart, Launch, Program
from trainmaster.core.machine import reasons
from trainmaster.host import children, linux, recipients
from trainmaster.host import process_tree as processes
from trainmaster.host.allowance import Allowance

PATIENCE = 20.0
LOOKS = 300  # one of some 50 falls on a process that ends


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Like an agent, this process adopts orphans; whatever a test leaves fails it."""
    linux.adopt_orphans()
    before = {p.pid for p in processes.descendants(os.getpid())}
    yield
    left = [p for p in processes.descendants(os.getpid()) if p.alive and p.pid not in before]
    for process in left:
        linux.send(process.pid, process.start, signal.SIGKILL)
    linux.adopt_orphans(False)
    assert left == []


def launch(command: list[str] | str, cwd: Path, **more: object) -> Launch:
    fields: dict[str, object] = {"environ": dict(os.environ), "allowance": Allowance.present(), **more}
    return Launch(command, str(cwd), **fields)  # type: ignore[arg-type]


async def started(what: Launch, path: Path) -> Program:
    """Start `what`, its stdout and stderr into the file `path`."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return await program.start(what, [(file, file)])
    finally:
        os.close(file)


async def said(path: Path, text: str) -> None:
    """Wait until the file holds `text`."""
    await until_async(lambda: path.exists() and text in path.read_text())


def ended(what: Launch, path: Path) -> program.Outcome:
    async def act() -> program.Outcome:
        running = await started(what, path)
        outcome = await running.wait()
        assert await running.tidy() == []
        return outcome

    return asyncio.run(act())


LOOK = r"""
import json, os, resource, signal
status = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
print(json.dumps({
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    "umask": status["Umask"], "blocked": status["SigBlk"], "ignored": status["SigIgn"],
    "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")),
    "stdin": os.path.realpath("/proc/self/fd/0"),
    "env": {k: v for k, v in os.environ.items() if k not in ("SHLVL", "_", "PWD", "OLDPWD", "LC_CTYPE", "LINES", "COLUMNS")},
    "cwd": os.getcwd(), "groups": os.getgroups(), "nice": os.nice(0), "dumpable": status["NoNewPrivs"],
}))
"""


def test_a_program_finds_what_a_plain_shell_would_give_it(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    by_shell = json.loads(
        subprocess.run(
            ["/bin/sh", "-c", f"{sys.executable} {script} < /dev/null"],
            cwd=tmp_path,
            capture_output=True,
            check=True,
            close_fds=True,
        ).stdout
    )
    allowance = Allowance.present()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    inheritable = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    mask = os.umask(0o077)
    try:
        linux.raise_descriptor_limit()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        outcome = ended(launch([sys.executable, str(script)], tmp_path, allowance=allowance), tmp_path / "out")
    finally:
        os.umask(mask)
        os.close(inheritable)
        signal.signal(signal.SIGUSR1, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcome.well
    found = json.loads((tmp_path / "out").read_text())
    assert found == by_shell
    assert by_shell["fds"] == [0, 1, 2]


def test_limits_umask_and_signals_of_the_user_are_given_back(tmp_path: Path) -> None:
    allowance = Allowance.from_json(
        {
            **Allowance.present().to_json(),
            "umask": 0o027,
            "ignored": [int(signal.SIGHUP)],
            "blocked": [int(signal.SIGUSR1)],
        }
    )
    limits = {**allowance.limits, resource.RLIMIT_NOFILE: (123, 456), resource.RLIMIT_CORE: (0, 0)}
    allowance = Allowance(limits, allowance.umask, allowance.ignored, allowance.blocked)
    fields = ["Umask", "SigBlk", "SigIgn"]  # asked without a shell, which would clear the mask
    command = ["grep", "-hE", "|".join([*fields, "open files"]), "/proc/self/status", "/proc/self/limits"]
    assert ended(launch(command, tmp_path, allowance=allowance), tmp_path / "out").well
    *lines, limit = (tmp_path / "out").read_text().splitlines()
    assert limit.split()[3:5] == ["123", "456"]
    # Signals 32 and 33 are the C library's own: whoever started us may have them ignored, and nobody can change that.
    theirs = 3 << 31
    assert {line.split()[0]: int(line.split()[1], 16) & ~theirs for line in lines} == {
        "Umask:": 0x27, "SigBlk:": 1 << (signal.SIGUSR1 - 1), "SigIgn:": 1 << (signal.SIGHUP - 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "reason", "status"),
    [
        (["no-such-command-anywhere"], "command-not-found", 127),
        (["./missing"], "command-not-found", 127),
        ("no-such-command-anywhere", "command-not-found", 127),
        (["./plain.txt"], "not-executable", 126),
        (["./bad-interpreter"], "not-executable", 126),
        ("./plain.txt", "not-executable", 126),
        ([], "command-not-found", 127),
        (["/"], "not-executable", 126),
    ],
)
def test_what_cannot_be_executed_is_reported_as_such(
    tmp_path: Path, command: list[str] | str, reason: str, status: int
) -> None:
    (tmp_path / "plain.txt").write_text("text")
    (tmp_path / "bad-interpreter").write_text("#!/no/such/interpreter\n")
    (tmp_path / "bad-interpreter").chmod(0o755)
    try:
        outcome = ended(launch(command, tmp_path), tmp_path / "out")
    except CannotStart as trouble:
        outcome = trouble.outcome
    assert (outcome.reason, outcome.status) == (reason, status)
    assert "Traceback" not in ((tmp_path / "out").read_text() if (tmp_path / "out").exists() else "")


@pytest.mark.parametrize(
    ("command", "detail", "mend"),
    [
        (
            ["./bad-interpreter"],
            "the interpreter that the first line of ./bad-interpreter names is missing",
            "mend that line",
        ),
        (["true", "x" * 200_000], "Argument list too long", "give what is long in a file"),
        ("echo " + "x" * 200_000, "Argument list too long", "give what is long in a file"),
        (["./folder"], "Permission denied", "it is a directory"),
        (["./interpreter-denied"], "Permission denied", "see that the interpreter"),
        (["./loop"], "Too many levels of symbolic links", "see where its symbolic links lead"),
    ],
)
def test_what_the_kernel_says_of_a_command_is_reported_and_not_the_command(
    tmp_path: Path, command: list[str] | str, detail: str, mend: str
) -> None:
    (tmp_path / "bad-interpreter").write_text("#!/no/such/interpreter\n")
    (tmp_path / "bad-interpreter").chmod(0o755)
    (tmp_path / "folder").mkdir()
    (tmp_path / "data").touch()
    (tmp_path / "interpreter-denied").write_text(f"#!{tmp_path}/data\n")
    (tmp_path / "interpreter-denied").chmod(0o755)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CannotStart) as trouble:
        ended(launch(command, tmp_path), tmp_path / "out")
    outcome = trouble.value.outcome
    text = reasons.words(outcome.reason, outcome.figures)
    assert detail in text
    assert len(text) < 500
    assert str(outcome.figures["mend"]).startswith(mend)


def test_a_line_for_the_shell_as_one_word_is_reported_with_its_mend(tmp_path: Path) -> None:
    with pytest.raises(CannotStart) as trouble:
        ended(launch(["seq 3 | tail -1"], tmp_path), tmp_path / "out")
    assert trouble.value.outcome.figures["shell"] == "'seq 3 | tail -1'"


def test_a_script_without_interpreter_is_run_by_the_shell(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("echo it is $1\n")
    (tmp_path / "script").chmod(0o755)
    assert ended(launch(["./script", "well"], tmp_path), tmp_path / "out").well
    assert (tmp_path / "out").read_text() == "it is well\n"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart) as trouble:
        ended(launch(["true"], tmp_path / "gone"), tmp_path / "out")
    assert "gone" in str(trouble.value.outcome.figures["detail"])


def test_the_path_of_the_program_finds_the_command(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "tool"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    assert ended(launch(["tool"], tmp_path, environ={"PATH": f"/nowhere:{tmp_path}/bin"}), tmp_path / "out").well


@pytest.mark.parametrize(("command", "reason", "status", "number"), [
    ("exit 3", "exit", 3, None),
    ("exit 0", "exit", 0, None),
    ("kill -SEGV $$", "signal", None, 11),
    ("kill -9 $$", "signal", None, 9),
    ("exit 143", "exit", 143, None),
    ("kill -35 $$", "signal", None, 35),
])  # fmt: skip
def test_ends_are_told(tmp_path: Path, command: str, reason: str, status: int | None, number: int | None) -> None:
    outcome = ended(launch(command, tmp_path), tmp_path / "out")
    assert (outcome.reason, outcome.status, outcome.signal) == (reason, status, number)


def test_copies_have_their_own_environment_and_one_that_fails_ends_all(tmp_path: Path) -> None:
    command = (
        "echo rank $RANK; [ $RANK = 1 ] || exec sleep 1000; until grep -q 0 out && grep -q 2 out; do :; done; exit 7"
    )
    copies = tuple({"RANK": str(n)} for n in range(3))

    async def act() -> program.Outcome:
        running = await started(launch(command, tmp_path, copies=copies), tmp_path / "out")
        outcome = await running.wait()
        assert running.failed_copy == 1
        await running.stop(signal.SIGTERM, PATIENCE)
        assert not running.running
        return outcome

    assert asyncio.run(act()).status == 7
    assert sorted((tmp_path / "out").read_text().split("\n"))[1:] == ["rank 0", "rank 1", "rank 2"]


HEARS = 'python3 -uc \'import signal; signal.signal(10, lambda *_: print("heard") or exit(3)); print("ready"); signal.pause()\''
TRAPS = "trap 'echo trapped; exit 3' USR1; echo ready; while :; do sleep 0.02; done"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["sh", "-c", f"exec {HEARS}"], "heard"),
        (f"cd . && {HEARS}", "heard"),  # the shell waits for it, and would die of the signal
        (f"cd . && sh -c {shlex.quote(f'{HEARS}; exit $?')}", "heard"),
        (TRAPS, "trapped"),
    ],
)
def test_a_users_signal_is_for_the_program_or_for_a_shell_with_a_trap(
    tmp_path: Path, command: list[str] | str, line: str
) -> None:
    async def act() -> program.Outcome:
        running = await started(launch(command, tmp_path), tmp_path / "out")
        await said(tmp_path / "out", "ready")
        running.signal(signal.SIGUSR1)
        outcome = await running.wait()
        await running.sweep()
        return outcome

    assert asyncio.run(act()).status == 3
    assert line in (tmp_path / "out").read_text()


def test_another_users_process_that_may_not_be_signalled_is_reported_and_ends_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under sudo. A warning that met one ended the agent, and so did the end of the program."""

    def refuse(pid: int, start: int, number: int) -> bool:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    async def act() -> None:
        running = await started(launch(["sh", "-c", f"exec {HEARS}"], tmp_path), tmp_path / "out")
        await said(tmp_path / "out", "ready")
        try:
            with monkeypatch.context() as patch:
                patch.setattr(linux, "send", refuse)
                assert running.warn(signal.SIGUSR1) == running.signal(signal.SIGUSR1) == "Operation not permitted"
                assert {process.pid for process in await processes.end_all(os.getpid(), 0.2)} >= {*running.pids}
        finally:
            await running.sweep()

    asyncio.run(act())


@pytest.mark.parametrize("moment", [1, 2])
def test_what_a_shell_executes_at_that_moment_is_not_taken_for_a_shell_with_a_trap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """A signal that fell between the fork of a shell and its command ended the command, and the shell's trap never ran."""
    command = "trap : USR1; echo ready; until [ -e go ]; do :; done; exec sleep 1000"

    async def act() -> None:
        running = await started(launch(command, tmp_path), tmp_path / "out")
        await said(tmp_path / "out", "ready")
        (pid,) = running.pids
        executable, looks = os.readlink, itertools.count(1)

        def executes_at_that_moment(path: str) -> str:
            if next(looks) == moment:
                (tmp_path / "go").touch()
                while "sleep" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                    pass
            return executable(path)

        monkeypatch.setattr(os, "readlink", executes_at_that_moment)
        try:
            assert recipients.takers(pid, signal.SIGUSR1) == []
        finally:
            monkeypatch.undo()
            await running.stop(signal.SIGTERM, PATIENCE)

    asyncio.run(act())


def test_whoever_ends_while_a_signals_recipients_are_chosen_is_not_missed(tmp_path: Path) -> None:
    """A stop that fell between two commands of a shell ended the agent."""
    short_lived = "echo ready; while :; do /bin/true | /bin/true; /bin/true & wait; done"

    async def act() -> None:
        running = await started(launch(short_lived, tmp_path), tmp_path / "out")
        await said(tmp_path / "out", "ready")
        (pid,) = running.pids
        try:
            for _ in range(LOOKS):
                assert recipients.recipients(pid, signal.SIGTERM).processes
                assert recipients.takers(pid, signal.SIGUSR1) == []
        finally:
            await running.stop(signal.SIGTERM, PATIENCE)
        assert not running.running

    asyncio.run(act())


def test_a_copy_that_has_ended_is_signalled_no_more(tmp_path: Path) -> None:
    """Its number may be a stranger's by then."""
    command = "[ $RANK = 1 ] || exit 0; trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"

    async def act(stranger: int) -> None:
        running = await started(launch(command, tmp_path, copies=({"RANK": "0"}, {"RANK": "1"})), tmp_path / "out")
        await running.copies[0].over
        await said(tmp_path / "out", "ready")
        running.copies[0].pid = stranger
        await running.stop(signal.SIGTERM, PATIENCE)

    with children.started(["sleep", "1000"], start_new_session=True) as stranger:  # none of the program's
        asyncio.run(act(stranger.pid))
        assert "saved" in (tmp_path / "out").read_text()
        assert stranger.poll() is None


def test_a_fork_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def act() -> None:
        before = len(os.listdir("/proc/self/fd")), signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with monkeypatch.context() as full:
            full.setattr(os, "fork", none_left)
            with pytest.raises(BlockingIOError):
                await program.start(launch(["true"], tmp_path), [(1, 2)])
        assert (len(os.listdir("/proc/self/fd")), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before

    asyncio.run(act())


STUBBORN = r"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"
children = [subprocess.Popen([sys.executable, "-c", deaf]) for _ in "ab"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pause()
    os._exit(0)
os.wait3(0)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_a_program_that_ignores_its_end_is_ended_with_all_that_it_left(tmp_path: Path) -> None:
    async def act() -> None:
        running = await started(launch([sys.executable, "-c", STUBBORN], tmp_path), tmp_path / "out")
        await said(tmp_path / "out", "ready")
        assert len(processes.descendants(os.getpid())) >= 4
        assert await running.stop(signal.SIGTERM, 0.3) == []
        assert (await running.wait()).signal == signal.SIGKILL

    asyncio.run(act())
    assert [p for p in processes.descendants(os.getpid()) if p.alive] == []


TRAIL = """
import os, time
for _ in range(300):  # one process at a time goes on, in a session of its own; those before it stay behind
    for _ in range(3):
        if not os.fork():
            os._exit(0)
        os.wait()  # the list of children changes while it is read
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(0.005)
        continue
    os.wait()
    break
time.sleep(60)
"""


@pytest.mark.parametrize("lists", [True, False])
def test_whatever_forks_and_ends_meanwhile_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: bool
) -> None:
    if not lists:
        monkeypatch.setattr(processes, "_lists_children", lambda pid: False)

    async def act() -> None:
        running = await started(launch([sys.executable, "-c", TRAIL], tmp_path), tmp_path / "out")
        await until_async(lambda: len(processes.descendants(os.getpid())) > 30)
        assert await running.sweep() == []
        assert [p for p in processes._everyone_below(os.getpid()) if p.alive] == []

    asyncio.run(act())


def test_a_program_has_its_grace_to_write_a_checkpoint(tmp_path: Path) -> None:
    command = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"

    async def act() -> program.Outcome:
        running = await started(launch(command, tmp_path), tmp_path / "out")
        await said(tmp_path / "out", "ready")
        await running.stop(signal.SIGTERM, PATIENCE)
        return await running.wait()

    assert asyncio.run(act()).well
    assert "saved" in (tmp_path / "out").read_text()


def test_a_child_of_a_shell_that_dies_at_once_still_has_the_grace(tmp_path: Path) -> None:
    child = (
        "import signal,sys,time\nsignal.signal(15, lambda *a: (time.sleep(.4), print('saved', flush=True), sys.exit()))\n"
        "print('ready', flush=True)\nsignal.pause()"
    )
    (tmp_path / "child.py").write_text(child)

    async def act() -> None:
        running = await started(launch(f"{sys.executable} child.py & wait; echo never", tmp_path), tmp_path / "out")
        await said(tmp_path / "out", "ready")
        await running.stop(signal.SIGTERM, PATIENCE)

    asyncio.run(act())
    assert (tmp_path / "out").read_text() == "ready\nsaved\n"


def test_a_stopped_program_can_still_be_ended(tmp_path: Path) -> None:
    async def act() -> None:
        running = await started(launch("echo ready; kill -STOP $$; sleep 1000", tmp_path), tmp_path / "out")
        await said(tmp_path / "out", "ready")
        assert await running.stop(signal.SIGTERM, PATIENCE) == []

    asyncio.run(act())


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    assert ended(launch("sleep 1000 & (setsid sleep 1000 &) ; exit 0", tmp_path), tmp_path / "out").well


def test_a_program_dies_with_its_agent(tmp_path: Path) -> None:
    starter = f"""
import asyncio, os, sys
from trainmaster.agent.attempt import program
from trainmaster.host.allowance import Allowance
async def act():
    running = await program.start(program.Launch(["sleep", "1000"], "/", dict(os.environ), Allowance.present()), [(1, 2)])
    print(running.pids[0], flush=True)
    await asyncio.sleep(1000)
sys.path[:0] = {sys.path!r}
asyncio.run(act())
""".replace("import asyncio, os, sys\nfrom", f"import asyncio, os, sys\nsys.path[:0] = {sys.path!r}\nfrom")
    agent = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    child = linux.look(pid)
    assert child is not None
    agent.kill()
    agent.wait()
    agent.stdout.close()
    asyncio.run(
        processes.wait_until_gone(lambda: [p for p in [linux.look(pid)] if p and p.start == child.start], PATIENCE)
    )
    now = linux.look(pid)
    assert now is None or not now.alive or now.start != child.start
    processes.reap_orphans(os.getpid(), ())


def test_before_exec_a_hook_runs_in_the_child(tmp_path: Path) -> None:
    note = str(tmp_path / "joined")

    def join(pid: int) -> None:
        assert pid == 0
        descriptor = os.open(note, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, str(os.getpid()).encode())
        os.close(descriptor)

    assert ended(launch("echo $$", tmp_path, before=(join,)), tmp_path / "out").well
    assert Path(note).read_text() == (tmp_path / "out").read_text().strip()


def test_orphans_are_reaped_but_not_what_somebody_waits_for(tmp_path: Path) -> None:
    orphans = processes.Orphans()
    child = subprocess.Popen(["true"])

    async def act() -> None:
        running = await started(launch("(sleep 0.05 &) ; exec sleep 1000", tmp_path), tmp_path / "out")
        await until_async(lambda: any(p.state == "Z" and p.name == "sleep" for p in processes.kin(os.getpid())))
        for _ in range(2):
            orphans.reap(processes.kin(os.getpid()), {*running.pids, child.pid})
        assert not [p for p in processes.kin(os.getpid()) if p.state == "Z" and p.pid != child.pid]
        await running.stop(signal.SIGTERM, PATIENCE)

    asyncio.run(act())
    assert child.wait() == 0


def test_a_thread_that_ends_hides_no_children_of_the_others() -> None:
    """Two hundred threads end while the lists are read, each in another moment; the last one has a child."""
    script = """
import subprocess, threading, time
for number in range(200):
    threading.Thread(target=time.sleep, args=(1 + number / 100,)).start()
def has_a_child():
    child = subprocess.Popen(["sleep", "1000"])
    print(child.pid, flush=True)
    child.wait()
threading.Thread(target=has_a_child).start()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            while len(os.listdir(f"/proc/{process.pid}/task")) > 2:
                assert child in {seen.pid for seen in processes.kin(process.pid)}
            os.kill(child, signal.SIGKILL)
            assert process.wait(60) == 0
        finally:
            process.kill()
