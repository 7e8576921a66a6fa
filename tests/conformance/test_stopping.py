"""A program that is asked to end, or warned, as users write it: under shells, in pipelines, below launchers, with workers of its own.

Each program saves what it has when it is asked, takes its time for that, and prints meanwhile. Its grace is far longer; what it saved, how
often it was asked and what ran after it are in its output.
"""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from conformance.engines import TM, Engine, Submitted, workers
from conformance.test_queue import cores
from waiting import until

STOP = {"grace": "5m"}
SAVES = """
import os, signal, sys, time
def save(*_):
    print("asked", flush=True)
    time.sleep(3)  # longer than the leftovers of a program have
    print("saved", flush=True)
    sys.exit(0)
signal.signal(getattr(signal, os.environ.get("SIGNAL", "SIGTERM")), save)
signal.signal(signal.SIGUSR1, lambda *_: print("warned", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
LAUNCHES = """
import subprocess, sys
for fold in range(3):  # as `conda run` and `accelerate launch` wait for what they start
    subprocess.run(["bash", "-c", f"cd . && {sys.executable} -u saves.py; echo after"])
    print("next", flush=True)
"""
SPAWNS = """
import multiprocessing, runpy
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=runpy.run_path, args=("saves.py",))
    child.start()
    child.join()
    print("after", flush=True)
"""
POLLS = """
import ctypes, multiprocessing, multiprocessing.connection, signal, time
def rank():
    ctypes.CDLL(None).prctl(1, signal.SIGINT)  # as a rank of torch.multiprocessing.spawn dies with its parent
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    print("ready", flush=True)
    while not asked:
        time.sleep(0.05)
    print("asked", flush=True)
    time.sleep(3)
    print("saved", flush=True)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=rank)
    child.start()
    multiprocessing.connection.wait([child.sentinel])
    print("after", flush=True)
"""
READS = """
import subprocess, sys
with subprocess.Popen([sys.executable, "-u", "saves.py"], stdout=subprocess.PIPE) as program:  # as `conda run` reads
    for line in program.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
"""
BLOCKS = """
import signal, subprocess, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # as `unshare --fork` waits
unblock = lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
subprocess.run([sys.executable, "-u", "saves.py"], preexec_fn=unblock)
"""
FORKS = """
import os, runpy, signal, time
if os.fork() == 0:  # a worker of the program
    signal.signal(signal.SIGTERM, lambda *_: print("the worker was asked", flush=True))
    while True:
        time.sleep(0.05)
runpy.run_path("saves.py")
"""
SLOW = """
import sys, time
for line in sys.stdin:
    time.sleep(0.5)
    print(line, end="", flush=True)
"""
SYSTEM = f"import os; os.system('{sys.executable} -u saves.py'); print('after')"
PROGRAMS = {
    "saves.py": SAVES, "launches.py": LAUNCHES, "spawns.py": SPAWNS, "polls.py": POLLS, "reads.py": READS, "blocks.py": BLOCKS,
    "forks.py": FORKS, "system.py": SYSTEM, "slow.py": SLOW,
}  # fmt: skip
PYTHON = f"{sys.executable} -u saves.py"
COMMANDS: dict[str, str | list[str]] = {
    "text": PYTHON,
    "then": f"{PYTHON}; echo after",
    "bash": ["bash", "-c", f"{PYTHON}; echo after"],
    "pipe": f"set -e; {PYTHON} | tee log; echo after",
    "bash-pipe": ["bash", "-c", f"set -e; {PYTHON} | tee log; echo after"],
    "slow-pipe": f"{PYTHON} | {sys.executable} slow.py | cat; echo after",
    "grouped": f"({PYTHON}; echo next) | {sys.executable} slow.py; echo after",
    "substituted": ["bash", "-c", f"exec {PYTHON} > >({sys.executable} slow.py)"],
    "beside": f"sleep 1000 & {PYTHON}; echo after",
    "background": f"{PYTHON} & wait; echo after",
    "launcher": [sys.executable, "launches.py"],
    "spawn": f"{sys.executable} spawns.py",
    "polls": f"{sys.executable} polls.py; echo after",
    "reads": [sys.executable, "reads.py"],
    "blocks": [sys.executable, "blocks.py"],
    "timeout": f"timeout 1000 {sys.executable} -u forks.py; echo after",
    "system": f"exec 2> /dev/null; trap 'exit 0' TERM; {sys.executable} system.py; echo after",
}


def saving(engine: Engine, command: str | list[str], **keys: Any) -> Submitted:
    for name, text in PROGRAMS.items():
        engine.write(name, text)
    job = engine.submit(workers(command, **{"stop": STOP, **keys}), files=sorted(PROGRAMS))
    job.until_line("ready")
    return job


@pytest.mark.brief
@pytest.mark.needs("logs-of-the-stopped")
@pytest.mark.parametrize("form", ["then", "pipe"])
def test_a_program_has_its_grace(engine: Engine, form: str) -> None:
    job = saving(engine, COMMANDS[form])
    assert engine.tm("kill", job.id).returncode == 0
    assert job.end()["state"] == "killed"
    assert job.lines() == ["ready", "asked", "saved"]


@pytest.mark.needs("logs-of-the-stopped", "local-master")
@pytest.mark.parametrize("form", sorted(COMMANDS.keys() - {"then", "pipe"}))
def test_a_program_has_its_grace_however_it_was_started(engine: Engine, form: str) -> None:
    job = saving(engine, COMMANDS[form])
    assert engine.tm("kill", job.id).returncode == 0
    assert job.end()["state"] == "killed"
    assert job.lines() == ["ready", "asked", "saved"]


# What reads what a program prints keeps it until the end of its input; some handle SIGTERM to remove what they have written.
READERS = {
    "gzip": f"set -e; {PYTHON} | gzip > log.gz; echo after",
    "sort": f"{PYTHON} | sort | cat > log; echo after",
    "held": f"{{ {PYTHON}; true; }} | grep . > log; echo after",
    "beside": f"(sleep 1000 & {PYTHON}) | grep . > log; echo after",
    "timeout": f"timeout 1000 {PYTHON} | grep . > log; echo after",
    "fifo": f"mkfifo pipe; grep . < pipe > log & {PYTHON} > pipe; wait; echo after",
    "exec": f"exec > >(grep . > log); {PYTHON}; echo after",
}


@pytest.mark.needs("local-master")
@pytest.mark.parametrize("form", READERS)
def test_readers_keep_what_was_printed(engine: Engine, form: str) -> None:
    engine.write("saves.py", SAVES.replace('print("ready"', 'open("began", "w").close()\nprint("ready"'))
    job = engine.submit(workers(["bash", "-c", READERS[form]], stop=STOP))
    until(lambda: (engine.folder / "began").exists(), what="its program begins")
    assert engine.tm("kill", job.id).returncode == 0
    assert job.end()["state"] == "killed"
    packed = engine.folder / "log.gz"
    kept = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else (engine.folder / "log").read_text()
    assert sorted(kept.splitlines()) == ["asked", "ready", "saved"]


@pytest.mark.needs("logs-of-the-stopped", "local-master")
def test_what_a_program_prints_last_is_read_by_a_process_that_outlives_it(engine: Engine) -> None:
    engine.write("slow.py", SLOW)
    job = engine.submit(workers(["bash", "-c", f"seq 3 > >({sys.executable} slow.py); echo over"]))
    job.succeeded()
    assert sorted(job.lines()) == ["1", "2", "3", "over"]


@pytest.mark.needs("logs-of-the-stopped", "local-master")
def test_ctrl_c_as_the_signal_reaches_a_program_and_what_it_waits_for(engine: Engine) -> None:
    job = saving(engine, [sys.executable, "spawns.py"], stop={**STOP, "signal": "SIGINT"}, env={"SIGNAL": "SIGINT"})
    job.run.kill()
    job.end()
    assert [line for line in job.lines() if line in {"ready", "asked", "saved", "after"}] == ["ready", "asked", "saved"]


@pytest.mark.needs("logs-of-the-stopped", "local-master")
def test_the_trap_of_a_shell_runs_though_its_program_handles_nothing(engine: Engine) -> None:
    job = engine.submit(
        workers("exec 2> /dev/null; trap 'echo saved; exit 0' TERM; (echo ready; sleep 1000)", stop={"grace": "1h"})
    )
    job.until_line("ready")
    job.run.kill()
    job.end()
    assert job.lines() == ["ready", "saved"]


@pytest.mark.needs("logs-of-the-stopped")
def test_a_program_has_its_grace_when_its_group_starts_again(engine: Engine) -> None:
    fails = 'until test -e "$FAILS"; do sleep 0.05; done; test $TRAINMASTER_ATTEMPT != 1 || exit 3; sleep 1000'
    failing = f'if test "$TRAINMASTER_INDEX" = 0; then {PYTHON}; echo after; else {fails}; fi'
    env = {"FAILS": str(engine.folder / "fails")}
    job = saving(engine, failing, replicas=2, env=env, restart={"scope": "group", "limit": 1})
    (engine.folder / "fails").touch()
    job.attempt(2)
    assert job.lines(attempt=1) == ["ready", "asked", "saved"]
    job.run.kill()
    job.end()


@pytest.mark.needs("local-master")
def test_a_program_has_its_grace_after_ctrl_c(engine: Engine) -> None:
    engine.write("saves.py", SAVES)
    engine.write("job.yaml", json.dumps({"name": "t", "roles": workers(COMMANDS["pipe"], stop=STOP)}))
    command = [TM, "run", "job.yaml"]
    with subprocess.Popen(command, cwd=engine.folder, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "ready\n"
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
    assert (engine.folder / "log").read_text().splitlines() == ["ready", "asked", "saved"]


def taking_way(engine: Engine, command: str | list[str]) -> Submitted:
    """A job on most of this machine, whose place a job of a higher priority then takes; returned once it gave way."""
    most = {"cores": round(cores() * 0.7, 2), "memory": "64MiB"}
    job = saving(engine, command, resources=most, stop={**STOP, "warn": "SIGUSR1"})
    urgent = engine.submit({"worker": {"command": "true", "resources": most}}, priority=1)
    urgent.succeeded()
    return job


@pytest.mark.needs("local-master")
def test_a_warning_and_the_stop_after_it_are_for_the_main_process(engine: Engine) -> None:
    job = taking_way(engine, COMMANDS["pipe"])
    assert job.lines(attempt=1) == ["ready", "warned", "asked", "saved"]
    assert job.task("worker:0")["past"][0]["reason"] == "preempted"
    job.run.kill()
    job.end()


@pytest.mark.needs("local-master")
def test_a_warning_that_nothing_handles_is_not_sent(engine: Engine) -> None:
    deaf = "echo ready; trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done"
    job = taking_way(engine, deaf)
    lines = [line for line in job.lines(attempt=1) if line != "Terminated"]  # a shell's word for its command's end
    assert lines == ["ready", "asked"]
    (trouble,) = job.told("trouble")
    assert trouble["detail"] == "SIGUSR1 was not sent: the program has no handler for it, so it would end"
    job.run.kill()
    job.end()


TRAINS = """
import signal, sys, torch
from torch.utils.data import DataLoader
saving = warned = False
def save(*_):
    global saving
    saving = True
def warn(*_):
    global warned
    warned = True
if __name__ == "__main__":
    weight, step = torch.zeros(1), 0
    loader = DataLoader(torch.arange(10_000_000.0), batch_size=4, num_workers=2)
    batches = iter(loader)
    next(batches)
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGUSR1, warn)
    print("ready", flush=True)
    for batch in batches:
        weight += batch.mean() * 1e-9
        if warned:
            print("warned", flush=True)
            warned = False
        if saving:
            step += 1
        if step == 200:  # workers still have to serve it, well beyond what they have read ahead
            torch.save(weight, "emergency.pt")
            print("saved", flush=True)
            sys.exit(0)
"""


@pytest.mark.full
@pytest.mark.needs("frameworks", "local-master")
def test_the_workers_of_a_data_loader_serve_a_program_that_is_warned_and_stopped(engine: Engine) -> None:
    engine.write("trains.py", TRAINS)
    most = {"cores": round(cores() * 0.7, 2), "memory": "1GiB"}
    job = engine.submit(
        workers(f"{sys.executable} trains.py", stop={**STOP, "warn": "SIGUSR1"}, resources=most), files=["trains.py"]
    )
    job.until_line("ready")
    engine.submit({"worker": {"command": "true", "resources": most}}, priority=1).succeeded()
    assert job.lines(attempt=1) == ["ready", "warned", "saved"]
    assert (engine.folder / "emergency.pt").exists()
    job.run.kill()
    job.end()
