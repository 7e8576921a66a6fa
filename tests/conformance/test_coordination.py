"""Programs wait for each other: barriers, and locks that the death of their holder frees."""

from __future__ import annotations

import itertools

import pytest
from conformance.engines import Engine, python, role

MEET = python("""
    import os, signal, time
    from trainmaster import runtime
    me = runtime.task()
    if me.attempt == 1:
        print("came", time.time(), flush=True)
        runtime.barrier("begin")
        print("went", time.time(), flush=True)
    if me.index == 0 and me.attempt == 1:
        with runtime.lock("one"):
            print("held", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    with runtime.lock("one", timeout=60):
        print("in", time.time(), flush=True)
        time.sleep(0.2)
        print("out", time.time(), flush=True)
""")


def test_programs_meet_at_a_barrier_and_take_turns_at_a_lock_that_its_holders_death_frees(engine: Engine) -> None:
    job = engine.submit({"worker": role(MEET, 3, restart={"scope": "task", "limit": 3})})
    status = job.succeeded()
    assert status["restarts"] == 1
    lines = [job.lines("worker:0", 1), *(job.lines(f"worker:{index}") for index in range(3))]
    assert "held" in lines[0]
    times = [dict(line.split() for line in printed if " " in line) for printed in lines]
    came, went = ([float(seen[word]) for seen in times if word in seen] for word in ("came", "went"))
    assert (len(came), len(went)) == (3, 3)
    assert max(came) <= min(went)
    turns = sorted((float(seen["in"]), float(seen["out"])) for seen in times if "in" in seen)
    assert len(turns) == 3
    assert all(out <= into for (_, out), (into, _) in itertools.pairwise(turns)), turns


LATE = """
    import os, time
    from trainmaster import runtime
    from trainmaster.runtime import elastic
    while runtime.task().index and not os.path.exists(GO):
        time.sleep(0.05)
    elastic.Rendezvous().join()
    while runtime.task().index and not os.path.exists(GO + "2"):
        time.sleep(0.05)
    runtime.barrier("end")
"""


@pytest.mark.needs("local-master")
def test_status_says_for_whom_programs_wait(engine: Engine) -> None:
    program = python(LATE.replace("GO", repr(f"{engine.folder}/go")))
    job = engine.submit({"worker": role(program, {"min": 2, "max": 2}, restart={"scope": "task"})})
    for place, flag in (("for its peers: 1 of at least", "go"), ("at the barrier end: 1 of", "go2")):
        text = f"waits {place} 2 are there, worker:1 has not come"
        job.until_status(text, lambda status, text=text: status["tasks"][0].get("waits") == text)
        assert text in engine.tm("status", job.id).stdout
        engine.write(flag, "")
    job.succeeded()
