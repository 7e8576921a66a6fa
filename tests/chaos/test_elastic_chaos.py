"""Random faults, by `tm chaos`, on elastic jobs that note each record they read: none hangs, none loses or doubles a record."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Local, Submitted, python, role
from waiting import until

from trainmaster.client.chaos import FAULTS, possible, unleash
from trainmaster.host import processes

FILES, LINES = 30, 20
ENDS = 240.0  # s within which a job ends once nothing happens to it any more
READ = python("""
    import os, time
    from trainmaster import runtime
    step = 0
    for shard in runtime.shards("train", batch=2).shards():
        records = []
        for record in shard.records():
            time.sleep(0.004)
            records.append(record)
        step += 1
        name = f"read/{os.environ['TRAINMASTER_INDEX']}-{os.environ['TRAINMASTER_ATTEMPT']}-{step}"
        with open(name + ".part", "w") as file:
            file.write("".join(record + chr(10) for record in records))
        os.rename(name + ".part", name)  # its own commit, before the shard is reported
        runtime.progress(step=step)
""")


def jobs(engine: Local, scope: str) -> Submitted:
    for number in range(FILES):
        engine.write(f"data/{number:03}.txt", "".join(f"{number} {line}\n" for line in range(LINES)))
    (engine.folder / "read").mkdir()
    one = role(
        READ,
        {"min": 1, "max": 3},
        restart={"scope": scope, "limit": 1000},
        resources={"cores": 0.1, "memory": "128MiB"},
    )
    framework = "pytorch" if scope == "group" else "generic"
    inputs = {"train": {"url": "data", "as": "shards"}}
    return engine.submit({"worker": one}, framework=framework, inputs=inputs, scale={"every": "1s"})


def chaotic(engine: Local, seed: int, scope: str) -> None:
    job = jobs(engine, scope)
    until(lambda: processes.living(job.id, processes.PROGRAM), what="its first program")
    told = [f"{at:.1f} {name} {whom}" for at, name, whom in unleash(job.id, possible("local"), seed, 0.4, 6.0)]
    status = job.end(ENDS)
    assert status["state"] == "succeeded", (told, job.story(status))
    audited = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audited["ok"], (told, audited)
    assert audited["inputs"][0]["records"] == FILES * LINES, (told, audited)
    read = {
        line
        for path in (engine.folder / "read").iterdir()
        if "." not in path.name
        for line in path.read_text().splitlines()
    }
    assert read == {f"{number} {line}" for number in range(FILES) for line in range(LINES)}, told
    until(lambda: not processes.living(job.id), what="the end of the last process")


def place(engine: Local, number: int) -> None:
    """A directory of its own for the next job of a test."""
    engine.folder = engine.folder.parent / f"place-{number}"
    engine.folder.mkdir()
    os.chdir(engine.folder)


def schedules(engine: Local, seeds: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(engine.folder)
    for number, seed in enumerate(seeds(count)):
        place(engine, number)
        chaotic(engine, seed, ("task", "group")[seed % 2])


def test_4_schedules(engine: Local, seeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules(engine, seeds, 4, monkeypatch)


@pytest.mark.full
def test_20_schedules(engine: Local, seeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules(engine, seeds, 20, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_300_schedules(engine: Local, seeds: Any, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    schedules(engine, seeds, 30, monkeypatch)


def test_the_command_tells_its_seed_and_what_it_did_and_stops_with_the_job(engine: Local) -> None:
    job = jobs(engine, "task")
    until(lambda: processes.living(job.id, processes.PROGRAM), what="its first program")
    done = engine.tm("chaos", job.id, "--fault", "kill-program", "--fault", "scale", "--every", "300ms", "--seed", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seed 7\n")
    assert "kill-program    worker:" in done.stdout
    job.succeeded()
    assert set(engine.tm("chaos", job.id, "--list").stdout.split()) >= set(FAULTS)
    said = engine.tm("chaos", job.id, "--fault", "earthquake")
    assert (said.returncode, "there is no fault earthquake" in said.stderr) == (2, True)


def test_what_was_paused_goes_on_when_the_chaos_ends(engine: Local) -> None:
    job = jobs(engine, "task")
    until(lambda: processes.living(job.id, processes.PROGRAM), what="its first program")
    for _ in unleash(job.id, ["pause-program"], 1, 0.05, 60.0):
        break  # as by Ctrl-C
    stopped = [
        mark
        for mark in processes.living(job.id)
        if Path(f"/proc/{mark.process.pid}/stat").read_text().split(") ")[1][0] == "T"
    ]
    assert stopped == []
    job.succeeded()
