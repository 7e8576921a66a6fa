"""Programs as they are: what they print, and what they leave behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from pathlib import Path

import pytest
from conformance.engines import Engine, python, role, workers
from waiting import until

from trainmaster.client.jobs.past import Past
from trainmaster.core.spec.threads import VARIABLES

MIB = 1 << 20


def content(job, task: str = "worker:0", attempt: int = 1) -> bytes:
    """What is stored of an attempt's output; a large one stays in pieces where files do not grow."""
    whole = job.stored(f"logs/{task.replace(':', '-')}/{attempt}.log")
    return whole or "".join(piece["data"] for piece in Past(job.id).log(task, attempt)).encode()


@pytest.fixture
def mine() -> str:
    """Seconds to sleep, by which this machine knows who does, whatever number he has in a container."""
    return f"1000.{uuid.uuid4().int % 10**9:09}"


def sleeping(mine: str) -> list[str]:
    """Those who do."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mine in path.read_text(errors="replace").split("\0"):
                found.append(path.parent.name)
    return found


@pytest.mark.brief
def test_both_streams_are_kept_in_order(engine: Engine) -> None:
    program = "for i in $(seq 1 200); do echo out $i; echo err $i >&2; done"
    job = engine.submit(workers(program))
    job.succeeded()
    lines = job.lines()
    assert [line for line in lines if line.startswith("out")] == [f"out {i}" for i in range(1, 201)]
    assert [line for line in lines if line.startswith("err")] == [f"err {i}" for i in range(1, 201)]


def test_python_is_not_buffered(engine: Engine) -> None:
    from conformance.engines import sys

    program = [sys.executable, "-c", "print('at once'); import time; time.sleep(1000)"]
    job = engine.submit(workers(program))
    job.until_line("at once")
    job.run.kill()
    assert job.end()["state"] == "killed"


def test_programs_have_the_threads_of_their_share(engine: Engine) -> None:
    program = "echo " + " ".join(f"${{{name}:--}}" for name in VARIABLES)
    own = {"OMP_NUM_THREADS": "7"}
    roles = {
        "two": role(program, processes=2, threads="cores"),
        "own": role(program, env=own),
        "named": role(program, threads=5),
    }
    job = engine.submit(roles)
    job.succeeded()
    assert sorted(job.lines("two:0")) == ["two:0.0 1 1 1 1 1", "two:0.1 1 1 1 1 1"]
    assert job.lines("own:0") == ["7 - - 1 1"]
    assert job.lines("named:0") == ["5 5 5 5 5"]


@pytest.mark.needs("local-master")
def test_the_jobs_of_this_machine_share_its_cores(engine: Engine) -> None:
    ours = os.sched_getaffinity(0)
    beside = engine.submit(
        workers(f"touch begun; until [ -e {engine.folder}/over ]; do sleep 0.05; done", replicas=len(ours))
    )
    until(lambda: (engine.folder / "begun").exists())
    job = engine.submit(workers("echo $OMP_NUM_THREADS"))
    job.succeeded()
    engine.write("over", "")
    beside.succeeded()
    assert job.lines() == ["1"]


def test_output_without_a_line_break(engine: Engine) -> None:
    job = engine.submit(workers("printf 'no newline'"))
    job.succeeded()
    assert content(job) == b"no newline"
    assert job.lines() == ["no newline"]


def test_stdout_may_be_closed(engine: Engine) -> None:
    job = engine.submit(workers(f"exec >&- 2>&-; sleep 0.2; test ! -t 0 && touch {engine.folder}/was-here"))
    job.succeeded()
    assert (engine.folder / "was-here").exists()


def test_a_very_long_line(engine: Engine) -> None:
    job = engine.submit(workers(python("print('x' * (5 << 20)); print('end')")))
    job.succeeded()
    assert content(job) == b"x" * (5 * MIB) + b"\nend\n"
    assert engine.tm("logs", job.id, "worker:0").stdout == "x" * (5 * MIB) + "\nend\n"


def test_output_that_is_no_text(engine: Engine) -> None:
    program = python("import os; os.write(1, bytes(range(256)) * 64 + b'\\n'); os.write(1, 'é€😀'.encode() * 50_000)")
    job = engine.submit(workers(program))
    job.succeeded()
    printed = bytes(range(256)) * 64 + b"\n" + "é€😀".encode() * 50_000
    assert content(job) == printed
    assert engine.tm("logs", job.id, "worker:0", text=False).stdout == printed


def printed(engine: Engine, size: int, first: int, limit: int) -> None:
    """A program that prints much more than is kept: it is never held up, the beginning and the newest are kept, the gap is marked."""
    line = b"%015d\n"
    program = python(f"""
        import os
        for block in range({size} // (1 << 20)):
            data = b"".join({line!r} % (block * 65536 + i) for i in range(65536))
            while data:
                data = data[os.write(1, data):]
    """)
    logs = {"limit": f"{limit // MIB}MiB", "first": f"{first // MIB}MiB"}
    job = engine.submit(workers(program), logs=logs)
    job.succeeded(300)
    kept = content(job)
    last = size // 16 - 1
    assert kept.startswith(line % 0 + line % 1)
    assert kept.endswith(line % (last - 1) + line % last)
    assert first // 2 < len(kept) <= limit + MIB
    numbers = [int(text) for text in kept.split(b"\n") if text.isdigit() and len(text) == 15]
    jumps = [(a, b) for a, b in itertools.pairwise(numbers) if b != a + 1]
    assert len(jumps) == 1, jumps[:5]  # one gap, and nothing lost beside it
    (a, b) = jumps[0]
    middle = kept[kept.index(line % a) + 16 : kept.index(line % b)]
    assert middle, "the gap is marked"


@pytest.mark.full
def test_a_program_that_prints_200_MB(engine: Engine) -> None:
    printed(engine, 200 * MIB, 16 * MIB, 64 * MIB)


@pytest.mark.soak
def test_a_program_that_prints_1_GB(engine: Engine) -> None:
    printed(engine, 1024 * MIB, 16 * MIB, 64 * MIB)


def test_children_left_behind_are_ended(engine: Engine, mine: str) -> None:
    job = engine.submit(workers(f"sleep {mine} & echo $!; echo done"))
    job.succeeded()
    until(lambda: not sleeping(mine), what="the child's end")


def test_a_daemon_does_not_slip_away(engine: Engine, mine: str) -> None:
    """Forked twice, in a session of its own, with its environment and descriptors gone."""
    program = python(f"""
        import os, sys, time
        ready, tell = os.pipe()
        if not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)
            os.write(tell, b"%d" % os.getpid())
            os.closerange(0, 1024)
            os.chdir("/")
            os.execve("/bin/sleep", ["sleep", "{mine}"], {{}})
        os.wait()
        print(os.read(ready, 20).decode())
    """)
    job = engine.submit(workers(program))
    job.succeeded()
    assert job.lines()[0].isdigit()
    until(lambda: not sleeping(mine), what="the daemon's end")


def test_children_are_ended_with_a_killed_program(engine: Engine, mine: str) -> None:
    job = engine.submit(workers(f"sleep {mine} & echo ready; wait", restart="never"))
    job.until_line("ready")
    until(lambda: sleeping(mine), what="the child")
    job.run.kill()
    assert job.end()["state"] == "killed"
    until(lambda: not sleeping(mine), what="the child's end")


def test_many_children(engine: Engine, mine: str) -> None:
    job = engine.submit(
        workers(f"for i in $(seq 30); do (trap '' TERM; sleep {mine}) & echo $!; done; sleep 0.5; echo done")
    )
    job.succeeded()
    assert len([line for line in job.lines() if line.isdigit()]) == 30
    until(lambda: not sleeping(mine), what="the children's end")


def test_a_name_with_odd_characters(engine: Engine) -> None:
    job = engine.submit(
        {"my.role-1_x": {"command": "echo $TRAINMASTER_ROLE; echo $TRAINMASTER_JOB"}}, name="My-job.1_x"
    )
    job.succeeded()
    assert job.lines("my.role-1_x:0") == ["my.role-1_x", job.id]
    assert set(job.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@pytest.mark.needs("submitters-place")
def test_directories_with_odd_names(engine: Engine) -> None:
    engine.folder = engine.folder / "a b'\"$(x)\né;{}"
    engine.folder.mkdir()
    engine.write("in put.txt", "content\n")
    job = engine.submit(workers("pwd; cat 'in put.txt'"))
    job.succeeded()
    assert "\n".join(job.lines()) == f"{os.path.realpath(engine.folder)}\ncontent"
