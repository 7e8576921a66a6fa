"""Warm restarts: which programs have a template, what it imports, and that a fork of it is what a cold start is."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until, until_async

from trainmaster.agent.attempt import program
from trainmaster.agent.attempt.program import Launch, Outcome
from trainmaster.agent.warm import keeper as keepers
from trainmaster.agent.warm import programs, store, template
from trainmaster.agent.warm.inside import imports
from trainmaster.agent.warm.keeper import Keeper
from trainmaster.host import children, linux, process_tree
from trainmaster.host.allowance import Allowance

WITHHELD = {"RANK", "TRAINMASTER_ATTEMPT", "TRAINMASTER_JOB", "TRAINMASTER_ROLE", "TRAINMASTER_INDEX"}
HEAVY = "import os, random, tempfile, multiprocessing, logging\nMADE = os.getpid()\nos.environ.setdefault('OF_HEAVY', '1')\n"
LOOK = r"""
import atexit, json, os, resource, sys
import heavy
import multiprocessing, random, tempfile
atexit.register(print, "atexit")
main = sys.modules["__main__"]
status = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
seen = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "environ": list(os.environ.items()), "cwd": os.getcwd(), "path": sys.path,
    "main": {k: repr(v).split(" object at ")[0] for k, v in vars(main).items() if k[:2] == "__" and k != "__builtins__"},
    "flags": repr(sys.flags), "executable": sys.executable, "prefix": sys.prefix,
    "title": open("/proc/self/cmdline").read(), "name": open("/proc/self/comm").read(), "threads": status["Threads"],
    "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")], "umask": status["Umask"],
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    "streams": [
        [s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, type(s.buffer).__name__, s.fileno(), s.isatty(),
         s.buffer.raw.name if hasattr(s.buffer, "raw") else s.buffer.name, s.seekable()]
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "own": os.getsid(0) == os.getpgid(0), "scheduler": [os.sched_getscheduler(0), os.nice(0)],
    "finders": [getattr(finder, "__name__", repr(type(finder))) for finder in sys.meta_path],
    "hooked": "sitecustomize" in sys.modules, "environ_type": repr(type(os.environ)), "stdin": sys.stdin.read(),
}
random = [random.random(), tempfile.mktemp(), multiprocessing.current_process().authkey.hex()]
print(json.dumps({"seen": seen, "random": random, "heavy_by": heavy.MADE, "pid": os.getpid(), "parent": os.getppid()}))
sys.stdout.flush()
if sys.argv[-1] == "wait":
    import time
    time.sleep(600)
raise SystemExit(3) if sys.argv[-1] == "exit" else ValueError("its end")
"""


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Like an agent, this process adopts orphans; whatever a test leaves fails it."""
    monkeypatch.setattr(keepers, "LOOKS", (0.05, 0.05))
    monkeypatch.setattr(keepers, "OLD", 0.0)  # whatever else runs on the machine
    linux.adopt_orphans()
    yield
    left = [
        process
        for process in linux.everyone()
        if process.parent == os.getpid() and process.name in ("tm-warm", "python")
    ]
    left = [process for process in left if process.alive]
    for process in left:
        linux.send(process.pid, process.start, signal.SIGKILL)
    linux.adopt_orphans(False)
    assert (left, children.PIDS) == ([], set())


class Container:
    """A container's directory, with a library that takes long to import, and its keeper."""

    def __init__(self, folder: Path, text: str = LOOK) -> None:
        self.folder, self.keeper = folder / "work", Keeper()
        self.library = folder / "site-packages"
        for place in (self.folder, self.library):
            place.mkdir()
        (self.library / "heavy.py").write_text(HEAVY)
        (self.folder / "train.py").write_text(text)
        self.extra: dict[str, str] = {}
        self.command: list[str] | str = [sys.executable, "train.py", "--x", "wait"]

    def launch(self, attempt: int, command: list[str] | str | None = None) -> Launch:
        environ = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "LC_ALL")} | {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin", "PYTHONPATH": str(self.library), "PWD": str(self.folder),
            "RANK": str(attempt), "TRAINMASTER_ATTEMPT": str(attempt),
            "TRAINMASTER_JOB": "digits-k3x7qa", "TRAINMASTER_ROLE": "worker", "TRAINMASTER_INDEX": "1", **self.extra,
        }  # fmt: skip
        return Launch(self.command if command is None else command, str(self.folder), environ, Allowance.present())

    async def run(
        self, attempt: int, command: list[str] | str | None = None, *, cold: bool = False
    ) -> tuple[program.Program, Path]:
        """Start an attempt. Return it, and the file with what it prints."""
        path, launch = self.folder.parent / f"{attempt}.out", self.launch(attempt, command)
        given = self.folder.parent / "given"
        given.write_text("a line\n")
        out, stdin = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), os.open(given, os.O_RDONLY)

        async def warm(launch: Launch, environ: Any, descriptors: Any) -> Any:
            return await self.keeper.start(launch, environ, WITHHELD, descriptors)

        try:
            return await program.start(launch, [(out, out)], stdin, None if cold else warm), path
        finally:
            os.close(out)
            os.close(stdin)

    async def first(self, text: str = "{") -> None:
        """Run a first attempt until there is a template, or none can be; then kill it."""
        running, path = await self.run(1)
        await until_async(lambda: text in path.read_text())
        self.keeper.attend(self.launch(1), WITHHELD, running.pids[0], None, False, lambda: True)
        await self.making()
        running.signal(signal.SIGKILL)
        await running.wait()
        assert await running.tidy() == []

    async def making(self) -> None:
        assert self.keeper._making is not None
        await self.keeper._making

    async def ended(self, attempt: int, command: list[str] | str | None = None) -> tuple[dict[str, Any], Outcome, str]:
        """Run an attempt to its end. Return what it saw, how it ended, and what else it printed."""
        running, path = await self.run(attempt, command)
        outcome = await running.wait()
        assert await running.tidy() == []
        line, *rest = path.read_text().splitlines()
        return json.loads(line), outcome, "\n".join(rest)


def warmly(folder: Path, act: Callable[[Container], Any], text: str = LOOK) -> None:
    async def run() -> None:
        container = Container(folder, text)
        try:
            await act(container)
        finally:
            await container.keeper.close()

    asyncio.run(run())


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "[::1]"])
def test_a_program_gives_the_first_one_a_lead_until_it_serves_the_store(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            waiting = asyncio.ensure_future(
                store.wait_for_store(f"{host}:{listener.getsockname()[1]}", host.strip("[]"))
            )
            assert await asyncio.wait([waiting], timeout=0.05) == (set(), {waiting})
            listener.listen()
            await asyncio.wait_for(waiting, 60.0)

    monkeypatch.setattr(store, "LEAD", 600.0)
    asyncio.run(act())


def test_the_lead_is_short_and_of_another_machine_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "is_listening", lambda port: True)
    began = time.monotonic()
    asyncio.run(store.wait_for_store("10.0.0.2:29500", "10.0.0.1"))
    assert time.monotonic() - began >= store.LEAD


@pytest.mark.parametrize(
    ("command", "form", "target"),
    [
        (["python", "train.py"], "file", "train.py"),
        (["/opt/bin/python3.12", "-u", "-OO", "a/b.py", "--x", "a b"], "file", "a/b.py"),
        (["python3", "-m", "pkg.train", "-m"], "module", "pkg.train"),
        ("python train.py --lr=0.1 data/x", "file", "train.py"),
        ("python train.py $RANK", "", ""),
        ("python train.py > log", "", ""),
        ("A=1 python train.py", "", ""),
        ("python train.py && echo done", "", ""),
        ("exec python train.py", "", ""),
        (["python", "-c", "import torch"], "", ""),
        (["python", "-I", "train.py"], "", ""),
        (["python", "-X", "importtime", "train.py"], "", ""),
        (["torchrun", "train.py"], "", ""),
        (["python"], "", ""),
        ([], "", ""),
    ],
)
def test_plain_python_programs_alone_have_a_template(command: list[str] | str, form: str, target: str) -> None:
    known = programs.python_command(command)
    assert (known.form, known.target) == (form, target) if known is not None else not form


def test_imports_are_found_in_the_order_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, library = tmp_path / "own", tmp_path / "site-packages"
    for name in ("torch", "numpy", "lazy", "typed", "never", "guarded"):
        (library / name).mkdir(parents=True)
        (library / name / "__init__.py").touch()
    (own / "pkg").mkdir(parents=True)
    (own / "pkg/__init__.py").write_text("from .model import Net\n")
    (own / "pkg/model.py").write_text("import numpy as np, pkg\nclass Net:\n    from torch import nn\n")
    (own / "train.py").write_text(
        "import json\nfrom typing import TYPE_CHECKING\nimport missing\nfrom pkg import model\nif TYPE_CHECKING:\n    import typed\n"
        "try:\n    import guarded\nexcept ImportError:\n    import never\n"
        "def main():\n    import lazy.deep, typed\nif __name__ == '__main__':\n    import torch.optim\n    main()\n"
    )
    monkeypatch.setattr(sys, "path", [str(own), str(library), os.path.dirname(os.__file__)])
    found = imports.find("file", str(own / "train.py"), str(own), [f"{library}/lazy/_c.so"])
    assert [part.decode() for part in found] == [
        "", "4", "import json", "from typing import TYPE_CHECKING", "import numpy as np", "from torch import nn", "import guarded",
        "import lazy.deep", "import torch.optim", "import torch._dynamo",
    ]  # fmt: skip
    assert imports.find("module", "pkg", str(own), [])[2:] == [
        b"import numpy as np",
        b"from torch import nn",
        b"import torch._dynamo",
    ]
    assert (
        imports.find("module", "pkg", str(own), [f"{library}/tensorflow/libtensorflow.so"])[0] == b"it uses TensorFlow"
    )


@pytest.mark.parametrize("form", ["list", "text", "module"])
def test_a_warm_start_sees_what_a_cold_one_sees(tmp_path: Path, form: str) -> None:
    command = {
        "list": [sys.executable, "-u", "train.py", "--x"], "text": "python train.py --x", "module": [sys.executable, "-m", "train"],
    }[form]  # fmt: skip

    async def looked(container: Container, *, cold: bool = False) -> dict[str, Any]:
        running, path = await container.run(5, cold=cold)
        await until_async(lambda: path.read_text().count("\n") == 1)
        seen: dict[str, Any] = json.loads(path.read_text())
        assert await running.stop(signal.SIGTERM, 5.0) == []
        assert running.copies[0].over.result().signal == signal.SIGTERM
        return seen

    async def act(container: Container) -> None:
        container.extra["EMPTY"] = ""
        container.command = f"{command} wait" if isinstance(command, str) else [*command, "wait"]
        await container.first()
        first = await looked(container, cold=True)
        second, third = await looked(container), await looked(container)
        assert container.keeper._template is not None, "a sweep spares it"
        assert first["heavy_by"] == first["pid"]
        assert second["heavy_by"] == third["heavy_by"] == container.keeper._template.pid
        if form == "text":
            first["seen"]["own"] = True  # a cold one is in its shell's group, and has the shell's order of variables
            for seen in (first, second, third):
                seen["seen"]["environ"].sort()
        assert first["seen"] == second["seen"]
        assert second["seen"] == third["seen"]
        assert all(a != b for a, b in zip(second["random"], third["random"], strict=True))
        assert second["parent"] == os.getpid()

    warmly(tmp_path, act)


def test_the_end_of_a_warm_program_is_that_of_a_cold_one(tmp_path: Path) -> None:
    """By SystemExit, and by an exception that Python prints."""
    text = LOOK.replace('sys.argv[-1] == "wait"', 'os.environ["RANK"] == "1"').replace(
        'sys.argv[-1] == "exit"', 'os.environ["RANK"] == "2"'
    )

    async def act(container: Container) -> None:
        container.command = [sys.executable, "train.py"]
        await container.first()
        seen, outcome, rest = await container.ended(2)
        assert (outcome.status, rest) == (3, "atexit")
        raised, outcome, rest = await container.ended(3)
        assert outcome.status == 1
        assert seen["heavy_by"] == raised["heavy_by"] != raised["pid"]
        lines = rest.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[1].startswith(f'  File "{container.folder}/train.py", line ')
        assert lines[1].endswith(", in <module>")
        assert lines[-2:] == ["ValueError: its end", "atexit"]
        assert not any("sitecustomize" in line for line in lines)

    warmly(tmp_path, act, text)


def test_a_text_that_itself_exits_137_is_not_called_killed(tmp_path: Path) -> None:
    text = "import heavy, os, sys, time\nprint('{}', flush=True)\ntime.sleep(600) if os.environ['RANK'] == '1' else sys.exit(137)"

    async def act(container: Container) -> None:
        container.command = "python train.py"
        await container.first()
        assert container.keeper._template is not None
        _, outcome, _ = await container.ended(2)
        assert (outcome.reason, outcome.status) == ("exit", 137)

    warmly(tmp_path, act, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os\nos.environ.get('RANK')", "reads RANK"),
        ("import os\ndict(os.environ)", "reads all of os.environ"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "starts a thread",
        ),
        ("FILE = open(__file__)", "leaves a descriptor open"),
        ("import os\nFILE = os.open('/dev/null', os.O_RDONLY)", "leaves a descriptor open: /dev/null"),
        ("import subprocess\nP = subprocess.Popen(['sleep', '600'])", "starts a process"),
        ("print('hello')", "prints: 'hello"),
        ("import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)", "prints: "),
        ("import sys\nsys.path.append('/x')", "changes sys.path"),
        ("raise RuntimeError('no')", "fails: RuntimeError('no')"),
    ],
)
def test_an_import_with_a_side_effect_is_left_to_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, why: str
) -> None:
    caplog.set_level(logging.INFO)
    program = "try:\n    import side\nexcept RuntimeError:\n    pass\n" + LOOK

    async def act(container: Container) -> None:
        (container.library / "side.py").write_text(text)
        await container.first()
        running, path = await container.run(2)
        await until_async(lambda: '"heavy_by"' in path.read_text())
        line = next(line for line in path.read_text().splitlines() if '"heavy_by"' in line)
        assert json.loads(line)["heavy_by"] != running.pids[0]
        assert await running.stop(signal.SIGKILL, 1.0) == []

    warmly(tmp_path, act, program)
    assert f"the template leaves out `import side`, which {why}" in caplog.text


def test_a_module_that_keeps_only_variables_of_its_own_name_is_imported_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`tqdm`, which PyTorch imports where it is installed."""
    caplog.set_level(logging.INFO)
    text = "import os\nMINE = {k: v for k, v in os.environ.items() if k.startswith('TQDM_')}\n"

    async def act(container: Container) -> None:
        (container.library / "tqdm").mkdir()
        (container.library / "tqdm" / "__init__.py").touch()
        (container.library / "tqdm" / "utils.py").write_text(text)
        await container.first()

    warmly(tmp_path, act, "import tqdm.utils\n" + LOOK)
    assert "a template has done" in caplog.text
    assert "leaves out" not in caplog.text


@pytest.mark.parametrize("case", ["variable", "hidden", "killed", "stopped", "command"])
def test_what_does_not_fit_starts_cold_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    caplog.set_level(logging.INFO)
    why = {
        "variable": "OMP_NUM_THREADS changed", "hidden": "random.py hides a module", "killed": "the template has ended",
        "stopped": "it does not fork within", "command": "the template is of another command",
    }[case]  # fmt: skip

    async def act(container: Container) -> None:
        await container.first()
        assert container.keeper._template is not None
        pid = container.keeper._template.pid
        if case == "variable":
            container.extra["OMP_NUM_THREADS"] = "2"
        elif case == "hidden":
            (container.folder / "random.py").write_text("random = lambda: 0.5\n")
        elif case == "killed":
            os.kill(pid, signal.SIGKILL)
            await until_async(lambda: not container.keeper._template.alive)  # type: ignore[union-attr]
        elif case == "command":
            container.command = [*container.command, "wait"]
        else:
            container.keeper._template._drop_spare()
            os.kill(pid, signal.SIGSTOP)
        running, path = await container.run(2)
        if case != "hidden":
            await until_async(lambda: path.read_text().count("\n") == 1)
            assert json.loads(path.read_text())["heavy_by"] == running.pids[0]
        assert await running.stop(signal.SIGKILL, 1.0) == []

    warmly(tmp_path, act)
    assert f"the program starts cold: {'' if case != 'hidden' else str(tmp_path / 'work') + '/'}{why}" in caplog.text


@pytest.mark.parametrize(
    ("library", "room", "is_summed", "why"),
    [
        ("os", None, False, ""),
        ("heavy", keepers.AGENT, False, "resources.overhead leaves it 0 MiB"),
        ("heavy", keepers.AGENT + keepers.LEAST, True, "resources.overhead leaves it 128 MiB; 512 MiB are the least"),
        ("hungry", keepers.AGENT + keepers.LEAST, False, "more memory than resources.overhead has room for"),
        ("shared", keepers.AGENT + keepers.LEAST_SUMMED, True, "more memory than resources.overhead has room for"),
    ],
)
def test_there_is_no_template_where_it_brings_nothing_or_has_no_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, library: str, room: int | None, is_summed: bool, why: str
) -> None:
    caplog.set_level(logging.INFO)

    async def act(container: Container) -> None:
        (container.library / "hungry.py").write_text("BYTES = bytearray(b'x') * (160 << 20)\n")
        mapped = "import mmap\nBYTES = mmap.mmap(-1, 520 << 20)\nBYTES.write(bytes(520 << 20))\n"  # counts as shared
        (container.library / "shared.py").write_text(mapped)
        running, path = await container.run(1)
        await until_async(lambda: "{" in path.read_text())
        container.keeper.attend(container.launch(1), WITHHELD, running.pids[0], room, is_summed, lambda: True)
        await container.making()
        assert container.keeper._template is None
        assert await running.stop(signal.SIGKILL, 1.0) == []

    warmly(tmp_path, act, f"import {library}, time\nprint('{{', flush=True)\ntime.sleep(600)")
    assert why in caplog.text
    assert bool(caplog.text) == bool(why)


@pytest.mark.parametrize(
    "hook", ["", "this is no Python", "raise RuntimeError('broken')", "import os; os.environ['PYTHONPATH'] = ''"]
)
def test_an_interpreter_that_heeds_no_template_does_not_run_the_program_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "sitecustomize.py").write_text(hook)
    monkeypatch.setattr(template, "INSIDE", str(inside))

    async def act(container: Container) -> None:
        await container.first()
        assert container.keeper._template is None
        assert (container.folder / "runs").read_text() == "1"

    warmly(tmp_path, act, "open('runs', 'a').write('1')\n" + LOOK)


AGENT = """
import asyncio, os, signal, sys
sys.path[:0] = {path!r}
import pathlib
from unit import test_agent_warm as tests
tests.keepers.LOOKS, tests.keepers.OLD = (0.05,), 0.0
tests.linux.adopt_orphans()
async def act():
    container = tests.Container(pathlib.Path({folder!r}))
    await container.first()
    running, path = await container.run(2)
    await tests.until_async(lambda: path.read_text().count("\\n") == 1)
    print(running.pids[0], container.keeper._template.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(act())
"""


def test_program_and_template_die_with_the_agent(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    agent = AGENT.format(path=[str(tests), str(tests / "unit")], folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", agent], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    until(lambda: not any((process := linux.look(pid)) is not None and process.alive for pid in pids), 10.0)
    process_tree.reap_orphans(os.getpid(), ())


def test_a_spare_that_was_killed_costs_no_template(tmp_path: Path) -> None:
    async def act(container: Container) -> None:
        container.command = [sys.executable, "train.py"]
        await container.first()
        warm = container.keeper._template
        assert warm is not None
        assert warm._spare is not None
        os.kill(warm._spare.copy.pid, signal.SIGKILL)
        await warm._spare.copy.over
        seen, _outcome, _rest = await container.ended(2)
        assert seen["heavy_by"] == warm.pid
        assert container.keeper._template is warm

    warmly(tmp_path, act, LOOK.replace('sys.argv[-1] == "wait"', 'os.environ["RANK"] == "1"'))


def test_a_template_is_no_process_of_the_program(tmp_path: Path) -> None:
    async def act(container: Container) -> None:
        await container.first()
        assert container.keeper._template is not None
        assert process_tree.descendants(os.getpid()) == process_tree.kin(os.getpid()) == []
        assert await process_tree.end_all(os.getpid()) == []
        assert container.keeper._template.alive
        assert (linux.look(container.keeper._template.pid) or linux.look(1)).name == "tm-warm"  # type: ignore[union-attr]

    warmly(tmp_path, act)


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def test_only_the_program_has_the_programs_command_line(tmp_path: Path) -> None:
    """`pkill -f train.py` ends no template, nor the fork that waits to be the next program."""

    async def act(container: Container) -> None:
        await container.first()
        warm = container.keeper._template
        assert warm is not None
        assert warm._spare is not None
        for pid in (warm.pid, warm._spare.copy.pid):
            assert command_line(pid) == "tm: warm worker:1 digits-k3x7qa"
        answer, _outcome, _rest = await container.ended(2)
        assert answer["heavy_by"] == warm.pid
        assert answer["seen"]["title"].split("\0") == [*container.command, ""]

    warmly(tmp_path, act, LOOK.replace('sys.argv[-1] == "wait"', 'os.environ["RANK"] == "1"'))
