"""Outputs saved while programs run: what a user finds under `_saves`, and is told of it."""

from __future__ import annotations

import json
import re

from conformance.engines import Engine, python, workers

# Writes a model of one step, waits for a file to appear, goes on.
TRAIN = """
    import os, pathlib, time
    out = pathlib.Path(os.environ["TRAINMASTER_OUTPUT_MODEL"])
    out.mkdir()
    (out / "vocabulary").write_text("words")
    for step in range(3):
        (out / "model").write_text("x" * (step + 1))
        print("step", step, flush=True)
        while not os.path.exists(f"{os.environ['GO']}/{step}"):
            time.sleep(0.02)
"""


def begun(engine: Engine, replicas: int = 1, **keys):
    """A job whose programs run, as its master knows."""
    job = engine.submit(
        workers(python(TRAIN), replicas, env={"GO": str(engine.folder)}),
        outputs={"model": {"url": engine.place("model")}},
        **keys,
    )
    for index in range(replicas):
        job.attempt(1, f"worker:{index}")
    return job


def saved(engine: Engine) -> dict[str, dict[str, str]]:
    """Every save: its files, as a reader gets them, by task and name."""
    found: dict[str, dict[str, str]] = {}
    there = {name.removeprefix("_saves/"): content for name, content in engine.files("model").items()}
    notes = [name for name in there if name.count("/") == 1 and name.endswith(".json")]
    # Of two saves in one second the second is `<second>.1`.
    for path in sorted(notes, key=lambda name: name.split("/")):
        save, _, task = path.removesuffix(".json").partition("/")
        into = found.setdefault(save, {})
        for name, file in json.loads(there[path])["files"].items():
            into[f"{task}/{name}"] = there[f"{file['in']}/{task}/{name}"].decode()
    return found


def test_a_save_holds_what_is_there_and_sends_what_changed(engine: Engine) -> None:
    job = begun(engine)
    job.until_line("step 0")
    told = engine.tm("save", job.id)
    assert told.returncode == 0, told.stderr
    assert "worker:0: 2 files, 6 B" in told.stdout
    engine.write("0", "")
    job.until_line("step 1")
    second = json.loads(engine.tm("save", job.id, "--json").stdout)
    assert second["tasks"] == {"worker:0": {"files": 1, "bytes": 2}}, "only what changed"
    for step in (1, 2):
        engine.write(str(step), "")
    status = job.succeeded()
    assert [sorted(save["tasks"]) for save in status["saves"]] == [["worker:0"], ["worker:0"]]
    shown = engine.tm("status", job.id).stdout
    assert all(f"save {save['save']}: 1 task" in shown for save in status["saves"])
    contents = list(saved(engine).values())
    assert contents == [
        {"worker-0/vocabulary": "words", "worker-0/model": "x"},
        {"worker-0/vocabulary": "words", "worker-0/model": "xx"},
    ]
    assert engine.files("model")["worker-0/model"] == b"xxx"
    assert not any("_saves" in file["path"] for task in json.loads(engine.files("model")["_SUCCESS"])["tasks"].values()
                   for file in task["files"])  # fmt: skip
    assert [event["save"] for event in job.told("saved")] == [save["save"] for save in status["saves"]]
    assert engine.tm("save", job.id).returncode == 2


def test_saves_on_a_schedule_and_old_ones_removed(engine: Engine) -> None:
    job = begun(engine, 2, saves={"every": "1s", "keep": 2})
    status = job.until_status("five saves", lambda status: len(job.told("saved")) >= 10 and len(status["saves"]) <= 3)
    assert all(save["tasks"] for save in status["saves"][:-1])
    for step in range(3):
        engine.write(str(step), "")
    status = job.succeeded()
    found = saved(engine)
    assert len(found) <= 3
    last = next(iter(found.values()))
    assert {"worker-0/vocabulary", "worker-1/vocabulary", "worker-0/model"} <= last.keys(), "what is left is whole"
    requested = job.told("save-requested")
    assert all(event["by"] == "schedule" for event in requested)
    assert len(requested) >= 5


def test_a_save_that_fails_is_told_and_the_program_goes_on(engine: Engine) -> None:
    job = begun(engine)
    job.until_line("step 0")
    engine.put("model/_saves", "in the way")
    told = engine.tm("save", job.id)
    assert told.returncode == 3, told.stdout
    assert "worker:0" in told.stdout
    engine.remove("model/_saves")
    for step in range(3):
        engine.write(str(step), "")
    job.succeeded()
    assert engine.files("model")["worker-0/model"] == b"xxx"


def test_saves_named_as_those_of_xlearning_lie_beside_the_output(engine: Engine) -> None:
    job = begun(engine, saves={"keep": 1, "names": "interResult"})
    job.until_line("step 0")
    for step in range(3):
        told = engine.tm("save", job.id)
        assert re.match(r"interResult_\d{4}(_\d\d){5}(\.\d+)? worker:0: ", told.stdout), told.stdout + told.stderr
        engine.write(str(step), "")
        if step < 2:
            job.until_line(f"step {step + 1}")
    job.succeeded()
    there = engine.files("model")
    (kept,) = {name.partition("/")[0] for name in there if name.startswith("interResult_")}
    assert there[f"{kept}/worker-0/model"] == b"xxx"
    assert not any(name.startswith("_saves/") for name in there)
