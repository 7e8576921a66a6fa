"""A shard counts, and what was made of it is in a committed output: whatever ends an attempt between the two."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from conformance.engines import Engine, Submitted, python, workers

FILES, LINES = 40, 50  # each file is a shard
# Each line of a shard becomes a row of a file. A worker waits in its fifth shard while its gate, a file, is there: on a cluster one may
# begin long after the other, and finds some left.
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

# The same with a file for each five shards, committed once it is whole. Where it is asked to stop, it ends behind the shard that it is in.
IN_PARTS = python("""
    import os, signal, time
    from trainmaster import runtime
    from trainmaster.runtime import task
    gates, stopped = os.environ["GATES"], []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    name = task().key.replace(":", "-")
    os.makedirs("rows", exist_ok=True)
    for number, shard in enumerate(runtime.shards("train", batch=1).shards(), 1):
        with open(f"rows/{(number - 1) // 5}.txt", "a") as rows:
            rows.writelines(line + "\\n" for line in shard.records())
        if number % 5 == 0:
            runtime.commit()
        print("done", number, flush=True)
        while os.path.exists(f"{gates}/{task().key}") and number >= 8 and not stopped:
            time.sleep(0.05)
        if stopped:
            shard.done()
            break
        time.sleep(0.01)
    print("ended at", number, flush=True)
""")

# Commits each shard, and is killed once all are: its next attempt finds nothing to do, and writes nothing.
TO_THE_END = python("""
    import os
    from trainmaster import runtime
    from trainmaster.runtime import task
    for shard in runtime.shards("train", batch=1).shards():
        os.makedirs("rows", exist_ok=True)
        with open(f"rows/{shard.number}.txt", "w") as rows:
            rows.writelines(line + "\\n" for line in shard.records())
        runtime.commit()
    if task().attempt == 1:
        os.kill(os.getpid(), 9)
""")

# Fails in each attempt, once it has committed one more shard.
ONE_BY_ONE = python("""
    import os
    from trainmaster import runtime
    for shard in runtime.shards("train", batch=1).shards():
        os.makedirs("rows", exist_ok=True)
        with open(f"rows/{shard.number}.txt", "w") as rows:
            rows.writelines(line + "\\n" for line in shard.records())
        runtime.commit()
        raise SystemExit(1)
""")


def copied(engine: Engine, program: Any = COPY, **keys: Any) -> Submitted:
    for file in range(FILES):
        engine.put(f"data/{file}.txt", "".join(f"{file} {line}\n" for line in range(LINES)))
    gates = engine.folder / "gates"
    gates.mkdir()
    for index in range(2):
        (gates / f"worker:{index}").write_text("")
    role = {"env": {"GATES": str(gates)}, "restart": {"scope": "task", "limit": 3}, **keys}
    return engine.submit(
        workers(program, role.pop("replicas", 2), **role), inputs={"train": {"url": engine.place("data"), "as": "shards"}},
        outputs={"rows": {"url": engine.place("rows"), "layout": "flat"}},
    )  # fmt: skip


def release(engine: Engine, *indexes: int) -> None:
    """Let workers go on that wait at their gates."""
    for index in indexes:
        (engine.folder / "gates" / f"worker:{index}").unlink()


def check(engine: Engine, job: Submitted) -> int:
    """Check that each line is in the output once, and that the audit says so. Return how many shards were given back."""
    found = engine.files("rows")
    found.pop("_SUCCESS")
    rows = b"".join(found.values()).decode().splitlines()
    assert sorted(rows) == sorted(f"{file} {line}" for file in range(FILES) for line in range(LINES))
    audit = json.loads(engine.tm("audit", job.id, "--json").stdout)
    assert audit["ok"]
    assert audit["complete"]
    assert not audit["inputs"][0]["dropped"]
    given_back: int = audit["inputs"][0]["given_back"]
    return given_back


def test_what_a_killed_program_had_not_committed_is_done_again(engine: Engine) -> None:
    job = copied(engine)
    job.until_line("done 5")
    release(engine, 0, 1)
    os.kill(engine.process(job), signal.SIGKILL)
    job.succeeded()
    assert check(engine, job) >= 4


def test_what_an_upload_lost_is_done_again(engine: Engine) -> None:
    job = copied(engine)
    (engine.folder / "gates" / "lose").write_text("")
    job.until_line("done 5")
    release(engine, 0, 1)
    job.succeeded()
    assert [event["reason"] for event in job.told("attempt-ended")] == ["upload-failed"]
    check(engine, job)


def test_what_a_member_that_leaves_had_not_committed_is_done_again(engine: Engine) -> None:
    job = copied(engine, replicas={"min": 1, "max": 2})
    job.until_line("done 5")
    job.until_line("done 5", "worker:1")
    release(engine, 0)
    assert engine.tm("scale", job.id, "worker=1").returncode == 0
    job.succeeded()
    assert check(engine, job) >= 4


def test_what_a_killed_program_had_committed_is_kept(engine: Engine) -> None:
    job = copied(engine, IN_PARTS)
    job.until_line("done 8")
    os.kill(engine.process(job), signal.SIGKILL)
    release(engine, 0, 1)
    job.succeeded()
    assert 1 <= check(engine, job) <= 3
    parts = [(event["attempt"], event["part"]) for event in job.told("part-committed") if event["task"] == "worker:0"]
    assert parts[0] == (1, 1)


def test_what_a_member_that_leaves_between_two_shards_had_made_is_kept(engine: Engine) -> None:
    job = copied(engine, IN_PARTS, replicas={"min": 1, "max": 2})
    job.until_line("done 8", "worker:1")
    release(engine, 0)
    assert engine.tm("scale", job.id, "worker=1").returncode == 0
    job.succeeded()
    assert check(engine, job) == 0
    kept = [event["kept"] for event in job.told("part-committed") if event["task"] == "worker:1"]
    assert len(kept) == 2


def test_a_task_whose_parts_hold_all_need_write_no_more(engine: Engine) -> None:
    job = copied(engine, TO_THE_END, replicas=1)
    job.succeeded()
    assert check(engine, job) == 0
    assert job.task("worker:0")["attempt"] == 2


def test_a_program_that_commits_a_part_before_each_failure_is_not_restarted_for_ever(engine: Engine) -> None:
    job = copied(engine, ONE_BY_ONE, replicas=1, restart={"scope": "task", "limit": 1, "total": 3})
    job.failed("restarts-exhausted")
    assert job.task("worker:0")["attempt"] == 4
    found = engine.files("rows")
    assert len(found) == 4
    assert all(name.startswith(f"_partial/{job.id}/") for name in found)


def test_a_shard_that_is_done_too_late_is_refused(engine: Engine) -> None:
    program = python("""
        from trainmaster import runtime
        held = list(runtime.shards("train", batch=1, wait=False).shards(manual=True))
        held[0].done()
    """)
    job = copied(engine, program, replicas=1, restart={"scope": "task", "limit": 0})
    job.failed("exit")
    assert any("was given back when the loop over the shards ended" in line for line in job.lines("worker:0"))


def test_a_program_that_waits_for_a_shard_which_it_holds_is_told_so(engine: Engine) -> None:
    program = python("""
        from trainmaster import runtime
        held = []
        for shard in runtime.shards("train").shards(manual=True):
            held.append(shard)
            if len(held) == 3:  # of 40, so one is left
                while held:
                    held.pop().done()
    """)
    job = copied(engine, program, replicas=1, restart={"scope": "task", "limit": 0})
    job.failed("exit")
    assert any("shards('train') waits for <Shard 39: " in line for line in job.lines("worker:0"))
    assert not job.told("shard-failed")
