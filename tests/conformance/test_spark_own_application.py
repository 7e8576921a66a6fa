"""Jobs with a Spark application of their own: `tm run --engine spark` starts its driver, which ends with the job, or with whatever dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spark
from conformance.engines import TM, Engine, Submitted, in_containers, python, workers
from conformance.kubernetes_engine import masters_here
from waiting import until

from trainmaster.core.errors import BadInput

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.full]
PAGE = Path(__file__).parents[2] / "docs/clusters/spark.md"
LONG = 600  # s; a JVM and a context take half a minute each on a machine with much to do
CONF = {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
WAITS = python("""
    import time
    print("ready", flush=True)
    time.sleep(600)
""")


class OwnSpark(Engine):
    """Applications of one job each, on this machine: driver, executor and tasks are below the job's directory."""

    name = "spark"

    def own(self) -> dict[str, Any]:
        return {"engines": {"spark": {"master": "local[2]", "conf": CONF}}}

    def command_lines(self, made: Submitted) -> list[str]:
        return list(in_containers(f"/{made.id}/").values())

    def part(self, made: Submitted, program: str) -> int:
        """Return a process of the driver: `java`, its JVM, or `python`, whose script the JVM's command line names too."""
        lines = in_containers(f"/{made.id}/driver").items()
        return next(pid for pid, line in lines if re.match(rf"\S*/{program}\S* .*script\.py", line))

    def gone(self, made: Submitted) -> None:
        until(
            lambda: not self.command_lines(made) and not masters_here(made.id),
            LONG,
            what=lambda: self.command_lines(made),
        )
        assert not (made.storage / "driver").exists()


@pytest.fixture(params=spark.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnSpark]:
    monkeypatch.setenv("SPARK_HOME", str(spark.home_of(spark.VERSIONS[0]).folder))
    folder = tmp_path / "place"
    folder.mkdir()
    engine = OwnSpark(folder)
    yield engine
    until(lambda: not in_containers("/driver"), LONG, what=lambda: in_containers("/driver"))


def test_a_job_brings_its_inputs_and_takes_its_outputs(
    own: OwnSpark, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark.home_of(version).folder))
    own.write("in/a.txt", "one")
    own.write("in/b.txt", "two")
    job = {
        "name": "t", **own.own(), "inputs": {"data": {"url": "in", "as": "download"}}, "outputs": {"model": {"url": "out"}},
        "roles": workers("mkdir -p model && cp data/* model/", 2),
    }  # fmt: skip
    own.write("job.yaml", json.dumps(job))
    done = own.tm("run", "job.yaml", "--engine", "spark", limit=LONG)
    assert done.returncode == 0, done.stderr
    files = {name: text for name, text in own.files("out").items() if "worker" in name}
    assert sorted(files.values()) == [b"one", b"two"]
    assert len({name.partition("/")[0] for name in files}) == 2


@pytest.mark.parametrize(
    ("part", "words"),
    [("java", "the JVM of its driver died|the driver's JVM is gone"), ("python", "its driver's log is")],
)
def test_the_death_of_a_part_of_the_driver_ends_the_job(own: OwnSpark, part: str, words: str) -> None:
    job = own.submit(workers(WAITS, 2))
    job.until_line("ready")
    os.kill(own.part(job, part), signal.SIGKILL)
    status = job.end(LONG)
    assert status["state"] == "killed", job.story(status)
    assert re.search(words, status["reason"]["words"])
    assert "and with it all tasks" in status["reason"]["words"]
    until(lambda: not own.command_lines(job) and not masters_here(job.id), LONG, what=lambda: own.command_lines(job))


def test_the_masters_death_ends_the_application(own: OwnSpark) -> None:
    job = own.submit(workers(WAITS))
    job.until_line("ready")
    for pid in masters_here(job.id):
        os.kill(pid, signal.SIGKILL)
    words = job.end(LONG)["reason"]["words"]
    assert "its master, beside the driver, is gone" in words
    own.gone(job)


def test_a_killed_job_ends_its_application(own: OwnSpark) -> None:
    job = own.submit(workers(WAITS, 2))
    job.until_line("ready")
    assert own.tm("kill", job.id).returncode == 0
    assert job.end(LONG)["state"] == "killed"
    own.gone(job)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_ends_while_its_application_starts_leaves_nothing(own: OwnSpark, number: signal.Signals) -> None:
    own.write("job.yaml", json.dumps({"name": "t", "roles": workers(WAITS), **own.own()}))
    with subprocess.Popen(
        [TM, "run", "--engine", "spark", "job.yaml"], cwd=own.folder, stderr=subprocess.PIPE
    ) as command:
        until(lambda: in_containers("/driver"), limit=LONG, what="the driver's JVM")
        command.send_signal(number)
        assert command.wait(LONG) == (130 if number == signal.SIGINT else -number)
    until(lambda: not in_containers("/driver"), limit=LONG, what=lambda: in_containers("/driver"))
    jobs = list(Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs").glob("*"))
    assert not jobs or number == signal.SIGKILL


@pytest.mark.parametrize(
    ("keys", "variables", "words"),
    [
        ({"master": "spark://localhost:1"}, {}, "nothing answers at localhost:1"),
        ({"master": "yarm"}, {}, "'yarm' is not a master that Spark knows"),
        ({"deploy": "cluster"}, {}, "cluster is not to be had with the master local[2]"),
        ({"conf": {"spark.driver.memory": "1x"}}, {}, "Invalid maximum heap size"),
        ({"conf": {"spark.executor.cores": "none"}}, {}, "Executor cores must be a positive number"),
        ({"conf": {"executor.cores": "1"}}, {}, "it is not a property of Spark"),
        ({"application": "app-1"}, {}, "the application app-1 runs already, and has its own"),
        ({}, {"PYSPARK_PYTHON": "/nowhere/python", "PYSPARK_DRIVER_PYTHON": "python3"}, 'Cannot run program "/nowhere/python"'),
        ({}, {"JAVA_HOME": "/nowhere"}, "there is no Java in JAVA_HOME (/nowhere)"),
        ({}, {"SPARK_HOME": "/nowhere"}, "/nowhere is not a Spark"),
    ],
)  # fmt: skip
def test_what_keeps_an_application_from_starting_is_one_error(
    own: OwnSpark, keys: dict[str, Any], variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    section = {"master": "local[2]", "conf": CONF, **keys}
    own.write("job.yaml", json.dumps({"name": "t", "roles": workers("true"), "engines": {"spark": section}}))
    done = own.tm("run", "job.yaml", "--engine", "spark", limit=LONG)
    assert done.returncode == 2, done.stderr
    errors = done.stderr[done.stderr.index("error:") :]
    assert words in errors.splitlines()[0]
    assert len(errors.splitlines()) in (2, 3), "what, where in the job, and how to mend it"
    assert not list(Path(os.environ["TRAINMASTER_STATE_DIR"], "jobs").glob("*"))


def test_another_version_of_python_at_the_executors_is_one_error(
    own: OwnSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(spark.older_python(own.folder / "other")))
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    with pytest.raises(BadInput, match=r"Python in worker has different version") as refused:
        own.submit(workers("true"))
    assert "PYSPARK_DRIVER_PYTHON" in refused.value.mend


def test_the_page_is_followed_literally(own: OwnSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text().partition("## Run a job as an application of its own")[2]
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
    assert block is not None
    commands = [line.removeprefix("$ ") for line in block[1].splitlines() if line.startswith("$ ")]
    monkeypatch.setenv("PATH", f"{Path(TM).parent}:{os.environ['PATH']}")
    try:
        done = subprocess.run(
            ["bash", "-ec", "\n".join(commands)],
            cwd=own.folder,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "worker:0 hello" in done.stdout
        assert "worker:1 hello" in done.stdout
        assert "starting a Spark application on spark://localhost:" in done.stderr
    finally:
        own.tm("cluster", "down", "spark")
