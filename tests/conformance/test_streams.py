"""Records on a program's standard input and from its standard output: what a user finds in the files, whatever becomes of the program."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
from pathlib import Path

import pytest
from conformance.engines import Engine, python, workers

from trainmaster.core.errors import BadInput

ECHO = "cat"


def printed(engine: Engine, name: str = "result") -> dict[str, list[str]]:
    """The lines of a stream output, by task."""
    found: dict[str, list[str]] = {}
    for path, content in sorted(engine.files(name).items()):
        if "/part-" in path:
            found.setdefault(path.partition("/")[0], []).extend(content.decode().splitlines())
    return found


def given(engine: Engine, files: int = 4, lines: int = 1000) -> list[str]:
    """Input files below `in/`; their lines."""
    found = [[f"{file}-{line:06}" for line in range(lines)] for file in range(files)]
    for file, content in enumerate(found):
        engine.put(f"in/{file}.txt", "\n".join(content) + "\n")
    return [line for content in found for line in content]


def test_records_go_through_programs_once_each(engine: Engine) -> None:
    lines = given(engine)
    job = engine.submit(
        workers("tr 0-9 a-j; echo for people >&2", 3),
        inputs={"train": {"url": engine.place("in"), "as": "stream"}},
        outputs={"result": {"url": engine.place("result"), "as": "stream"}},
    )
    job.succeeded()
    found = printed(engine)
    assert sorted(found) == ["worker-0", "worker-1", "worker-2"]
    plain = str.maketrans("abcdefghij", "0123456789")
    assert sorted(line.translate(plain) for part in found.values() for line in part) == lines
    assert all(len(part) > 500 for part in found.values()), "each has a part"
    assert job.lines() == ["for people"], "the log is what was printed to stderr"
    told = json.loads(engine.files("result")["_SUCCESS"])
    assert told["files"] == 3


def test_epochs_and_a_shuffle_that_can_be_had_again(engine: Engine) -> None:
    lines = given(engine)
    orders = []
    for name in ("a", "b", "c"):
        stream = {
            "url": engine.place("in"),
            "as": "stream",
            "epochs": 2,
            "shuffle": True,
            "seed": 3 if name == "c" else 7,
        }
        engine.submit(
            workers(ECHO), inputs={"train": stream}, outputs={name: {"url": engine.place(name), "as": "stream"}}
        ).succeeded()
        orders.append(printed(engine, name)["worker-0"])
    first, again, other = orders
    assert sorted(first) == sorted(lines * 2)
    assert sorted(first[:4000]) == lines, "one epoch after the other"
    assert first == again
    assert first != other
    assert first[:4000] not in (lines, first[4000:])


def test_every_format_comes_as_lines(engine: Engine) -> None:
    engine.put("in/a.csv", "x,y\n1,2\n3,4\n")
    engine.put("in/b.gz", gzip.compress(b"packed\n"))
    engine.put("in/c.jsonl", '{"x": 1}\n\n{"x": 2}')
    for file, name, wanted in (
        ("a.csv", "csv", ["1,2", "3,4"]),
        ("b.gz", "auto", ["packed"]),
        ("c.jsonl", "jsonl", ['{"x": 1}', '{"x": 2}']),
    ):
        stream = {"url": engine.place(f"in/{file}"), "as": "stream", "format": name}
        job = engine.submit(workers(ECHO), inputs={"train": stream})
        job.succeeded()
        assert [json.loads(line) if name != "csv" and "{" in line else line for line in job.lines()] == [
            json.loads(line) if "{" in line else line for line in wanted
        ]


@pytest.mark.needs("parquet-streams")
def test_parquet_comes_as_lines(engine: Engine) -> None:
    import pyarrow
    import pyarrow.parquet

    made = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"x": [5, 6]}), made)
    engine.put("in/d.parquet", made.getvalue())
    job = engine.submit(workers(ECHO), inputs={"train": {"url": engine.place("in/d.parquet"), "as": "stream"}})
    job.succeeded()
    assert [json.loads(line) for line in job.lines()] == [{"x": 5}, {"x": 6}]


def test_a_program_that_has_had_enough_has_not_failed(engine: Engine) -> None:
    given(engine, lines=200_000)
    for command in ("head -n 2", "true", "exec <&-; sleep 0.3; echo closed"):
        job = engine.submit(
            workers(command), inputs={"train": {"url": engine.place("in"), "as": "stream", "epochs": 50}}
        )
        job.succeeded()
        assert job.task("worker:0")["attempt"] == 1
    assert job.lines() == ["closed"]


def test_a_program_is_killed_while_it_reads_nothing(engine: Engine) -> None:
    given(engine, lines=200_000)
    job = engine.submit(
        workers("echo ready; sleep 1000"), inputs={"train": {"url": engine.place("in"), "as": "stream"}}
    )
    job.until_line("ready")
    job.run.kill()
    assert job.end()["state"] == "killed"


def test_a_restart_begins_the_stream_again(engine: Engine) -> None:
    lines = given(engine, files=1)
    program = python("""
        import os, sys
        if os.environ["TRAINMASTER_ATTEMPT"] == "1":
            for _ in range(10):
                print(sys.stdin.readline(), end="", flush=True)
            os.kill(os.getpid(), 9)
        sys.stdout.writelines(sys.stdin)
    """)
    job = engine.submit(
        workers(program),
        inputs={"train": {"url": engine.place("in"), "as": "stream"}},
        outputs={"result": {"url": engine.place("result"), "as": "stream"}},
    )
    job.succeeded()
    assert job.task("worker:0")["attempt"] == 2
    assert printed(engine) == {"worker-0": lines}, "nothing of the first attempt is in the output"


def test_an_input_that_cannot_be_read_is_no_end_of_the_records(engine: Engine) -> None:
    engine.put("in/a.gz", gzip.compress(os.urandom(1 << 20))[:-5000])
    job = engine.submit(
        workers("cat >/dev/null", restart="never"), inputs={"train": {"url": engine.place("in"), "as": "stream"}}
    )
    told = job.failed("staging-failed")
    assert "a file of the input cannot be read" in told["words"]


def test_no_newline_at_the_end_and_nothing_printed(engine: Engine) -> None:
    job = engine.submit(
        {**workers("printf 'a\nb'"), "silent": {**workers("true")["worker"]}},
        outputs={"result": {"url": engine.place("result"), "as": "stream"}},
    )
    job.succeeded()
    assert engine.files("result")["worker-0/part-00000"] == b"a\nb"
    assert engine.files("result")["silent-0/part-00000"] == b""


def test_records_are_not_lost_behind_a_child(engine: Engine) -> None:
    """A child that is left behind holds stdout open; the program's records are whole all the same."""
    job = engine.submit(
        workers("(trap '' TERM; sleep 1000) & seq 100000"),
        outputs={"result": {"url": engine.place("result"), "as": "stream"}},
    )
    job.succeeded()
    assert printed(engine)["worker-0"] == [str(i) for i in range(1, 100_001)]


@pytest.mark.needs("local-data")
@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_copies_of_a_program_cannot_share_a_stream(engine: Engine, kind: str) -> None:
    given(engine)
    thing = {kind: {"x": {"url": engine.place("in") if kind == "inputs" else "out", "as": "stream"}}}
    with pytest.raises(BadInput, match="runs 2 processes"):
        engine.submit(workers(ECHO, processes=2), **thing)
    two = {kind: {name: {"url": f"in/{i}.txt", "as": "stream"} for i, name in enumerate("ab")}}
    with pytest.raises(BadInput, match="has two streams"):
        engine.submit(workers(ECHO), **two)


@pytest.mark.needs("submitters-place")
def test_the_signals_of_a_program_with_a_stream(engine: Engine) -> None:
    """SIGPIPE ends a program that prints into a closed pipe, as it does for its user."""
    given(engine)
    job = engine.submit(
        workers("cat | head -n 1; grep SigIgn /proc/self/status"),
        inputs={"t": {"url": engine.place("in"), "as": "stream"}},
    )
    job.succeeded()
    ignored = int(job.lines()[-1].split()[1], 16)
    assert not ignored & 1 << signal.SIGPIPE - 1


@pytest.mark.full
@pytest.mark.needs("local-data")
def test_the_example(engine: Engine) -> None:
    example = Path(__file__).parents[2] / "examples"
    import shutil
    import sys

    shutil.copytree(example / "digits-stream", engine.folder / "digits-stream", ignore=shutil.ignore_patterns("out"))
    (engine.folder / "digits").mkdir()
    shutil.copy(example / "digits/data.py", engine.folder / "digits")
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    import subprocess

    subprocess.run([sys.executable, "digits/data.py"], cwd=engine.folder, check=True)
    done = engine.tm("run", "digits-stream/job.yaml", env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [
        json.loads(path.read_text()) for path in (engine.folder / "digits-stream").glob("out/model/*/result.json")
    ]
    assert sum(result["records"] for result in results) == 15 * 1437
    assert all(result["accuracy"] > 0.9 for result in results)
