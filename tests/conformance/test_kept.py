"""A shard counts, and what was made of it is in a committed output: whatever ends an attempt between the two."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from conformance.engines import Engine, Submitted, python, workers

FILES, LINES = 40, 50  # each file is a shard
# Each line of a shard becomes a row of a file; the program waits within the shard that a file `gate` names by its number of done ones.
COPY = python("""
    import os, time
    from trainmaster import runtime
    from trainmaster.runtime import task
    gates = os.environ["GATES"]
    os.makedirs("rows", exist_ok=True)
    with open(f"rows/{task().key.replace(':', '-')}-{task().attempt}.txt", "w") as rows:
        for number, shard in enumerate(runtime.shards("train", batch=1).shards(), 1):
            for line in shard.records():
                rows.write(line + "\\n")
            rows.flush()
            print("done", number, flush=True)
            while os.path.exists(f"{gates}/{task().key}") and number >= 5:
                time.sleep(0.05)
            time.sleep(0.01)
    if os.path.exists(f"{gates}/lose") and task().attempt == 1 and task().index == 0:
        os.rename("rows", "elsewhere")
        os.symlink("/etc", "rows")
""")


def copied(engine: Engine, **keys: Any) -> Submitted:
    for file in range(FILES):
        engine.put(f"data/{file}.txt", "".join(f"{file} {line}\n" for line in range(LINES)))
    gates = engine.folder / "gates"
    gates.mkdir()
    (gates / "worker:0").write_text("")
    role = {"env": {"GATES": str(gates)}, "restart": {"scope": "task", "limit": 3}, **keys}
    return engine.submit(
        workers(COPY, role.pop("replicas", 2), **role), inputs={"train": {"url": engine.place("data"), "as": "shards"}},
        outputs={"rows": {"url": engine.place("rows"), "layout": "flat"}},
    )  # fmt: skip


def check(engine: Engine, job: Submitted) -> None:
    """Each line is in the output once, and the audit says so."""
    found = engine.files("rows")
    found.pop("_SUCCESS")
    rows = b"".join(found.values()).decode().splitlines()
    assert sorted(rows) == sorted(f"{file} {line}" for file in range(FILES) for line in range(LINES))
    audit = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audit["ok"]
    assert audit["complete"]
    assert not audit["inputs"][0]["dropped"]
    assert audit["inputs"][0]["given_back"] >= 4


@pytest.mark.needs("local-data")
def test_what_a_killed_program_had_not_committed_is_done_again(engine: Engine) -> None:
    job = copied(engine)
    job.until_line("done 5")
    (engine.folder / "gates" / "worker:0").unlink()
    os.kill(engine.process(job), signal.SIGKILL)
    job.succeeded()
    check(engine, job)


@pytest.mark.needs("local-data")
def test_what_an_upload_lost_is_done_again(engine: Engine) -> None:
    job = copied(engine)
    (engine.folder / "gates" / "lose").write_text("")
    (engine.folder / "gates" / "worker:0").unlink()
    job.succeeded()
    assert [event["reason"] for event in job.told("attempt-ended")] == ["upload-failed"]
    check(engine, job)


@pytest.mark.needs("local-data")
def test_what_a_member_that_leaves_had_not_committed_is_done_again(engine: Engine) -> None:
    job = copied(engine, replicas={"min": 1, "max": 2})
    job.until_line("done 5")
    gates = engine.folder / "gates"
    (gates / "worker:1").write_text("")
    job.until_line("done 5", "worker:1")
    (gates / "worker:0").unlink()
    assert engine.tm("scale", job.id, "worker=1").returncode == 0
    job.succeeded()
    check(engine, job)
