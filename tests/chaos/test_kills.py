"""kill -9 of program, agent, master, template and command line at random moments of a running job of two workers that count records.

Whatever is killed whenever, the job ends well, each record is counted exactly once, and nothing is left behind. The moments are drawn from
the seed; the program is slow enough for many of them to fall into its work, and restarts are not limited, being at our fault.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from chaos.faults import (
    KillAgent,
    KillCommandLine,
    KillEverything,
    KillMaster,
    KillProgram,
    KillTemplate,
    StopMaster,
    living,
)
from conformance.engines import LIMIT, TM, Local, Submitted, python, workers
from waiting import until

import trainmaster
from trainmaster.client.jobs.places import BEGIN as BEGINS_WITHIN
from trainmaster.host import places, processes

FILES, LINES = 40, 25
KILLS_A_JOB = 10
COUNT = python("""
    import time
    from trainmaster import runtime
    for shard in runtime.shards("train", batch=2).shards():
        for record in shard.records():
            time.sleep(0.0015)
""")
COUNT_AND_WAIT = [*COUNT[:-1], f"{COUNT[-1]}import os\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"]
MOST = 0.4  # s between two kills


def counting(engine: Local, program: list[str] = COUNT, **more: Any) -> dict[str, Any]:
    """A job of two workers that reads every record of many small files."""
    for number in range(FILES):
        engine.write(f"data/{number:03}.txt", "".join(f"{number} {line}\n" for line in range(LINES)))
    return {
        "roles": workers(program, 2, restart={"scope": "task", "limit": 1000}),
        "inputs": {"train": {"url": "data", "as": "shards", "epochs": 3}},
        **more,
    }


def counted_once(engine: Local, job: Submitted) -> None:
    told = engine.tm("audit", job.id)
    assert told.returncode == 0, told.stdout
    assert f"{3 * FILES * LINES:,} records" in told.stdout, told.stdout
    assert "not counted" not in told.stdout, told.stdout


@attrs.define
class Watching:
    """A command line that watches the job, started again when it was killed."""

    job: str
    folder: str
    process: subprocess.Popen[bytes] | None = None

    def pid(self) -> int:
        if self.process is None or self.process.poll() is not None:
            self.end()
            self.process = subprocess.Popen(
                [TM, "attach", self.job],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return self.process.pid

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def watching(engine: Local) -> Iterator[Watching]:
    made = Watching("", str(engine.folder))
    yield made
    made.end()


def pause(seconds: float, over: Any) -> None:
    """Let time pass, unless the job is over before: the moment of a kill is a point in time, not a condition."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end or over(), what="the moment")


def killed_often(engine: Local, watching: Watching, seed: int, kills: int) -> int:
    """One job with up to so many kills; how many there were."""
    choice = random.Random(seed)
    job = engine.submit(**counting(engine))
    until(lambda: living(job.id, "program"), what="its programs")
    watching.job, done, struck = job.id, 0, []

    def over() -> bool:
        return not living(job.id)

    while done < kills and not over():
        pause(choice.random() * MOST, over)
        fault = choice.choice([KillProgram, KillAgent, KillMaster, KillTemplate, KillCommandLine])
        strike = fault(watching.pid()) if fault is KillCommandLine else fault()
        if strike.strike(job.id, choice):
            struck.append(fault.__name__)
            done += 1
    status = job.end(120)
    assert status["state"] == "succeeded", (struck, job.story(status))
    counted_once(engine, job)
    until(lambda: not living(job.id), what="the end of the last process")
    return done


def kill_until(engine: Local, watching: Watching, seeds: Any, wanted: int) -> None:
    done = 0
    for seed in seeds(10 * wanted // KILLS_A_JOB):
        done += killed_often(engine, watching, seed, min(KILLS_A_JOB, wanted - done))
        if done >= wanted:
            return
    assert seeds.only is not None, f"only {done} kills"


def test_20_kills(engine: Local, watching: Watching, seeds: Any) -> None:
    kill_until(engine, watching, seeds, 20)


@pytest.mark.full
def test_60_kills(engine: Local, watching: Watching, seeds: Any) -> None:
    kill_until(engine, watching, seeds, 60)


@pytest.mark.soak
def test_200_kills(engine: Local, watching: Watching, seeds: Any) -> None:
    kill_until(engine, watching, seeds, 200)


def test_a_killed_master_is_replaced_and_no_program_notices(engine: Local) -> None:
    job = engine.submit(workers("echo ready; sleep 1000", 2))
    job.until_line("ready")
    for epoch in (2, 3):
        KillMaster().strike(job.id, random.Random())
        job.until_status("a new master", lambda status, epoch=epoch: status["epoch"] == epoch)
    assert [task["attempt"] for task in job.status()["tasks"]] == [1, 1]
    job.run.kill()
    assert job.end()["state"] == "killed"


BEGINNING = (
    0.6  # s from a command's start, in which its job is submitted and its master, template, agents and programs begin
)
# From the kill to the job's end: so many seconds, and so many times what the same job takes unharmed on this machine, now.
SILENCE, UNHARMED = BEGINS_WITHIN / 2, 5
VICTIMS = (KillMaster, KillAgent, KillTemplate, KillEverything)
BRIEF = [TM, "run", "-n", "2", "--cores", "0.05", "--memory", "64MiB", "--", "sh", "-c", "echo ready; sleep 0.3"]


def killed_as_it_begins(engine: Local, seed: int) -> None:
    """One job, submitted by a command that watches it, of which something is killed at a random moment, or as soon as it is there."""
    began = time.monotonic()
    subprocess.run(BRIEF, stdout=subprocess.DEVNULL, check=True, cwd=engine.folder)
    limit = SILENCE + UNHARMED * (time.monotonic() - began)
    choice, before = random.Random(seed), {*engine_jobs()}
    victim, moment = choice.choice(VICTIMS)(), choice.random() * BEGINNING
    with subprocess.Popen(BRIEF, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=engine.folder) as process:
        pause(moment, lambda: process.poll() is not None)
        (name,) = until(lambda: {*engine_jobs()} - before, what="the job")
        until(lambda: victim.strike(name, choice) or process.poll() is not None, what=f"a victim of {victim}")
        killed = time.monotonic()
        job = Submitted(trainmaster.attach(name))
        engine.jobs.append(job)
        printed, _ = process.communicate(timeout=LIMIT)
    silence, told = time.monotonic() - killed, (victim, moment, printed)
    assert process.returncode == 0, told
    assert printed.count(b"ready") >= 2, told
    assert silence < limit, (silence, limit, told, job.story(job.status()))


def test_whatever_is_killed_as_a_job_begins_is_followed_at_once(engine: Local, seeds: Any) -> None:
    """A master killed within 70 ms cost 30 s."""
    for seed in seeds(4):
        killed_as_it_begins(engine, seed)


@pytest.mark.soak
def test_60_kills_as_jobs_begin_are_followed_at_once(engine: Local, seeds: Any) -> None:
    for seed in seeds(60):
        killed_as_it_begins(engine, seed)


def test_everything_killed_at_once_is_resumed_by_the_next_command(engine: Local) -> None:
    job = engine.submit(**counting(engine, COUNT_AND_WAIT))
    job.until_status("some progress", lambda status: status["shards"] and status["shards"]["train"]["done"] > 5)
    KillEverything().strike(job.id, random.Random())
    assert not living(job.id)
    engine.write("go", "")
    assert engine.tm("list").returncode == 0
    job.succeeded()
    counted_once(engine, job)
    assert len(job.told("master-started")) == 2


def test_a_resumed_job_finds_what_its_submitter_had(engine: Local, home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment, as activated, variables and umask; what is secret by its name as it is set now."""
    tool = engine.write("env/bin/mytool", '#!/bin/sh\necho "ready $GREETING $(umask) $A_TOKEN"\nexec sleep 1000\n')
    tool.chmod(0o755)
    monkeypatch.setenv("GREETING", "hello")
    monkeypatch.setenv("A_TOKEN", "of-the-submitter")
    job = engine.submit(workers(["mytool"]), environment={"path": "env"})
    job.until_line("ready hello 0022 of-the-submitter")
    kept = [path for path in home.state.rglob("*") if path.is_file() and path.suffix != ".log"]
    assert not [path for path in kept if b"of-the-submitter" in path.read_bytes()]
    KillEverything().strike(job.id, random.Random())
    monkeypatch.delenv("GREETING")
    monkeypatch.setenv("A_TOKEN", "of-another-day")
    assert engine.tm("list", umask=0o077).returncode == 0
    job.until_line("ready hello 0022 of-another-day")
    job.run.kill()
    assert job.end()["state"] == "killed"
    until(lambda: not list(home.state.rglob("environ.json")), what="the removal of what was kept to resume it")


def test_a_kill_by_force_starts_nothing(engine: Local) -> None:
    job = engine.submit(workers("echo started >> starts; echo ready; exec sleep 1000", 2))
    for task in ("worker:0", "worker:1"):
        job.until_line("ready", task)
    (master,) = living(job.id, "master")
    processes.send(master.process, signal.SIGSTOP)
    assert engine.tm("kill", "--force", job.id).returncode == 0
    assert job.end()["state"] == "killed"
    assert (engine.folder / "starts").read_text().split() == ["started"] * 2


def test_whoever_comes_next_carries_out_a_kill_by_force(engine: Local) -> None:
    """Its own master may die, or hang with its disk, before the log has it: the next command had the whole job start again."""
    job = engine.submit(workers("echo started >> starts; echo ready; exec sleep 1000", 2))
    for task in ("worker:0", "worker:1"):
        job.until_line("ready", task)
    KillEverything().strike(job.id, random.Random())
    places.note_kill(job.id, {"by": "user test", "why": ""})
    assert engine.tm("list").returncode == 0
    assert job.end()["state"] == "killed"
    assert (engine.folder / "starts").read_text().split() == ["started"] * 2
    assert places.noted_kill(job.id) is None
    (places.state_dir() / "live" / f"{job.id}@{places.node_name()}").write_text("{")
    assert places.noted_kill(job.id), "what is damaged is a kill too"
    places.set_live(job.id, False)


def test_a_job_whose_secrets_are_gone_says_so(engine: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "the-value-itself")
    job = engine.submit(workers("echo ready; sleep 1000", 2, env={"MY_TOKEN": None}))
    job.until_line("ready")
    KillEverything().strike(job.id, random.Random())
    assert engine.tm("list").returncode == 0
    assert job.failed("secrets-lost")["advice"] == f"submit it again: tm retry {job.id}"


def test_a_master_that_comes_back_late_stops_acting(engine: Local) -> None:
    """It was stopped, its successor took over, and it goes on as if nothing had happened."""
    job = engine.submit(**counting(engine, COUNT_AND_WAIT))
    job.until_status("some progress", lambda status: status["shards"] and status["shards"]["train"]["done"] > 5)
    (old,) = living(job.id, "master")
    processes.send(old.process, signal.SIGSTOP)
    from trainmaster.engines.local.launch import resume

    resume(job.id)
    until(lambda: len(living(job.id, "master")) == 2, what="its successor")
    until(lambda: len(list((job.storage / "epochs").iterdir())) == 2, what="the epoch of its successor")
    engine.write("go", "")
    processes.send(old.process, signal.SIGCONT)
    until(lambda: not old.process.alive, what="the end of the old master")
    job.succeeded()
    counted_once(engine, job)


def test_the_command_line_may_die(engine: Local) -> None:
    """Killed as soon as it has begun: the job goes on without it, and a new one sees the rest."""
    job = engine.submit(**counting(engine))
    for _ in range(3):
        with subprocess.Popen([TM, "attach", job.id], stdout=subprocess.PIPE, cwd=engine.folder) as command:
            assert command.stdout is not None
            command.stdout.readline()
            os.kill(command.pid, signal.SIGKILL)
    job.succeeded()
    counted_once(engine, job)


def test_interrupting_the_command_line_detaches(engine: Local) -> None:
    engine.write("job.yaml", "name: t\nroles:\n  worker: {command: 'echo ready; while ! test -e go; do sleep 0.05; done', "
                 "resources: {cores: 0.05, memory: 64MiB}}\n")  # fmt: skip
    with subprocess.Popen(
        [TM, "run", "--detach=leave", "job.yaml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=engine.folder,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell has it ignored in what runs behind it
    ) as command:  # fmt: skip
        assert command.stdout is not None
        told = ""
        while "ready" not in told:
            told += command.stdout.readline()
        command.send_signal(signal.SIGINT)
        told += command.stdout.read()
    assert "tm attach" in told
    (folder,) = (job.name for job in (engine_state() / "jobs").iterdir())
    job = Submitted(trainmaster.attach(folder))
    engine.jobs.append(job)
    assert job.status()["state"] == "running"
    (engine.folder / "go").touch()
    job.succeeded()


def engine_jobs() -> list[str]:
    from trainmaster.client.jobs.places import job_ids

    return job_ids()


def engine_state() -> Any:
    from trainmaster.client.jobs.places import state_dir

    return state_dir()


@pytest.mark.full
def test_a_stopped_master_is_named_as_the_reason_why_programs_restart(engine: Local) -> None:
    """It read "its container ended with status 0"."""
    command = 'echo attempt $TRAINMASTER_ATTEMPT; test "$TRAINMASTER_ATTEMPT" = 2 || exec sleep 1000'
    job = engine.submit(workers(command, 1), timeouts={"grace": "8s"})
    job.until_line("attempt 1")
    master = living(job.id, "master")[0]
    assert StopMaster().strike(job.id, random.Random())
    until(lambda: not living(job.id, "agent"), what="the agent's end")
    assert processes.send(master.process, signal.SIGCONT)
    assert job.end()["state"] == "succeeded"
    past = job.task("worker:0")["past"]
    assert [(end["reason"], end["words"]) for end in past] == [
        ("no-master", "was stopped since no master answered for 8 s")
    ]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_an_end_is_kept_for_a_master_that_comes_after_the_grace(engine: Local, how: str) -> None:
    """The agent left with the end, and the whole program ran again."""
    job = engine.submit(workers("echo run; until test -e go; do sleep 0.02; done; echo done"), timeouts={"grace": "8s"})
    job.until_line("run")
    (master,) = living(job.id, "master")
    with no_successor(job):
        assert processes.send(master.process, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
        (engine.folder / "go").touch()
        log = job.storage / "logs" / "worker-0" / "agent.log"
        until(lambda: "the grace has run out" in log.read_text(), what="the end of the grace")
        assert living(job.id, "agent")
    if how == "stopped":
        assert processes.send(master.process, signal.SIGCONT)
    job.succeeded()
    assert job.lines() == ["run", "done"]
    assert job.task("worker:0")["attempt"] == 1


@contextmanager
def no_successor(job: Submitted) -> Iterator[None]:
    """No agent starts another master inside the context: the lock under which one does is held."""
    lock = os.open(places.job_dir(job.id) / "successor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
