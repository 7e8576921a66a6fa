"""What only HDFS has: a log that is one open file, leases, blocks, safe mode, permissions; and jobs that lie there whole."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import leftovers
import pytest
from conformance.engines import Engine, python, workers
from conftest import Home
from elsewhere import hdfs  # noqa: F401  fixture
from hadoop import Cluster, own_hadoop
from log_lines import line, start_master
from waiting import until

from trainmaster.client.jobs.places import job_ids
from trainmaster.clusters.hadoop import Settings
from trainmaster.clusters.hadoop.jars import java
from trainmaster.core.errors import BadInput, StorageFailed, TrainmasterError
from trainmaster.core.input.splits import Piece
from trainmaster.data.following import Following
from trainmaster.data.locality import preferred_hosts
from trainmaster.data.sources import list_input
from trainmaster.data.store.stores import store_for
from trainmaster.log import epochs
from trainmaster.log.dfs import open_dfs
from trainmaster.log.hdfs import opened
from trainmaster.log.reader import Reader
from trainmaster.log.segments import number
from trainmaster.log.storage import storage_for

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.needs("only-engine")]
TESTS = Path(__file__).parent.parent


def numbers(url: str) -> list[int]:
    """Of every line that a fresh reader of the log is given."""
    reader, found = Reader(storage_for(url)), []
    while batch := reader.poll():
        found += [number(one) for one in batch.lines]
    return found


# -- the log: one open file --


def test_a_reader_sees_of_an_open_file_what_was_synced(hdfs: str) -> None:  # noqa: F811
    epoch, writer = start_master(storage_for(hdfs))
    reader = Reader(storage_for(hdfs))
    assert reader.poll() is not None
    for n in range(2, 6):
        writer.append([line(n, epoch, "ä" * n)], sync=True)
        batch = reader.poll()
        assert batch is not None
        assert (batch.first, batch.lines) == (n, [line(n, epoch, "ä" * n)])
    writer.append([line(6, epoch)], sync=False)
    assert reader.poll() is None
    writer.flush()
    assert numbers(hdfs) == [1, 2, 3, 4, 5, 6]
    writer.close()
    assert numbers(hdfs) == [1, 2, 3, 4, 5, 6]
    assert [entry.name for entry in storage_for(hdfs).entries("events")] == ["1-1.jsonl"]


def test_who_reads_while_a_file_is_closed_misses_nothing(hdfs: str) -> None:  # noqa: F811
    for round_ in range(5):
        url, found = f"{hdfs}/{round_}", []
        epoch, writer = start_master(storage_for(url))
        writer.append([line(n, epoch) for n in range(2, 50)], sync=True)
        closing = threading.Thread(target=writer.close)
        closing.start()
        while closing.is_alive():
            found.append(numbers(url))
        closing.join()
        assert all(one == list(range(1, 50)) for one in [*found, numbers(url)])


def test_what_a_writer_has_flushed_is_followed(hdfs: str, hadoop: Cluster, tmp_path: Path) -> None:  # noqa: F811
    """Event files are open while their program runs, and the NameNode learns their length when they are closed."""
    following = Following(hdfs, str(tmp_path))
    copy = tmp_path / "events"

    def looked() -> str:
        following.look()
        return copy.read_text() if copy.exists() else ""

    command = [
        java(),
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{hadoop.place.classpath}",
        str(TESTS / "programs/Flushing.java"),
    ]
    with subprocess.Popen(
        [*command, f"{hdfs}/events"], stdin=subprocess.PIPE, text=True, env={**os.environ, **hadoop.environ}
    ) as writer:
        assert writer.stdin is not None
        for sent, wanted in (("one", "one"), ("two", "onetwo"), ("three", "onetwothree")):
            writer.stdin.write(f"{sent}\n")
            writer.stdin.flush()
            until(lambda wanted=wanted: looked() == wanted, what=looked)
        told = store_for(hdfs).look("events")
        assert told is not None
        assert told.size < len("onetwothree"), "the NameNode alone does not know it"
        assert store_for(hdfs).read_flushed("events", 3, 6) == b"twothr"
        writer.stdin.write("four\n")
    assert (writer.returncode, looked()) == (0, "onetwothreefour")
    assert store_for(hdfs).read_flushed("events", 3, 6) is None, "it is closed"


def test_a_killed_writer_has_lost_nothing_that_it_was_told_is_durable(hdfs: str) -> None:  # noqa: F811
    command = [sys.executable, str(TESTS / "programs" / "append_events.py"), hdfs]
    last, total = 0, 0
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TESTS)}) as writer:
            assert writer.stdout is not None
            told = [int(writer.stdout.readline()) for _ in range(40)]
            writer.send_signal(signal.SIGKILL)
            told += [int(one) for one in writer.stdout if one.endswith(b"\n")]
        last, total = told[-1], total + len(told)
        found = numbers(hdfs)
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= last
    epoch, writer_ = start_master(storage_for(hdfs))
    assert (epoch, writer_.last) == (4, len(found) + 1)
    writer_.close()


def test_who_takes_the_epoch_closes_the_file_of_a_writer_that_still_lives(hdfs: str) -> None:  # noqa: F811
    epoch, old = start_master(storage_for(hdfs))
    old.append([line(n, epoch) for n in range(2, 100)], sync=True)
    second, new = start_master(storage_for(hdfs))
    assert (second, new.last) == (2, 100)
    old.append([line(100, epoch)], sync=True)  # which its successor has not read, and nobody counts
    assert numbers(hdfs) == list(range(1, 101))
    until(lambda: epochs.settle(storage_for(hdfs), second))
    with pytest.raises(StorageFailed, match="could not"):
        old.append([line(101, epoch)], sync=True)
    assert not epochs.confirm(storage_for(hdfs), epoch)
    new.append([line(101, second)], sync=True)
    assert numbers(hdfs) == list(range(1, 102))
    old.append([line(101, epoch)], sync=True)  # into a file of its own, which nobody takes for the log
    assert numbers(hdfs) == list(range(1, 102))
    new.close()
    old.close()


def test_the_collector_closes_no_file(hdfs: str) -> None:  # noqa: F811
    """It would ask the NameNode, for 16 s where that does not confirm, in whatever thread it runs: the loop's among them."""
    dfs, root = open_dfs(hdfs)
    writer = opened(dfs, f"{root}/left")
    writer.write(b"x")
    writer.hsync()
    del writer
    gc.collect()
    assert not dfs.call(lambda client: client.recover_lease(f"{root}/left"))
    until(lambda: dfs.call(lambda client: client.recover_lease(f"{root}/left")))


def test_files_are_the_owners_alone(hdfs: str, hadoop: Cluster) -> None:  # noqa: F811
    storage = storage_for(hdfs)
    epochs.take(storage)
    told = hadoop.run("org.apache.hadoop.fs.FsShell", "-ls", "-R", hdfs).stdout.split("\n")
    assert [one.split()[0] for one in told if one] == ["drwx------", "-rw-------"]


def test_who_else_may_write_in_a_jobs_directory_is_known(hdfs: str, hadoop: Cluster) -> None:  # noqa: F811
    storage = storage_for(hdfs)
    storage.create("epochs/1", b"")
    assert storage.other_writers("epochs/1") == ""
    hadoop.run("org.apache.hadoop.fs.FsShell", "-chmod", "777", hdfs)
    assert storage.other_writers("epochs/1") == "others may write there (mode 777)"


def test_the_end_of_an_open_file_is_read_where_all_is_encrypted(
    secure_hadoop: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {**secure_hadoop.environ, "KRB5CCNAME": f"FILE:{tmp_path}/tickets"}.items():
        monkeypatch.setenv(name, value)
    url = f"hdfs:///user/alice/{uuid.uuid4().hex[:12]}"
    with pytest.raises(StorageFailed, match="kinit"):
        storage_for(url).entries("events")
    subprocess.run(["kinit", "-kt", str(secure_hadoop.keytab("alice")), "alice"], check=True)
    epoch, writer = start_master(storage_for(url))
    for n in range(2, 6):
        writer.append([line(n, epoch, "ä" * 1000 * n)], sync=True)
        assert numbers(url) == list(range(1, n + 1))
    store = store_for(url)
    [open_end] = [end for file in store.files() if (end := store.read_flushed(file.path, 0, 1 << 20))]
    assert open_end.count(b"\n") == 5
    second, new = start_master(storage_for(url))
    until(lambda: epochs.settle(storage_for(url), second))
    with pytest.raises(StorageFailed):
        writer.append([line(6, epoch)], sync=True)
    assert (second, numbers(url)) == (2, list(range(1, 7)))
    new.close()


@pytest.mark.full
def test_the_end_of_an_open_file_is_read_where_the_namenode_gives_a_key_for_all_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encrypted = {"dfs.encrypt.data.transfer": "true", "dfs.block.access.token.enable": "true"}
    with own_hadoop(Settings(nodes=1, properties=encrypted)) as cluster:
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        url = f"hdfs:///tmp/{uuid.uuid4().hex[:12]}"
        epoch, writer = start_master(storage_for(url))
        for n in range(2, 6):
            writer.append([line(n, epoch, "ä" * 1000 * n)], sync=True)
            assert numbers(url) == list(range(1, n + 1))
        writer.close()
        assert numbers(url) == [1, 2, 3, 4, 5]


# -- faults of the cluster --


@pytest.fixture(
    params=["namenode", *(pytest.param(name, marks=pytest.mark.full) for name in ("safe mode", "datanode"))]
)
def fault(request: pytest.FixtureRequest, on_hadoop: Cluster) -> Iterator[tuple[object, object]]:
    """How to break the cluster, and how to mend it."""

    def safe_mode(wanted: str) -> None:
        done = on_hadoop.run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", wanted)
        assert done.returncode == 0, done.stderr

    def back(name: str) -> None:
        on_hadoop.daemon(name).start()
        on_hadoop.wait_ready()

    if request.param == "safe mode":
        yield (lambda: safe_mode("enter")), (lambda: safe_mode("leave"))
        safe_mode("leave")
    else:
        yield on_hadoop.daemon(request.param).kill, (lambda: back(request.param))


def test_the_log_waits_for_the_cluster_and_goes_on(
    hdfs: str,  # noqa: F811
    fault: tuple[object, object],
    engine: Engine,
    home: Home,
) -> None:
    breaks, mends = fault
    hold = 'echo "here $TRAINMASTER_INDEX"; while [ ! -e go ]; do sleep 0.02; done; echo "over $TRAINMASTER_INDEX"'
    job = engine.submit(workers(hold, 2), storage=hdfs)
    job.until_line("here 1", "worker:1")
    breaks()  # type: ignore[operator]
    (engine.folder / "go").touch()
    waiting = job.until_status("a wait for the storage", lambda status: "storage" in (status["waiting"] or ""))
    assert "waits for its storage: " in waiting["waiting"]
    mends()  # type: ignore[operator]
    job.succeeded()
    until(lambda: not leftovers.marked(home.mark, []), 180.0, "the master to close its files")
    assert {"job.json", "site.json"} <= {entry.name for entry in storage_for(f"{hdfs}/{job.id}").entries("")}
    assert job.lines("worker:1") == ["here 1", "over 1"]
    found = [event["n"] for event in job.events()]
    assert found == list(range(1, len(found) + 1))


@pytest.mark.full
@pytest.mark.parametrize("fault", ["namenode", "safe mode"], indirect=True)
def test_nothing_is_left_of_an_upload_that_was_broken_off(
    hdfs: str, fault: tuple[object, object], tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    """A commit counts what lies where it was uploaded."""
    breaks, mends = fault
    store, file = store_for(hdfs), tmp_path / "file"
    file.write_bytes(b"content")
    with pytest.raises(OSError, match=r"safe mode|reached|answered|closed"):
        store.upload(str(file), "out/file", lambda size: breaks())  # type: ignore[operator]
    mends()  # type: ignore[operator]
    store.upload(str(file), "out/file", lambda size: None)
    assert [found.path for found in store.files()] == ["out/file"]


# -- what is told --


@pytest.fixture
def no_conf(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_conf")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hdfs:///data", "hdfs:/// names no NameNode, and HADOOP_CONF_DIR is not set"),
        ("hdfs://ns1/data", "ns1 is neither a host that can be found nor a nameservice: HADOOP_CONF_DIR is not set"),
        ("hdfs://localhost:1/data", "localhost:1 cannot be reached: connection refused"),
    ],
)
def test_who_cannot_be_asked(url: str, words: str) -> None:
    with pytest.raises(TrainmasterError) as caught:
        list_input(url, "inputs.train.url")
    assert words in caught.value.message
    assert "HADOOP_CONF_DIR" in caught.value.mend
    with pytest.raises(TrainmasterError) as caught:
        storage_for(url).entries("events")
    assert words in caught.value.message


def test_what_is_not_there(hdfs: str) -> None:  # noqa: F811
    with pytest.raises(BadInput, match=r"matches no file"):
        list_input(f"{hdfs}/none/*.csv")


def test_an_output_that_may_not_be_written_is_refused_at_submit(
    engine: Engine, hdfs: str, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    store_for(hdfs).put("theirs/x", b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")
    engine.write(
        "job.yaml",
        f"roles: {{worker: {{command: 'true'}}}}\noutputs: {{model: {{url: '{hdfs}/theirs/model', from: 'worker:0'}}}}",
    )
    done = engine.tm("run", "job.yaml")
    assert done.returncode == 2
    assert "the output model cannot be written: Permission denied: user=bob, access=WRITE" in done.stderr
    assert job_ids() == []


def test_one_probe_leaves_nothing(hdfs: str) -> None:  # noqa: F811
    store = store_for(hdfs)
    store.put("there", b"")
    assert store_for(f"{hdfs}/a/b/c").unwritable("probe") is None
    assert [file.path for file in store.files()] == ["there"]
    assert [entry.name for entry in store.entries("")] == ["there"]


# -- a job that lies on HDFS whole --

TRAINS = python(
    """
    import json, os, pathlib, sys, time
    index = os.environ["TRAINMASTER_INDEX"]
    seen = pathlib.Path("ckpt/seen")
    done = int(seen.read_text()) if seen.exists() else 0
    rows = [line for file in sorted(pathlib.Path("train").iterdir()) for line in file.read_text().splitlines()]
    print("begins at", done, "of", len(rows), flush=True)
    seen.parent.mkdir(exist_ok=True)
    for at in range(done, len(rows)):
        seen.write_text(str(at + 1))
        while at == 5 and not os.path.exists(os.environ["GO"]):
            time.sleep(0.02)
    out = pathlib.Path("model")
    out.mkdir(exist_ok=True)
    (out / "sum").write_text(str(sum(map(int, rows))))
    """
)


def test_a_job_with_everything_on_hdfs_outlives_its_master(engine: Engine, hdfs: str) -> None:  # noqa: F811
    data = store_for(f"{hdfs}/data")
    for part in range(4):
        data.put(f"part-{part}.csv", "".join(f"{part * 5 + row}\n" for row in range(5)).encode())
    job = engine.submit(
        workers(TRAINS, 2, env={"GO": str(engine.folder / "go")}),
        inputs={"train": {"url": f"{hdfs}/data/*.csv", "as": "download"}},
        outputs={"model": {"url": f"{hdfs}/model"}},
        checkpoint={"path": "ckpt", "url": f"{hdfs}/ckpt", "every": "100ms"},
        storage=f"{hdfs}/jobs",
    )
    job.until_line("begins at 0 of 10", "worker:1")
    kept = storage_for(f"{hdfs}/jobs/{job.id}")
    job.until_status("a set", lambda status: status["checkpoint"] is not None)
    os.kill(json.loads(kept.read("master") or b"")["data"]["pid"], signal.SIGKILL)
    until(lambda: kept.exists("epochs/2"), what=job.status)
    (engine.folder / "go").touch()
    job.succeeded()
    found = {file.path: data_of(f"{hdfs}/model", file.path) for file in store_for(f"{hdfs}/model").files()}
    assert json.loads(found.pop("_SUCCESS"))["files"] == 2
    assert sum(int(content) for content in found.values()) == sum(range(20))
    assert "succeeded" in engine.tm("status", job.id).stdout
    assert "worker:0 begins at 0 of 10" in engine.tm("logs", job.id).stdout
    assert kept.read("logs/worker-0/1.log") == b"begins at 0 of 10\n"


def data_of(url: str, path: str) -> bytes:
    content = store_for(url).get(path)
    assert content is not None
    return content


def test_shards_from_hdfs_are_each_counted_once(engine: Engine, hdfs: str) -> None:  # noqa: F811
    rows = "".join(f"{n}\n" for n in range(2000))
    store_for(f"{hdfs}/data").put("rows.txt", rows.encode())
    reads = python(
        """
        from trainmaster import runtime
        print(sum(1 for _ in runtime.shards("train", batch=10)))
        """
    )
    job = engine.submit(
        workers(reads, 2), inputs={"train": {"url": f"{hdfs}/data", "as": "shards"}}, storage=f"{hdfs}/jobs-{uuid.uuid4().hex[:6]}"
    )  # fmt: skip
    job.succeeded()
    assert sum(int(job.lines(f"worker:{index}")[0]) for index in range(2)) == 2000
    audited = engine.tm("audit", job.id)
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert "2,000" in audited.stdout or "2000" in audited.stdout


def test_a_part_of_an_input_prefers_who_has_its_blocks(hdfs: str, hadoop: Cluster) -> None:  # noqa: F811
    store_for(hdfs).put("rows.txt", b"x" * 1000)
    store_for(hdfs).put("none.txt", b"")
    parts = [[Piece(f"{hdfs}/rows.txt", 0, 500)], [Piece(f"{hdfs}/none.txt")], [Piece("/etc/passwd")], []]
    ((host,), *rest) = preferred_hosts(parts)
    assert host in {hadoop.node_id(number).partition(":")[0] for number in (1, 2)}
    assert rest == [(), (), ()]


@pytest.mark.full
@pytest.mark.usefixtures("no_conf")
def test_who_cannot_be_asked_is_not_preferred() -> None:
    assert preferred_hosts([[Piece("hdfs://localhost:1/data/x")]]) == [()]
