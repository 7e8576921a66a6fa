"""A huge or sparse file in a storage, which another user may have put there, exhausts nobody: it is damaged, and other jobs are shown."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from base64 import b64encode
from pathlib import Path

import pytest
from log_jobs import Job

from trainmaster.core.errors import BadInput
from trainmaster.data.store.stores import store_for
from trainmaster.log import storage as storages
from trainmaster.log.documents.jobs import known_site, read_job
from trainmaster.log.metrics.files import read_metrics
from trainmaster.log.reader import Reader
from trainmaster.log.snapshots import newest, write_snapshot
from trainmaster.log.storage import DOCUMENT, LISTING, Damaged, LocalStorage, storage_for
from trainmaster.master.steps import check_listing

HUGE = 20 << 30  # bytes, none of them on the disk
LIMIT = 2 << 30  # bytes of memory of a reader

READ = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))
from trainmaster.client.ui.places import StoragePlace
from trainmaster.client.ui.sources import OfPlace
from trainmaster.core.errors import TrainmasterError
from trainmaster.log.index import Jobs, OfStorage
from trainmaster.log.metrics.files import read_metrics
from trainmaster.log.storage import storage_for
place = StoragePlace(sys.argv[1])
for job in Jobs(OfStorage(storage_for(sys.argv[1]))).refresh():
    print(job.id, job.name, job.unreadable)
for name in sys.argv[2:]:
    source = place.source(name)
    source.description()
    try:
        source.status(), read_metrics(source.past.storage)
    except TrainmasterError as error:
        print(error.message)
"""


def grow(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(HUGE)


PLACES = (
    "job.json",
    "site.json",
    "metrics/1-0.samples",
    "events/1-1.jsonl",
    "events/2-1.jsonl",
    "snapshots/2-1-x.snapshot",
)


def test_a_place_with_huge_files_is_shown_without_exhausting_the_reader(tmp_path: Path) -> None:
    place = LocalStorage(tmp_path / "place")
    for number, file in enumerate(PLACES):
        Job(place, f"digits-{number:06}", 100.0, folder="")
        grow(tmp_path / f"place/digits-{number:06}" / file)
    Job(place, "sound-aaaaaa", 100.0, folder="")
    names = [f"digits-{number:06}" for number in range(len(PLACES))]
    done = subprocess.run(
        [sys.executable, "-c", READ, f"{tmp_path}/place", *names],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sound-aaaaaa sound \n" in done.stdout
    assert "1-0.samples is damaged: it has more than 64 MiB" in done.stdout


def test_a_line_without_end_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.log.reader.LISTING", 1 << 16)
    job = Job(LocalStorage(tmp_path), "digits-aaaaaa", 100.0, folder="")
    with (tmp_path / "digits-aaaaaa/events/1-1.jsonl").open("ab") as file:
        file.write(b"x" * (3 << 20))
    reader = Reader(job.storage)
    assert reader.poll() is not None
    with pytest.raises(Damaged, match=r"events/1-1.jsonl has a line of more than 0 MiB") as caught:
        reader.poll()
    assert caught.value.anchor == "log-damaged"
    (tmp_path / "digits-aaaaaa/events/2-1.jsonl").write_bytes(b"x" * (3 << 20))
    with pytest.raises(Damaged, match=r"events/2-1.jsonl has a line"):
        Reader(job.storage).poll()


@pytest.mark.parametrize("url", ["", "memory://huge"])
def test_a_whole_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(storages, "DOCUMENT", 1 << 20)
    storage, store = storage_for(url or tmp_path), store_for(url or f"{tmp_path}", is_own=True)
    storage.replace("job.json", b"x" * (1 << 20))
    assert len(storage.read("job.json") or b"") == 1 << 20
    storage.replace("job.json", b"x" * (1 + (1 << 20)))
    with pytest.raises(Damaged, match=r"job.json is damaged: it has more than 1 MiB") as caught:
        storage.read("job.json")
    assert (caught.value.place, caught.value.anchor) == (f"{storage.url}/job.json", "damaged-file")
    assert len(storage.read("job.json", 1) or b"") == 1 << 20
    assert len(storage.read("job.json", 0, 10) or b"") == 10
    for module in ("trainmaster.data.store.stores", "trainmaster.log.storage"):
        monkeypatch.setattr(f"{module}.LISTING", 1 << 20)
    with pytest.raises(Damaged, match="more than 1 MiB"):
        store.get("job.json")


def test_documents_of_a_jobs_directory_are_read_up_to_their_bound(tmp_path: Path) -> None:
    grow(tmp_path / "job.json")
    grow(tmp_path / "site.json")
    with pytest.raises(Damaged, match=r"job.json is damaged: it has more than 64 MiB"):
        read_job(tmp_path)
    assert known_site(tmp_path) == {}


def test_a_snapshot_that_is_too_large_is_passed_over(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    write_snapshot(storage, 1, 1, "code", b"state")
    for n in range(2, 9):
        grow(tmp_path / f"snapshots/{n}-1-code.snapshot")
    assert newest(storage, "code", lambda _, n: n < 3) == (b"state", 1, 1)
    assert newest(storage, "code", lambda _, n: True) is None


def test_points_that_unpack_to_more_than_a_series_has_are_passed_over(tmp_path: Path) -> None:
    packed = b64encode(zlib.compress(bytes(1 << 26))).decode()
    entry = {"task": "", "name": "cpu", "width": 1, "last": 1, "value": 1, "interrupted": False, "content": packed}
    lines = [json.dumps({"version": "1.0"}), *(json.dumps({**entry, "points": points}) for points in (2, 1 << 21, -1))]
    LocalStorage(tmp_path).replace("metrics/1-1.series", "\n".join(lines).encode())
    assert read_metrics(LocalStorage(tmp_path)).series() == []


def test_many_files_of_samples_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        LocalStorage(tmp_path).replace(f"metrics/{n + 1}-0.samples", bytes(DOCUMENT // 2))
    with pytest.raises(Damaged, match=r"metrics is damaged: it has more than 64 MiB"):
        read_metrics(LocalStorage(tmp_path))


def test_a_listing_that_readers_would_refuse_is_refused_when_it_is_made() -> None:
    check_listing("data", LISTING)
    with pytest.raises(BadInput, match="the list of the files of input data takes 513 MiB, and may take 512 MiB"):
        check_listing("data", LISTING + (1 << 20))
