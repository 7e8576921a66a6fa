"""Hadoop's own InputFormats and OutputFormats, out of a real HDFS and into it: what a program reads and what a user finds."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.engines import Engine, Submitted, python, workers
from waiting import until

from trainmaster.clusters.hadoop.cluster import Cluster
from trainmaster.core.errors import BadInput
from trainmaster.data.store.stores import Store, store_for
from trainmaster.host import linux

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.needs("only-engine")]

OLD, NEW = "hadoop:org.apache.hadoop.mapred.", "hadoop:org.apache.hadoop.mapreduce.lib."
SPLIT = "mapreduce.input.fileinputformat.split.maxsize"
LIMIT = 240.0  # s for a job with JVMs beside it, on a machine that has other things to do
NAMES = iter(range(1 << 20))


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where our classes are kept once they were compiled."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def compiled(on_hadoop: Cluster, classes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(classes))
    # A JVM that lives for seconds need not compile well.
    monkeypatch.setenv("HADOOP_CLIENT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture
def place(on_hadoop: Cluster) -> Iterator[Store]:
    """A folder of the test's own on HDFS."""
    folder = store_for(f"hdfs:///formats-{os.getpid()}-{next(NAMES)}")
    yield folder
    folder.remove("")


@pytest.fixture(scope="session")
def countdown(hadoop: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar of an InputFormat that only its team has."""
    folder = tmp_path_factory.mktemp("countdown")
    source = Path(__file__).parents[1] / "programs" / "Countdown.java"
    classpath = hadoop.environ["HADOOP_CLASSPATH"]
    subprocess.run(["javac", "-nowarn", "-cp", classpath, "-d", str(folder / "classes"), str(source)], check=True)
    with zipfile.ZipFile(folder / "countdown.jar", "w") as jar:
        for path in (folder / "classes").iterdir():
            jar.write(path, path.name)
    return folder / "countdown.jar"


def lines(files: int = 3, count: int = 2000) -> list[list[str]]:
    return [[f"{file}-{line:05}" for line in range(count)] for file in range(files)]


def put(place: Store, name: str = "in", files: int = 3, count: int = 2000) -> list[str]:
    """Text files on HDFS; their lines."""
    found = lines(files, count)
    for file, content in enumerate(found):
        place.put(f"{name}/{file}.txt", "".join(f"{line}\n" for line in content).encode())
    return [line for content in found for line in content]


def stream(url: str, name: str, options: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"url": url, "as": "stream", "format": name, "options": options or {}, **keys}


def printed(engine: Engine, name: str = "out") -> dict[str, list[str]]:
    """The lines of a stream output on this machine, by task."""
    found: dict[str, list[str]] = {}
    for path in sorted((engine.folder / name).glob("*-*/part-*")):
        found.setdefault(path.parent.name, []).extend(path.read_text().splitlines())
    return found


def read(engine: Engine, given: dict[str, Any], tasks: int = 1, command: Any = "cat") -> dict[str, list[str]]:
    """What each task of a job reads of an input."""
    name = f"out{next(NAMES)}"
    outputs = {"out": {"url": name, "as": "stream"}}
    engine.submit(workers(command, tasks), inputs={"train": given}, outputs=outputs).succeeded(LIMIT)
    return printed(engine, name)


@pytest.mark.full
def test_text_of_both_apis_comes_once(engine: Engine, place: Store) -> None:
    wanted = put(place)
    for name in (f"{OLD}TextInputFormat", f"{NEW}input.TextInputFormat", f"{NEW}input.CombineTextInputFormat"):
        found = read(engine, stream(f"{place.url}/in", name, {SPLIT: "6000"}), tasks=2)
        assert sorted(line for part in found.values() for line in part) == wanted, name
        assert set(found) == {"worker-0", "worker-1"}
        assert all(len(part) > len(wanted) / 4 for part in found.values()), f"{name}: each task has its share"


@pytest.mark.full
def test_frames_go_through_sequence_files(engine: Engine, place: Store, on_hadoop: Cluster) -> None:
    """What a program prints as frames it reads as the same frames, any bytes, over packed SequenceFiles that Hadoop's own tools read."""
    program = python("""
        import struct, sys
        for i in range(500):
            record = bytes([i % 256, 10, 0, 255]) * (i % 7)
            sys.stdout.buffer.write(struct.pack(">i", len(record)) + record)
    """)
    options = {
        "records": "framed",
        "mapreduce.output.fileoutputformat.compress": "true",
        "mapreduce.output.fileoutputformat.compress.type": "BLOCK",
    }
    output = stream(f"{place.url}/made", f"{NEW}output.SequenceFileOutputFormat", options)
    engine.submit(workers(program, 2), outputs={"made": output}).succeeded(LIMIT)
    told = json.loads(place.get("made/_SUCCESS") or b"")
    paths = sorted(file["path"] for task in told["tasks"].values() for file in task["files"])
    assert paths == ["worker-0/part-m-00000", "worker-1/part-m-00000"]
    assert (place.get("made/worker-0/part-m-00000") or b"").startswith(b"SEQ\x06")
    check = python("""
        import struct, sys
        wanted, count = {bytes([i % 256, 10, 0, 255]) * (i % 7) for i in range(500)}, 0
        while head := sys.stdin.buffer.read(4):
            record = sys.stdin.buffer.read(struct.unpack(">i", head)[0])
            assert record in wanted, record
            count += 1
        print(count)
    """)
    for name in (f"{OLD}SequenceFileInputFormat", f"{NEW}input.SequenceFileInputFormat"):
        given = stream(f"{place.url}/made/*", name, {"records": "framed"})
        found = read(engine, given, tasks=2, command=check)
        assert found == {"worker-0": ["500"], "worker-1": ["500"]}


@pytest.mark.full
def test_keys_and_types(engine: Engine, place: Store) -> None:
    types = {"mapreduce.job.output.key.class": "org.apache.hadoop.io.LongWritable"}
    output = stream(f"{place.url}/made", f"{OLD}SequenceFileOutputFormat", {"records": "key-value", **types})
    command = "printf '7\\tseven\\n8\\teight\\tand more\\n9'"
    engine.submit(workers(command), outputs={"made": output}).succeeded(LIMIT)
    given = stream(f"{place.url}/made/worker-0", f"{NEW}input.SequenceFileInputFormat", {"records": "key-value"})
    assert read(engine, given) == {"worker-0": ["7\tseven", "8\teight\tand more", "9\t"]}


def test_the_program_is_over_before_our_classes_are_compiled(engine: Engine, tmp_path: Path) -> None:
    """What is left of a program is ended with it; what compiles beside it is none of it."""
    javac = tmp_path / "java" / "bin" / "javac"
    javac.parent.mkdir(parents=True)
    javac.write_text(f'#!/bin/sh\ntouch {tmp_path}/begun; sleep 1; exec {shutil.which("javac")} "$@"\n')
    javac.chmod(0o755)
    environ = {"JAVA_HOME": str(tmp_path / "java"), "XDG_CACHE_HOME": str(tmp_path / "none")}
    output = stream("made", f"{OLD}TextOutputFormat")
    program = f"until [ -e {tmp_path}/begun ]; do sleep 0.1; done; echo told"
    job = engine.submit(workers(program, env=environ), outputs={"made": output})
    job.succeeded(LIMIT)
    assert job.task("worker:0")["attempt"] == 1
    assert printed(engine, "made") == {"worker-0": ["told"]}


@pytest.mark.full
def test_packed_text_in_parts(engine: Engine, place: Store) -> None:
    """Each part is a file of Hadoop's own naming, a new one each so many bytes; records are never cut."""
    options = {
        "part": "20KB",
        "mapreduce.output.fileoutputformat.compress": "true",
        "mapreduce.output.fileoutputformat.compress.codec": "org.apache.hadoop.io.compress.GzipCodec",
    }
    for number, name in enumerate((f"{OLD}TextOutputFormat", f"{NEW}output.TextOutputFormat")):
        output = stream(f"{place.url}/made{number}", name, options)
        engine.submit(workers("seq 10000"), outputs={"made": output}).succeeded(LIMIT)
        files = [file.path for file in place.files(f"made{number}/worker-0")]
        assert len(files) == 3
        assert all(path.endswith(".gz") and "/part-" in path for path in files), files
        text = [gzip.decompress(place.get(path) or b"") for path in sorted(files)]
        assert b"".join(text).split() == [str(i).encode() for i in range(1, 10001)]
        assert all(part.endswith(b"\n") for part in text)
        assert max(map(len, text)) < 21_000


@pytest.mark.full
def test_epochs_shuffle_and_the_cache(engine: Engine, place: Store) -> None:
    wanted = put(place, files=2, count=500)
    name = f"{NEW}input.TextInputFormat"
    orders = []
    for cache, seed in (("", 7), ("1MB", 7), ("1MB", 8)):
        options = {SPLIT: "1000", **({"cache": cache} if cache else {})}
        given = stream(f"{place.url}/in", name, options, epochs=3, shuffle=True, seed=seed)
        orders.append(read(engine, given)["worker-0"])
        for epoch in range(3):
            assert sorted(orders[-1][epoch * 1000 : (epoch + 1) * 1000]) == wanted
        assert orders[-1][:1000] not in (wanted, orders[-1][1000:2000])
    plain, cached, other = orders
    assert plain == cached, "the cache changes nothing"
    assert other != cached


@pytest.mark.full
def test_the_cache_spares_the_source_and_keeps_to_its_limit(engine: Engine, countdown: Path) -> None:
    """Which splits are read from the source, the class itself tells."""
    shutil.copy(countdown, engine.folder / "countdown.jar")
    conf = {"jars": "countdown.jar", "countdown.from": "20000"}
    for cache, opened in (("100MB", [1, 1, 1, 1]), ("1B", [3, 3, 3, 3])):
        given = stream("none://here", "hadoop:Countdown", {"cache": cache, **conf}, epochs=3)
        job = engine.submit(workers("wc -l"), inputs={"train": given})
        job.succeeded(LIMIT)
        log = job.lines()
        assert log.count("240000") == 1
        assert [log.count(f"[trainmaster: java: counting down split {split}]") for split in range(4)] == opened


@pytest.mark.full
def test_a_class_of_ones_own(engine: Engine, countdown: Path) -> None:
    """Its splits are divided in blocks, or in turn with a shuffle; what it prints by itself is in the log, not among the records."""
    shutil.copy(countdown, engine.folder / "countdown.jar")
    options = {"jars": "countdown.jar", "countdown.from": "2", "records": "key-value"}
    found = read(engine, stream("none://here", "hadoop:Countdown", options), tasks=2)
    assert found == {
        "worker-0": ["0\t0-2", "0\t0-1", "1\t1-2", "1\t1-1"],
        "worker-1": ["2\t2-2", "2\t2-1", "3\t3-2", "3\t3-1"],
    }
    dealt = read(engine, stream("none://here", "hadoop:Countdown", options, shuffle=True), tasks=2)
    assert {line[0] for line in dealt["worker-0"]} == {"0", "2"}
    whole = read(engine, stream("none://here", "hadoop:Countdown", options, split="whole"), tasks=2)
    assert whole["worker-0"] == whole["worker-1"] == found["worker-0"] + found["worker-1"]


def test_what_java_throws_is_the_reason(engine: Engine, countdown: Path) -> None:
    """An exception in the middle is no end of the records: the program is ended, and its first line is told."""
    shutil.copy(countdown, engine.folder / "countdown.jar")
    options = {"jars": "countdown.jar", "countdown.from": "100000", "countdown.fail": "50000"}
    given = stream("none://here", "hadoop:Countdown", options)
    job = engine.submit(workers("cat >/dev/null; echo all of it", restart="never"), inputs={"train": given})
    told = job.failed("staging-failed", LIMIT)
    assert "java.io.IOException: the countdown was held" in told["words"]
    assert "all of it" not in job.lines()
    assert any("at Countdown" in line for line in job.lines()), "the rest of it is in the log"


def test_what_cannot_be_is_told_before_a_program_starts(engine: Engine, place: Store) -> None:
    put(place)
    for name, url, words in (
        ("hadoop:org.example.Missing", "in", "ClassNotFoundException: Class org.example.Missing not found"),
        ("hadoop:java.lang.String", "in", "java.lang.String is no InputFormat"),
        (f"{OLD}TextInputFormat", "nothing", "Input path does not exist"),
    ):
        job = engine.submit(workers("true"), inputs={"train": stream(f"{place.url}/{url}", name)})
        told = job.failed("input-missing", LIMIT)
        assert words in told["words"], told
    output = {"out": stream("out", "hadoop:org.example.Missing")}
    told = engine.submit(workers("true", restart="never"), outputs=output).failed("upload-failed", LIMIT)
    assert "org.example.Missing" in told["words"]


def test_a_node_without_java_or_hadoop(engine: Engine, place: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"train": stream(f"{place.url}/in", f"{OLD}TextInputFormat")}
    host = os.uname().nodename
    job = engine.submit(workers("true", env={"JAVA_HOME": "/nowhere", "PATH": "/nowhere"}), inputs=given)
    told = job.failed("input-missing", LIMIT)
    assert f"no java on {host}" in told["words"]
    assert "JAVA_HOME" in told["advice"]
    job = engine.submit(workers("true", env={"HADOOP_CLASSPATH": "/nowhere", "HADOOP_CONF_DIR": ""}), inputs=given)
    told = job.failed("input-missing", LIMIT)
    assert f"no Hadoop classes on {host}" in told["words"]
    assert "HADOOP_CLASSPATH" in told["advice"]


def test_the_configuration_alone_leads_to_the_classes(engine: Engine, place: Store) -> None:
    """yarn.application.classpath, where nothing else says anything."""
    wanted = put(place, files=1, count=10)
    given = {"train": stream(f"{place.url}/in", f"{OLD}TextInputFormat")}
    job = engine.submit(workers("cat", env={"HADOOP_CLASSPATH": ""}), inputs=given)
    job.succeeded(LIMIT)
    assert job.lines() == wanted


def test_refused_at_submit(engine: Engine) -> None:
    for given, words in (
        ({"as": "download"}, "as: download"),
        ({"as": "shards"}, "as: shards"),
        ({"format": "hadoop:"}, "not the name of a Java class"),
        ({"format": "lines", "options": {"a.b": "c"}}, "options are for Hadoop's formats"),
        ({"options": {"record": "value"}}, "do you mean records"),
        ({"options": {"records": "xml"}}, "expected one of value"),
        ({"options": {"cache": "much"}}, "expected a size"),
    ):
        with pytest.raises(BadInput) as refused:
            engine.submit(workers("true"), inputs={"a": stream("in", f"{OLD}TextInputFormat") | given})
        assert words in str(refused.value)
    with pytest.raises(BadInput, match="not a format of an output"):
        engine.submit(workers("true"), outputs={"a": stream("in", "lines")})


def test_a_program_that_has_had_enough(engine: Engine, countdown: Path) -> None:
    shutil.copy(countdown, engine.folder / "countdown.jar")
    given = stream("none://here", "hadoop:Countdown", {"jars": "countdown.jar", "countdown.from": "10000000"})
    for command in ("head -n 1", "true"):
        job = engine.submit(workers(command), inputs={"train": given})
        job.succeeded(LIMIT)
        assert job.task("worker:0")["attempt"] == 1


def running_java(job: Submitted) -> list[int]:
    """The JVMs of a job's agents."""
    found = []
    for process in linux.everyone():
        try:
            told = Path(f"/proc/{process.pid}/environ").read_bytes()
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"trainmaster.Formats" in command and f"TRAINMASTER_JOB={job.id}".encode() in told:
            found.append(process.pid)
    return found


def test_killed_while_it_reads_nothing(engine: Engine, countdown: Path) -> None:
    shutil.copy(countdown, engine.folder / "countdown.jar")
    given = stream("none://here", "hadoop:Countdown", {"jars": "countdown.jar", "countdown.from": "10000000"})
    job = engine.submit(workers("head -n 1; sleep 1000"), inputs={"train": given})
    job.until_line("0-10000000")
    assert len(running_java(job)) == 1
    job.run.kill()
    assert job.end()["state"] == "killed"
    until(lambda: not running_java(job), what="the JVM ends")


def test_a_jvm_ends_with_its_agent_and_an_agent_outlives_it(engine: Engine, countdown: Path) -> None:
    """Neither death is an end of the records: the task begins again."""
    shutil.copy(countdown, engine.folder / "countdown.jar")
    given = stream("none://here", "hadoop:Countdown", {"jars": "countdown.jar", "countdown.from": "2000000"})
    job = engine.submit(workers("head -n 1 >&2; read wait <go; wc -l"), inputs={"train": given})
    os.mkfifo(engine.folder / "go")
    job.until_line("0-2000000")
    (java,) = running_java(job)
    os.kill(java, signal.SIGKILL)
    job.until_status("a second attempt", lambda status: status["tasks"][0]["attempt"] == 2)
    until(lambda: "0-2000000" in job.lines(attempt=2), LIMIT)
    (java,) = running_java(job)
    agent = linux.look(java)
    assert agent is not None
    os.kill(agent.parent, signal.SIGKILL)
    until(lambda: java not in running_java(job), what="the JVM ends with its agent")
    job.until_status("a third attempt", lambda status: status["tasks"][0]["attempt"] == 3)
    until(lambda: "0-2000000" in job.lines(attempt=3), LIMIT)
    job.run.kill()
    assert job.end()["state"] == "killed"
