"""Data on a real S3 server and a real HDFS: what the unit tests show on a local directory and in memory holds there too."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conformance.engines import Engine, workers
from elsewhere import elsewhere, hdfs  # noqa: F401  fixtures
from s3 import serving
from stored_sets import sets

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.input.shards import ShardTable
from trainmaster.core.input.splits import Piece
from trainmaster.core.spec.job import Input, Job, Output, Role
from trainmaster.data import checkpoints, saves
from trainmaster.data.checks import check_outputs
from trainmaster.data.formats.formats import records, shard_files
from trainmaster.data.outputs import CommitRefused, commit, finish, upload
from trainmaster.data.sources import list_input
from trainmaster.data.staging import download, staging_path
from trainmaster.data.store.stores import store_for
from trainmaster.data.store.transfer import Stopped
from trainmaster.log.storage import storage_for
from trainmaster.runtime.formats import recordio
from trainmaster.runtime.formats.crc32c import masked_crc32c
from trainmaster.runtime.formats.tfrecord_frames import frame
from trainmaster.runtime.reading import Reader

ODD = "a b+c%20ü[1].txt"


def there(url: str) -> dict[str, bytes]:
    store = store_for(url)
    return {file.path: store.read(file.path, 0, file.size) for file in store.files()}


def made(folder: Path, **files: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return str(folder)


@pytest.mark.needs("s3-here")
def test_a_job_has_everything_on_an_object_store(engine: Engine, s3: str) -> None:
    """What opens it goes from the submitter to master and agents; on a cluster, no program sees it."""
    store_for(s3).put("in/a", b"line\n")
    job = engine.submit(
        workers('mkdir model; cat train/a > model/copy; env | grep "^AWS_SECRET_ACCESS_KEY="; echo over'), storage=f"{s3}/jobs",
        inputs={"train": {"url": f"{s3}/in"}}, outputs={"model": {"url": f"{s3}/out"}},
    )  # fmt: skip
    job.succeeded()
    assert there(f"{s3}/out")["worker-0/copy"] == b"line\n"
    own = [line.partition("=")[0] for line in job.lines()]
    assert own == (["over"] if engine.nodes > 1 else ["AWS_SECRET_ACCESS_KEY", "over"])


# -- inputs --


def test_inputs_are_listed_and_staged(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    store = store_for(elsewhere)
    for name in ("in/a/1.csv", "in/b/1.csv", "in/b/_SUCCESS", "in/b/.hidden", f"in/b/{ODD}"):
        store.put(name, name.encode())
    store.put("in/empty", b"")
    listing = list_input(f"{elsewhere}/in/*/*")
    assert [listing.relative(file) for file in listing.files] == ["a/1.csv", "b/1.csv", f"b/{ODD}"]
    assert all(file.stamp for file in listing.files)
    told: list[tuple[int, int]] = []
    download(list_input(f"{elsewhere}/in/"), f"{tmp_path}/train", tell=lambda *figures: told.append(figures))
    assert (tmp_path / "train/b" / ODD).read_text() == f"in/b/{ODD}"
    assert (tmp_path / "train/empty").read_bytes() == b""
    assert told[-1] == (listing.size, listing.size)
    assert list(records(Piece(f"{elsewhere}/in/b/{ODD}", 0, None), len(f"in/b/{ODD}".encode()))) == [
        f"in/b/{ODD}".encode()
    ]
    with pytest.raises(BadInput, match=r"matches no file"):
        list_input(f"{elsewhere}/in/*.parquet", "inputs.train.url")


def test_a_large_file_goes_in_parts_and_a_stopped_download_goes_on(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    content = os.urandom(1 << 20) * 70
    (tmp_path / "large").write_bytes(content)
    steps: list[int] = []
    store_for(elsewhere).upload(f"{tmp_path}/large", "in/large", steps.append)
    assert sum(steps) == len(content)
    assert len(steps) > 1
    stop = threading.Event()

    def tell(done: int, total: int) -> None:
        if done * 2 > total:
            stop.set()

    with pytest.raises(Stopped):
        download(list_input(f"{elsewhere}/in"), f"{tmp_path}/train", tell=tell, stop=stop)
    assert (Path(staging_path(f"{tmp_path}/train")) / ".large.part").stat().st_size > len(content) // 2
    told: list[int] = []
    download(list_input(f"{elsewhere}/in"), f"{tmp_path}/train", tell=lambda done, total: told.append(done))
    assert told[0] > len(content) // 2
    assert (tmp_path / "train/large").read_bytes() == content


def test_a_file_that_was_replaced_is_not_gone_on_with(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    store = store_for(elsewhere)
    (tmp_path / "x").write_bytes(b"a" * (20 << 20))
    store.upload(f"{tmp_path}/x", "in/x", lambda _: None)
    stop = threading.Event()
    with pytest.raises(Stopped):
        download(list_input(f"{elsewhere}/in"), f"{tmp_path}/train", tell=lambda *_: stop.set(), stop=stop)
    (tmp_path / "x").write_bytes(b"b" * (20 << 20))
    store.upload(f"{tmp_path}/x", "in/x", lambda _: None)
    download(list_input(f"{elsewhere}/in"), f"{tmp_path}/train")
    assert (tmp_path / "train/x").read_bytes() == b"b" * (20 << 20)


def test_a_server_that_comes_back_is_waited_for(
    s3: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        url = f"s3://{server.bucket()}"
        store_for(url).put("in/x", b"content")
        listing = list_input(f"{url}/in")
        server.stop()
        again = threading.Timer(1.0, server.start)
        again.start()
        try:
            download(listing, f"{tmp_path}/train")
        finally:
            again.join()
    assert (tmp_path / "train/x").read_bytes() == b"content"


def test_files_of_binary_records_are_cut_and_read_where_they_are(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    mine = [b"%d\n\xff" % number for number in range(20_000)]
    with recordio.Writer(tmp_path / "x", compressor="snappy", chunk=4000) as writer:
        for record in mine:
            writer.write(record)
    store_for(f"{elsewhere}/in").put("a.recordio", (tmp_path / "x").read_bytes())
    store_for(f"{elsewhere}/in").put("b.tfrecord", b"".join(frame(record, masked_crc32c()) for record in mine[:100]))
    url = f"{elsewhere}/in"
    table = ShardTable.make(shard_files(Input("train", url, as_="shards"), list_input(url)), name="train")
    assert table.total > 4
    reader = Reader("utf-8", "strict")
    read = [record for number in range(table.total) for record in reader.records(*table.shard(number)[1:])]
    reader.close()
    assert read == mine + mine[:100]
    assert {type(record) for record in read} == {bytes}


def test_a_wrong_key_and_a_missing_bucket_are_told(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((StorageFailed, BadInput)) as caught:
        list_input("s3://no-such-bucket/x", "inputs.train.url")
    assert "no-such-bucket" in str(caught.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageFailed):
        list_input(f"{s3}/wrong-key/", "inputs.train.url")


# -- outputs --


@pytest.mark.parametrize("layout", ["task", "flat"])
def test_outputs_are_committed_once(elsewhere: str, tmp_path: Path, layout: str) -> None:  # noqa: F811
    output = Output("model", f"{elsewhere}/model", layout=layout)
    job = Job(roles={"worker": Role("worker", "true")}, outputs={"model": output})
    check_outputs(job)
    assert there(f"{elsewhere}/model") == {}
    sent = {
        f"worker:{i}": upload(output, made(tmp_path / f"{i}", **{name: name}), "j-1", f"worker:{i}", 1)
        for i, name in enumerate(["a", ODD])
    }
    for _ in range(2):
        for task, uploaded in sent.items():
            assert commit(output, uploaded, "j-1", task, 1) == uploaded
    second = upload(output, f"{tmp_path}/0", "j-1", "worker:0", 2)
    with pytest.raises(CommitRefused):
        commit(output, second, "j-1", "worker:0", 2)
    for _ in range(2):
        finish(output, sent, "j-1", True)
    found = there(f"{elsewhere}/model")
    assert json.loads(found.pop("_SUCCESS"))["files"] == 2
    folders = ("", "") if layout == "flat" else ("worker-0/", "worker-1/")
    assert found == {f"{folders[0]}a": b"a", f"{folders[1]}{ODD}": ODD.encode()}
    with pytest.raises(BadInput, match="exists already"):
        check_outputs(job)


def test_of_two_attempts_at_once_one_commits(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    output = Output("model", f"{elsewhere}/model")
    sent = [
        upload(output, made(tmp_path / name, model=name, **{name: name}), name, "worker:0", 1)
        for name in ("j-1", "j-2")
    ]
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(commit, output, one, job, "worker:0", 1) for job, one in zip(("j-1", "j-2"), sent, strict=True)
        ]
        won = [uploaded for uploaded, run in zip(sent, runs, strict=True) if run.exception() is None]
    assert len(won) == 1
    job = won[0]["id"].partition(".")[0]
    finish(output, {"worker:0": won[0]}, job, True)
    found = there(f"{elsewhere}/model")
    found.pop("_SUCCESS")
    assert found == {"worker-0/model": job.encode(), f"worker-0/{job}": job.encode()}


def test_a_failed_job_and_one_that_overwrites(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    output = Output("model", f"{elsewhere}/model", overwrite=True)
    for job, name, succeeded in (("j-1", "a", True), ("j-2", "b", True), ("j-3", "c", False)):
        uploaded = upload(output, made(tmp_path / job, **{name: job}), job, "worker:0", 1)
        commit(output, uploaded, job, "worker:0", 1)
        finish(output, {"worker:0": uploaded}, job, succeeded)
        if job == "j-2":
            good = there(f"{elsewhere}/model")
            assert sorted(good) == ["_SUCCESS", "worker-0/b"]
    assert there(f"{elsewhere}/model") == good | {"_partial/j-3/worker-0/c": b"j-3"}


def test_saves(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    output = Output("model", f"{elsewhere}/model")
    names = [f"1970-01-01T00-0{i}-00Z" for i in range(3)]
    for i, name in enumerate(names):
        saves.save(output, made(tmp_path / "w", vocab="words", model=f"{i}" * (i + 1)), "worker:0", name)
        (tmp_path / "w/vocab").touch()
        os.utime(tmp_path / "w/vocab", (0, 0))
    assert saves.prune(output, 1, names[2]) == names[:2]
    assert there(f"{elsewhere}/model/_saves/{names[2]}/worker-0") == {"vocab": b"words", "model": b"222"}


# -- checkpoints and the log --


def test_checkpoints(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    url = f"{elsewhere}/ckpt"
    path = tmp_path / "ckpt"
    for step in range(1, 5):
        made(path, fixed="fixed", step=f"{step}" * step)
        made_set = checkpoints.save_set(url, f"{path}", f"worker:{step % 2}", 1, marks=[[0, step]])
        assert made_set is not None
        checkpoints.prune(url, made_set, keep=2)
        assert made_set.number == step
    assert [found.number for found in sets(url)] == [3, 4]
    newest = checkpoints.newest(url)
    assert newest is not None
    assert newest.marks == [[0, 4]]
    store_for(url).put(next(file.at for file in newest.files if file.path == "step"), b"torn")
    with pytest.raises(StorageFailed, match="checkpoint set 4 cannot be restored"):
        checkpoints.restore(url, f"{path}", 4)
    checkpoints.restore(url, f"{path}", 3)
    assert (path / "step").read_text() == "333"


def test_tasks_that_store_sets_at_once_get_numbers_of_their_own(elsewhere: str, tmp_path: Path) -> None:  # noqa: F811
    def store(i: int) -> int:
        found = checkpoints.save_set(f"{elsewhere}/ckpt", made(tmp_path / f"{i}", step=f"{i}"), f"worker:{i}", 1)
        assert found is not None
        return found.number

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(store, range(6))) == [1, 2, 3, 4, 5, 6]
    assert len(sets(f"{elsewhere}/ckpt")) == 6


def test_of_many_who_create_one_name_one_is_told_true(elsewhere: str) -> None:  # noqa: F811
    storage = storage_for(f"{elsewhere}/job")
    assert storage.conditional
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: storage.create("epochs/1", b"%d" % i), range(16)))
    assert sum(won) == 1
    assert storage.read("epochs/1") == b"%d" % won.index(True)
