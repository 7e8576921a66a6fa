"""What is given wrongly is refused before anything starts, and what is given twice is done once."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conformance.engines import Engine, workers

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.machine.events import VERSION

GOOD = "name: good\nroles:\n  worker: {command: 'echo fine', resources: {cores: 0.05, memory: 64MiB}}\n"


def refused(engine: Engine, text: str, *arguments: str) -> str:
    """What `tm run` says of a job file; nothing may have begun."""
    engine.write("job.yaml", text)
    told = engine.tm("run", "job.yaml", "--engine", engine.name, *arguments)
    assert told.returncode == 2, (told.returncode, told.stdout, told.stderr)
    assert "Traceback" not in told.stderr
    assert told.stderr.startswith("error: ")
    assert not list((Path(os.environ["TRAINMASTER_STATE_DIR"])).glob("jobs/*"))
    return told.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rolse: {}\n" + GOOD, ["rolse", "roles", "line 1"]),
        (GOOD + "timeouts: {stal: 3s}\n", ["stal", "did you mean stall", "line 4"]),
        (GOOD.replace("64MiB", "64"), ["64", "needs a unit", "line 3"]),
        (GOOD.replace("0.05", "many"), ["roles.worker.resources.cores", "line 3"]),
        (GOOD.replace("command: 'echo fine', ", ""), ["roles.worker.command"]),
        (GOOD + "inputs:\n  train: {url: nowhere/*.csv}\n", ["nowhere/*.csv"]),
        ("roles: [\n", ["job.yaml"]),
        ("", ["roles"]),
        (GOOD + "roles:\n  worker: {command: x}\n", ["roles", "twice"]),
        (GOOD + "framework: pytroch\n", ["pytroch", "pytorch"]),
    ],
)
def test_a_wrong_job_file_is_refused(engine: Engine, text: str, words: list[str]) -> None:
    told = refused(engine, text)
    assert all(word in told for word in words), told


def test_a_right_one_runs(engine: Engine) -> None:
    engine.write("job.yaml", GOOD)
    told = engine.tm("run", "job.yaml", "--engine", engine.name)
    assert told.returncode == 0, told.stderr
    assert "fine\n" in told.stdout


def test_exit_statuses(engine: Engine) -> None:
    engine.write("job.yaml", GOOD.replace("echo fine", "exit 5").replace("resources", "restart: never, resources"))
    told = engine.tm("run", "job.yaml", "--engine", engine.name)
    assert told.returncode == 1
    assert "exited with status 5" in told.stdout + told.stderr
    assert engine.tm("status", "no-such-job").returncode == 2
    assert engine.tm("no-such-command").returncode == 2


def test_an_output_that_cannot_be_written_is_refused(engine: Engine) -> None:
    engine.write("file", "")
    for url in ("file/below", "/proc/below"):  # root may write in the second, and nothing can be made there
        with pytest.raises(BadInput, match="cannot be written"):
            engine.submit(workers("true"), outputs={"m": {"url": url}})


def test_one_key_is_one_job(engine: Engine) -> None:
    job = engine.submit(workers(f"echo once >> {engine.folder}/count"), key="nightly 2026/1")
    again = engine.submit(workers(f"echo once >> {engine.folder}/count"), key="nightly 2026/1")
    assert again.id == job.id
    job.succeeded()
    assert engine.submit(workers(f"echo once >> {engine.folder}/count"), key="nightly 2026/1").id == job.id
    assert (engine.folder / "count").read_text() == "once\n"


def test_one_key_at_the_same_instant_is_one_job(engine: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        jobs = list(
            pool.map(lambda _: engine.submit(workers(f"echo once >> {engine.folder}/count"), key="k"), range(4))
        )
    assert len({job.id for job in jobs}) == 1
    jobs[0].succeeded()
    assert (engine.folder / "count").read_text() == "once\n"


def test_two_jobs_of_one_name_at_once(engine: Engine) -> None:
    with ThreadPoolExecutor(2) as pool:
        jobs = list(pool.map(lambda n: engine.submit(workers(f"echo {n} $TRAINMASTER_JOB"), name="same"), (1, 2)))
    assert jobs[0].id != jobs[1].id
    for number, job in enumerate(jobs, 1):
        job.succeeded()
        assert job.lines() == [f"{number} {job.id}"]
    newest = engine.tm("status", "same")
    assert newest.returncode == 0
    assert newest.stdout.split()[0] in (job.id for job in jobs)
    ambiguous = engine.tm("status", "sam")
    assert ambiguous.returncode == 2
    assert "2 jobs" in ambiguous.stderr


def archive(path: Path, *members: tuple[str, str]) -> None:
    """A tar of (name, content) where content "->x" makes a link to x."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content.startswith("->"):
                member.type, member.linkname = tarfile.SYMTYPE, content[2:]
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content.encode()))


@pytest.mark.parametrize(
    "members",
    [
        [("../escaped", "bad")],
        [("/tmp/trainmaster-escaped", "bad")],
        [("link", "->../.."), ("link/escaped", "bad")],
        [("link", "->/etc/passwd")],
        [("a/../../escaped", "bad")],
    ],
)
def test_an_archive_cannot_leave_its_directory(engine: Engine, members: list[tuple[str, str]]) -> None:
    archive(engine.folder / "bad.tar", *members)
    try:
        job = engine.submit(workers("echo ran", restart="never", workdir="copy"), archives=["bad.tar#here"])
    except TrainmasterError:  # seen at submit already
        pass
    else:
        assert "bad.tar" in job.failed("staging-failed")["words"]
        assert job.lines() == []
    for name in ("escaped", "trainmaster-escaped"):
        assert not list(engine.folder.parent.rglob(name))
    assert not Path("/tmp/trainmaster-escaped").exists()


def test_an_archive_is_unpacked_in_the_working_directory(engine: Engine) -> None:
    archive(engine.folder / "good.tar", ("bin/tool", "content\n"), ("link", "->bin/tool"))
    job = engine.submit(workers("cat here/bin/tool here/link", workdir="copy"), archives=["good.tar#here"])
    job.succeeded()
    assert job.lines() == ["content", "content"]


@pytest.mark.brief
def test_each_task_has_a_copy_of_the_files(engine: Engine) -> None:
    engine.write("train.sh", "echo trained by $TRAINMASTER_INDEX >> state; cat state; echo ${0##*/}\n").chmod(0o755)
    engine.write(".gitignore", "big.bin\n")
    engine.write("big.bin", "x" * 100)
    job = engine.submit(workers("sh ./train.sh; ls -A", 2, workdir="copy"))
    job.succeeded()
    assert job.lines("worker:1")[:2] == ["trained by 1", "train.sh"]
    assert "big.bin" not in job.lines("worker:1")
    assert not (engine.folder / "state").exists()
    assert stat.S_IMODE((engine.folder / "train.sh").stat().st_mode) == 0o755


@pytest.mark.needs("local-data")
def test_a_log_of_another_version_is_one_clear_error(engine: Engine) -> None:
    job = engine.submit(workers("true"))
    job.succeeded()
    (segment,) = (job.storage / "events").glob("*.jsonl")
    other = segment.with_suffix(".other")  # the master may be about to close the one that is there
    other.write_text(segment.read_text().replace(f'{{"v":"{VERSION}"', '{"v":"7.2"'))
    other.replace(segment)
    for command in ("status", "events", "wait", "audit"):
        told = engine.tm(command, job.id)
        assert told.returncode in (2, 3), (command, told.stdout, told.stderr)
        assert "7.2" in told.stderr, (command, told.stderr)
        assert "1.x" in told.stderr
        assert told.stderr.count("error:") == 1
        assert "Traceback" not in told.stderr
    assert engine.tm("list").returncode == 0  # other jobs are not hidden by it
