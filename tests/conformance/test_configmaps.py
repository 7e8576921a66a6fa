"""A storage in ConfigMaps, on a real API server: two writers, one that was suspended, a full one, a server that dies; and what all do."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes import own_kubernetes
from log_lines import everything, first_line, line, lines, start_master
from waiting import until

from trainmaster.clusters.kubernetes import Cluster, Settings
from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.config import load
from trainmaster.kube.kinds import CONFIGMAPS
from trainmaster.log import configmaps, epochs
from trainmaster.log.chunks import CHUNK
from trainmaster.log.configmaps import ConfigMapStorage, keep_tail, url_of
from trainmaster.log.output import Copy
from trainmaster.log.reader import Reader, replay
from trainmaster.log.replay import restart
from trainmaster.log.segments import number
from trainmaster.log.snapshots import write_snapshot
from trainmaster.log.storage import storage_for

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.full]
TESTS = Path(__file__).parent.parent


@pytest.fixture
def url(on_kubernetes: Cluster) -> Iterator[str]:
    job = f"job-{secrets.token_hex(4)}"
    yield url_of("", on_kubernetes.namespace, job)
    Blocking(load()).delete_all(CONFIGMAPS, f"trainmaster/job={job}")


@pytest.fixture
def storage(url: str) -> ConfigMapStorage:
    found = storage_for(url)
    assert isinstance(found, ConfigMapStorage)
    return found


def objects(storage: ConfigMapStorage) -> list[dict[str, Any]]:
    return Blocking(load()).list(CONFIGMAPS, labels=f"trainmaster/job={storage.job}")[0]


# -- what every storage does --


def test_files(storage: ConfigMapStorage) -> None:
    assert storage.read("a/b") is None
    assert storage.entries("a") == []
    assert not storage.exists("a/b")
    storage.remove("a/b")
    assert storage.create("epochs/1", b"first")
    assert not storage.create("epochs/1", b"second")
    assert storage.read("epochs/1") == b"first"
    storage.replace("master", b"long content")
    storage.replace("master", b"short")
    assert storage.read("master") == b"short"
    assert storage.read("master", 1, 3) == b"hor"
    assert storage.read("master", 2) == b"ort"
    assert storage.read("master", 2, 0) == b""
    storage.replace("logs/worker-0/1.log.d/7", b"x")
    assert [(e.name, e.size, e.folder) for e in storage.entries("")] == [
        ("epochs", 0, True),
        ("logs", 0, True),
        ("master", 5, False),
    ]
    assert [(e.name, e.folder) for e in storage.entries("logs/worker-0")] == [("1.log.d", True)]
    assert [(e.name, e.size) for e in storage.entries("epochs")] == [("1", 5)]
    storage.remove("master")
    assert not storage.exists("master")
    with pytest.raises(BadInput):
        storage.read("../other")


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 9 * CHUNK + 5])
def test_content_of_any_size(storage: ConfigMapStorage, size: int) -> None:
    data = os.urandom(size)
    assert storage.create("a/created", data)
    storage.replace("a/replaced", b"x" * 200_000)
    storage.replace("a/replaced", data)
    grown = storage.appender("a/grown")
    for at in range(0, size, 50_000):
        grown.write(data[at : at + 50_000])
        grown.sync()
    for path in ("a/created", "a/replaced", "a/grown"):
        assert storage.read(path) == data
        for offset, count in (
            (0, 10),
            (CHUNK - 3, 10),
            (CHUNK, CHUNK),
            (size - 1, 5),
            (size, 5),
            (2 * CHUNK + 1, 3 * CHUNK),
        ):
            if offset >= 0:
                assert storage.read(path, offset, count) == data[offset : offset + count]
    assert {entry.size for entry in storage.entries("a")} == {size}
    for path in ("a/created", "a/replaced", "a/grown"):
        storage.remove(path)
    assert objects(storage) == []


def test_of_many_who_create_at_once_one_wins(url: str) -> None:
    def contend(index: int) -> list[bool]:
        storage = storage_for(url)
        return [storage.create(f"epochs/{n}", str(index).encode() * (1 if n % 5 else CHUNK)) for n in range(10)]

    with ThreadPoolExecutor(6) as threads:
        won = list(threads.map(contend, range(6)))
    for n in range(10):
        winners = [index for index in range(6) if won[index][n]]
        assert len(winners) == 1
        assert (storage_for(url).read(f"epochs/{n}") or b"")[:1] == str(winners[0]).encode()


def test_who_reads_while_a_file_is_replaced_sees_one_or_the_other(url: str) -> None:
    contents = [bytes([65 + n]) * (CHUNK * 3 + n) for n in range(6)]
    storage_for(url).replace("big", contents[0])
    ended = threading.Event()

    def write() -> None:
        storage = storage_for(url)
        for content in contents * 2:
            storage.replace("big", content)
        ended.set()

    writing = threading.Thread(target=write)
    writing.start()
    reader, seen = storage_for(url), 0
    while not ended.is_set():
        assert reader.read("big") in contents
        seen += 1
    writing.join()
    assert seen


# -- a log --


def test_a_small_log_is_few_objects_and_says_whose_it_is(storage: ConfigMapStorage) -> None:
    kube = Blocking(load())
    kube.create(CONFIGMAPS, {"metadata": {"name": storage.job, "labels": {"trainmaster/job": storage.job}}})
    owned = storage_for(storage.url)
    epoch, writer = start_master(owned)
    for n in range(2, 50):
        writer.append([line(n, epoch)], sync=n % 10 == 0)
    writer.close()
    parts = [row for row in objects(storage) if row["metadata"]["name"] != storage.job]
    assert len(parts) == 3  # the epoch, and the log: its first line is for ever, the rest may be dropped
    for row in parts:
        assert row["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "trainmaster"
        assert row["metadata"]["labels"]["trainmaster/part"] == "log"
        assert [owner["name"] for owner in row["metadata"]["ownerReferences"]] == [storage.job]
    assert len(everything(owned)) == 49


def test_chunks_are_small_and_immutable_once_full(storage: ConfigMapStorage) -> None:
    epoch, writer = start_master(storage)
    writer.append([line(n, epoch, "x" * 5000) for n in range(2, 60)], sync=True)
    chunks = [row for row in objects(storage) if "trainmaster/chunk" in row["metadata"]["annotations"]]
    sizes = {
        int(row["metadata"]["annotations"]["trainmaster/chunk"]): (row.get("immutable", False), row) for row in chunks
    }
    assert [sizes[n][0] for n in sorted(sizes)] == [True] * (len(sizes) - 1) + [False]
    assert len(sizes) == 5
    assert len(everything(storage)) == 59


def test_notes_wait_for_the_flush_and_barriers_do_not(url: str) -> None:
    storage = storage_for(url)
    epoch, writer = start_master(storage)
    reader = Reader(storage_for(url))
    assert reader.poll() is not None
    writer.append([line(2, epoch)], sync=False)
    assert reader.poll() is None
    writer.append([line(3, epoch)], sync=True)
    batch = reader.poll()
    assert batch is not None
    assert [number(one) for one in batch.lines] == [2, 3]


def test_of_two_writers_the_older_loses(url: str) -> None:
    old = storage_for(url)
    epoch, writer = start_master(old)
    writer.append(lines(2, 5), sync=True)
    new = storage_for(url)
    newer = epochs.take(new)
    reader = Reader(new)
    assert [number(one) for one in replay(reader, bytes)] == [1, 2, 3, 4, 5]
    assert epochs.settle(new, newer)
    assert epochs.settle(new, newer)
    with pytest.raises(StorageFailed, match="another master has closed"):
        writer.append([line(6)], sync=True)
    assert not epochs.confirm(old, epoch)
    from trainmaster.log.writer import open_writer

    second = open_writer(new, newer, reader.last)
    second.append([first_line(6, newer, reader.read), line(7, newer)], sync=True)
    writer.append([line(6)], sync=True)  # what it writes besides counts for nobody
    assert [number(one) for one in everything(storage_for(url))] == [1, 2, 3, 4, 5, 6, 7]
    assert b'"epoch":2' in everything(storage_for(url))[5] or b"master-started" in everything(storage_for(url))[5]


def test_two_racing_writers_of_one_file(url: str) -> None:
    """A file is settled in the middle of its writer's work: what it was told is stable is there, and nothing else comes."""
    for round_ in range(8):
        storage = storage_for(url)
        grown, stable, failed = storage.appender(f"race/{round_}"), bytearray(), threading.Event()

        def write(grown: Any = grown, stable: bytearray = stable, failed: threading.Event = failed) -> None:
            try:
                while True:
                    piece = os.urandom(30_000)
                    grown.write(piece)
                    grown.sync()
                    stable.extend(piece)
            except StorageFailed:
                failed.set()

        writing = threading.Thread(target=write)
        writing.start()
        until(lambda stable=stable, round_=round_: len(stable) > round_ * 20_000)
        settling = storage_for(url)
        until(lambda settling=settling, round_=round_: settling.settle(f"race/{round_}"))
        there = storage_for(url).read(f"race/{round_}")
        assert failed.wait(60)
        writing.join()
        assert there is not None
        assert there[: len(stable)] == bytes(stable)
        assert storage_for(url).read(f"race/{round_}") == there
        storage.remove(f"race/{round_}")


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from log_lines import line, start_master
from trainmaster.log.storage import storage_for
epoch, writer = start_master(storage_for(sys.argv[1]))
n = 1
while True:
    n += 1
    writer.append([line(n, epoch)], sync=True)
    print(n, flush=True)
"""


def test_a_writer_that_was_suspended_loses_and_nothing_that_it_was_told_is_lost(url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, url, str(TESTS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(20):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)
        storage = storage_for(url)
        epoch, writer = start_master(storage)
        assert epochs.settle(storage, epoch)
        process.send_signal(signal.SIGCONT)
        rest, error = process.communicate(timeout=60)
        assert "another master has closed" in error
        told = max([told, *map(int, rest.split())])
        writer.append([line(writer.last + 1, epoch)], sync=True)
        found = everything(storage_for(url))
        assert [number(one) for one in found] == list(range(1, len(found) + 1))
        first = next(at for at, one in enumerate(found) if at and b"master-started" in one)
        assert first >= 20
        assert (
            told <= first + 1
        )  # what it was told last may have come after the new master's look: it acted on none of it
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


# -- how much is kept --


def test_a_full_log_drops_what_snapshots_cover(storage: ConfigMapStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configmaps, "LOG", 550_000)
    epoch, writer = start_master(storage, segment_size=100_000)
    n = 1

    def write(count: int) -> None:
        nonlocal n
        for _ in range(count):
            writer.append([line(n + k, epoch, "x" * 1000) for k in range(1, 21)], sync=True)
            n += 20

    write(10)
    write_snapshot(storage, n, epoch, "1", b"the first")
    write(5)
    write_snapshot(storage, n, epoch, "1", b"the second")
    write(13)
    assert sum(entry.size for entry in storage.entries("events")) < 550_000
    assert n * 1000 > 550_000
    state, reader = restart(storage_for(storage.url), "1")
    assert state == b"the second"
    assert [number(one) for one in replay(reader, bytes)][-1] == n
    with pytest.raises(StorageFailed) as told:
        write(30)
    assert told.value.anchor == "configmaps-full"
    assert "storage:" in told.value.mend


def test_the_last_of_what_attempts_printed_is_kept_the_newest_longest(
    storage: ConfigMapStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configmaps, "OUTPUT", 700_000)
    for attempt in range(1, 5):
        printed = bytes([64 + attempt]) * 1_000_000
        keep_tail(storage, "worker:0", attempt, len(printed), printed)
    assert storage.entries("logs/worker-0/1.log.d") == []
    for attempt in (3, 4):
        log = Copy(storage, "worker:0", attempt, 1000)
        assert log.size == 1_000_000
        gap, *pieces = log.pieces()
        assert gap["left_out"] == 1_000_000 - 256 * 1024
        assert "".join(piece["data"] for piece in pieces) == chr(64 + attempt) * 256 * 1024


# -- faults --


def test_a_quota_that_is_spent_is_told(storage: ConfigMapStorage, kubernetes: Cluster) -> None:
    used = len(Blocking(load()).list(CONFIGMAPS, metadata=True)[0])
    name = f"q-{secrets.token_hex(3)}"
    kubernetes.kubectl("-n", kubernetes.namespace, "create", "quota", name, f"--hard=count/configmaps={used}")
    try:
        told: list[StorageFailed] = []

        def refused() -> bool:
            try:
                storage.create(f"x/{secrets.token_hex(4)}", b"")
            except StorageFailed as failure:
                told.append(failure)
            return bool(told)

        until(refused)
        assert "exceeded quota" in told[0].message
        assert "quota" in told[0].mend
    finally:
        kubernetes.kubectl("-n", kubernetes.namespace, "delete", "quota", name)


def test_without_rights_or_with_a_wrong_url_it_is_told(on_kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("configmaps://", "configmaps://ns", "configmaps://ns/a/b"):
        with pytest.raises(BadInput):
            storage_for(url)
    with pytest.raises(StorageFailed, match="no context 'gone'"):
        storage_for(url_of("gone", "ns", "job"))
    monkeypatch.setenv("KUBECONFIG", str(on_kubernetes.kubeconfig("nobody")))
    with pytest.raises(StorageFailed, match="forbidden") as told:
        storage_for(url_of("", on_kubernetes.namespace, "job")).create("x", b"")
    assert "tm cluster grants" in told.value.mend


def test_a_writer_lives_through_the_servers_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server is killed while a master writes: each call fails or has written, and the same lines are handed in again."""
    with own_kubernetes(Settings(nodes=0, simulated=1)) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig("edit")))
        url = url_of("", cluster.namespace, "job")
        epoch, writer = start_master(storage_for(url))
        stable, failures, stopped = [1], [0], threading.Event()

        def write() -> None:
            while not stopped.is_set():
                n = stable[0]
                batch = [line(n + k, epoch, "x" * 500) for k in range(1, 6)]
                while True:
                    try:
                        writer.append(batch, sync=True)
                        break
                    except StorageFailed:
                        failures[0] += 1
                stable[0] = n + 5

        writing = threading.Thread(target=write)
        writing.start()
        try:
            until(lambda: stable[0] > 50)
            daemon = cluster.daemon("kube-apiserver")
            daemon.kill()
            until(lambda: failures[0] > 0)
            daemon.start()
            reached = stable[0]
            until(lambda: stable[0] > reached + 50)
        finally:
            stopped.set()
            writing.join()
        assert [number(one) for one in everything(storage_for(url))] == list(range(1, stable[0] + 1))
