"""Random faults, by `tm chaos`, on elastic jobs that note each record they read: none hangs, none loses or doubles a record.

Each program notes the records of a shard in a file whose name says by whom, in which attempt and at which step, and which appears whole
before the shard counts. `disagreements` holds those notes against `tm audit`; three faults that are planted show that it finds them.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import TM, Local, Submitted, python, role
from parts import mounted
from waiting import until

from trainmaster.client.chaos import FAULTS, Chaos, possible, unleash
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
SLOWLY = [*READ[:-1], READ[-1].replace("sleep(0.004)", "sleep(0.03)")]


def jobs(engine: Local, scope: str, read: list[str] = READ, replicas: Any = None, grace: str = "5s") -> Submitted:
    for number in range(FILES):
        engine.write(f"data/{number:03}.txt", "".join(f"{number} {line}\n" for line in range(LINES)))
    (engine.folder / "read").mkdir()
    one = role(
        read,
        replicas or {"min": 1, "max": 3},
        restart={"scope": scope, "limit": 1000},
        resources={"cores": 0.1, "memory": "128MiB"},
    )
    framework = "pytorch" if scope == "group" else "generic"
    inputs = {"train": {"url": "data", "as": "shards"}}
    return engine.submit(
        {"worker": one}, framework=framework, inputs=inputs, scale={"every": "1s"}, timeouts={"grace": grace}
    )


def disagreements(engine: Local, job: Submitted) -> list[str]:
    """Return what is wrong of the records that the job counted, by `tm audit` and by what its programs noted."""
    audited = json.loads(engine.tm("audit", job.id, "--json").stdout)
    expected = {f"{number} {line}" for number in range(FILES) for line in range(LINES)}
    noted = {
        line
        for path in (engine.folder / "read").iterdir()
        if "." not in path.name
        for line in path.read_text().splitlines()
    }
    wrong = [] if audited["ok"] else [f"audit: {audited}"]
    if (counted := audited["inputs"][0]["records"]) != len(expected):
        wrong.append(f"{counted} records were counted, of {len(expected)}")
    return wrong + [f"counted and never noted: {record}" for record in expected - noted] + [*(noted - expected)]


def chaotic(engine: Local, seed: int, scope: str) -> None:
    job = jobs(engine, scope)
    until(lambda: processes.living(job.id, processes.PROGRAM), what="its first program")
    names = possible(job.id, "local")
    told = [f"{at:.1f} {name} {whom}" for at, name, whom in unleash(job.id, names, seed, 0.4, 6.0)]
    status = job.end(ENDS)
    assert status["state"] == "succeeded", (told, job.story(status))
    assert not disagreements(engine, job), told
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


def test_2_schedules(engine: Local, seeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules(engine, seeds, 2, monkeypatch)


@pytest.mark.full
def test_20_schedules(engine: Local, seeds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules(engine, seeds, 20, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_300_schedules(engine: Local, seeds: Any, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    schedules(engine, seeds, 30, monkeypatch)


def test_the_command_tells_its_seed_and_what_it_did_and_stops_with_the_job(engine: Local) -> None:
    waits = "while not os.path.exists('go'):\n    time.sleep(0.05)\n"
    job = jobs(engine, "task", [*READ[:-1], READ[-1] + waits])
    until(lambda: processes.living(job.id, processes.PROGRAM), what="its first program")
    command = [TM, "chaos", job.id, "--fault", "kill-program", "--fault", "scale", "--every", "2s", "--seed", "7"]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "kill-program    worker:" in line:
                engine.write("go", "")
    assert (process.returncode, lines[0]) == (0, "seed 7\n")
    assert any("kill-program    worker:" in line for line in lines), lines
    job.succeeded()
    listed = set(engine.tm("chaos", job.id, "--list").stdout.split())
    assert listed & set(FAULTS) == set(FAULTS) - {"fill-disk"}, "its directory is on the machine's disk"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fault", "earthquake"), "there is no fault earthquake"),
        (("--fault", "fill-disk"), "the machine's disk is never filled"),
        (("--fault", "cut", "--lasting", "2h"), "at most 3600 s: 7200"),
        (("--fault", "scale"), "has a size that may change"),
    ],
)
def test_what_it_cannot_do_is_refused(engine: Local, options: tuple[str, ...], words: str) -> None:
    job = engine.submit({"worker": role("true")})
    job.succeeded()
    refusal = engine.tm("chaos", job.id, *options)
    assert (refusal.returncode, words in refusal.stderr) == (2, True), refusal.stderr
    assert refusal.stderr.count("error:") == 1
    listed = json.loads(engine.tm("chaos", job.id, "--list", "--json").stdout)
    assert set(listed) == set(FAULTS) - {"fill-disk", "scale"}


@pytest.mark.parametrize(("seconds", "attempt"), [("1s", 1), pytest.param("60s", 2, marks=pytest.mark.full)])
def test_a_cut_within_the_grace_is_not_noticed_and_a_longer_one_costs_an_attempt(
    engine: Local, seconds: str, attempt: int
) -> None:
    job = jobs(engine, "task", SLOWLY, 2, grace="15s")
    job.until_status("both run", lambda status: [task["state"] for task in status["tasks"]] == ["running"] * 2)
    done = engine.tm("chaos", job.id, "--fault", "cut", "--lasting", seconds, "--every", "1ms", "--for", "1s")
    assert f"for {seconds.removesuffix('s')} s" in done.stdout, (done.stdout, done.stderr)
    assert max(task["attempt"] for task in job.succeeded()["tasks"]) == attempt  # either may have been hit, or both
    assert not disagreements(engine, job)


def test_a_disk_of_the_jobs_own_is_filled_for_a_while(engine: Local, home: Any) -> None:
    home.state.mkdir(parents=True, exist_ok=True)
    with mounted(home.state, "size=24m"):
        job = engine.submit({"worker": role(f"echo ready; while ! test -e '{engine.folder}/go'; do sleep 0.05; done")})
        job.until_line("ready")
        chaos, descriptors = Chaos(job.id, 1, lasting=600.0), os.listdir("/proc/self/fd")
        try:
            assert str(job.storage) in chaos.strike("fill-disk")
            assert os.statvfs(home.state).f_bavail == 0
        finally:
            chaos.end()
            chaos.end()
        assert os.listdir("/proc/self/fd") == descriptors
        assert os.statvfs(home.state).f_bavail > 0
        engine.write("go", "")
        job.succeeded()


PLANTS = {
    "lost": (
        ["    step += 1", "    step += 1; del records[step == 2 and -1 or len(records):]"],
        ["counted and never noted"],
    ),
    "late": (
        ['    os.rename(name + ".part", name)', '    step == 2 or os.rename(name + ".part", name)'],
        ["counted and never noted"],
    ),
    "doubled": ([], ["audit", "records were counted"]),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_found(engine: Local, plant: str) -> None:
    """A record that is counted and was never used; one whose commit was to come after it counted, and the program ended before; one that
    our log counts twice.
    """
    change, words = PLANTS[plant]
    assert all(text in READ[-1] for text in change[:1])
    read = [*READ[:-1], READ[-1].replace(*change) if change else READ[-1]]
    job = jobs(engine, "task", read, 1)
    job.succeeded()
    if plant == "doubled":
        count_twice(job)
    wrong = disagreements(engine, job)
    assert wrong
    assert all(any(line.startswith(word) or word in line for word in words) for line in wrong), wrong


def count_twice(job: Submitted) -> None:
    """Have the log say of the last shards that were done that the first ones were done then too."""
    until(lambda: not processes.living(job.id), what="the end of its master, which may still write the log")
    (path,) = (job.storage / "events").glob("*.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    first, *_, last = [event for event in events if event["type"] == "shards-done"]
    last["ranges"] = [*first["ranges"], *last["ranges"]]
    last["records"] = [*first["records"], *last["records"]]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


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
