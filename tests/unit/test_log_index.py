"""The list of jobs under a state directory."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from log_jobs import Job

from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import Event, encode
from trainmaster.log import index
from trainmaster.log.index import INDEX, Headline, Jobs, OfStorage, jobs, note_end
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import open_writer

USER = pwd.getpwuid(os.getuid()).pw_name


def states(state: LocalStorage) -> list[tuple[str, str]]:
    return [(job.id, job.state) for job in jobs(state)]


def test_no_jobs(tmp_path: Path) -> None:
    assert jobs(LocalStorage(tmp_path / "none")) == []


def test_the_newest_job_is_first(tmp_path: Path) -> None:
    state = LocalStorage(tmp_path)
    first = Job(state, "digits-aaaaaa", 100.0)
    Job(state, "digits-bbbbbb", 200.0)
    os.mkdir(tmp_path / "jobs" / "just-made")
    assert states(state) == [("digits-bbbbbb", "pending"), ("digits-aaaaaa", "pending"), ("just-made", "pending")]
    first.tell("generation-formed", 110.0, generation=1)
    first.tell("progressed", 111.0, text='"type":"ended"')
    first.tell("generation-formed", 150.0, generation=2)
    assert states(state)[1] == ("digits-aaaaaa", "running")
    first.tell("ending", 160.0, state="failed", reason="exit")
    assert states(state)[1] == ("digits-aaaaaa", "ending")
    first.tell("ended", 170.0, state="failed", reason="exit")
    ended = jobs(state)[1]
    assert ended == Headline("digits-aaaaaa", "digits", "failed", "exit", 100.0, 110.0, 170.0, 6, 1, user=USER, tasks=1)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'{"version":1,"jobs":[{"id":"x","more":1}]}',
        b"null",
        b'{"version":2,"jobs":[{"id":"a-aaaaaa","submitted":"x"}]}',
    ],
)
def test_the_index_is_a_cache(tmp_path: Path, content: bytes | None) -> None:
    state = LocalStorage(tmp_path)
    Job(state, "a-aaaaaa", 100.0).tell("ended", 101.0, state="succeeded")
    found = jobs(state)
    if content is None:
        state.remove(INDEX)
    else:
        state.replace(INDEX, content)
    assert jobs(state) == found
    assert state.read(INDEX)


def test_an_ended_job_is_not_read_again(tmp_path: Path) -> None:
    state = LocalStorage(tmp_path)
    job = Job(state, "a-aaaaaa", 100.0)
    job.tell("ended", 101.0, state="succeeded")
    found = jobs(state)
    job.storage.remove("events/1-1.jsonl")
    assert jobs(state) == found


def test_a_job_that_is_gone_is_not_listed(tmp_path: Path) -> None:
    state = LocalStorage(tmp_path)
    job = Job(state, "a-aaaaaa", 100.0)
    assert len(jobs(state)) == 1
    job.storage.remove("events/1-1.jsonl")
    os.rmdir(f"{job.storage.root}/events")
    os.rmdir(job.storage.root)
    assert jobs(state) == []


def test_a_log_that_cannot_be_read_says_why_and_hides_no_other(tmp_path: Path) -> None:
    state = LocalStorage(tmp_path)
    Job(state, "good-aaaaaa", 100.0)
    bad = Job(state, "bad-bbbbbb", 200.0)
    bad.writer.append([b'{"v":"9.0","n":2,"at":3,"epoch":1,"type":"ended"}\n'], sync=True)
    found = jobs(state)
    assert [job.id for job in found] == ["bad-bbbbbb", "good-aaaaaa"]
    assert "version 9.0" in found[0].unreadable
    assert not found[1].unreadable


@pytest.mark.parametrize(
    "data",
    [{"job": {"roles": [1]}}, {"job": {}, "since": "x"}, {"job": 3}, {"job": {"roles": {"worker": {"replicas": "x"}}}}],
)
def test_a_field_of_a_wrong_type_hides_no_other_job(data: dict[str, Any], tmp_path: Path) -> None:
    state = LocalStorage(tmp_path)
    Job(state, "good-aaaaaa", 100.0)
    bad = open_writer(LocalStorage(tmp_path / "jobs" / "bad-bbbbbb"), 1, 0)
    bad.append([encode(Event(1, 200.0, 1, "submitted", data))], sync=True)
    headlines = {job.id: job for job in jobs(state)}
    assert not headlines["good-aaaaaa"].unreadable
    assert "event 1 (submitted)" in headlines["bad-bbbbbb"].unreadable


def test_texts_of_a_log_take_little_room_in_the_list(tmp_path: Path) -> None:
    state = LocalStorage(tmp_path)
    Job(state, "a-aaaaaa", 100.0, user="u" * 10_000).tell("ended", 101.0, state="failed", reason="r" * 10_000)
    (job,) = jobs(state)
    assert len(job.user + job.reason) < 1000


def test_a_job_of_a_place_that_cannot_be_read_is_so_at_each_look(tmp_path: Path) -> None:
    place = LocalStorage(tmp_path)
    Job(place, "bad-bbbbbb", 200.0, folder="").writer.append(
        [b'{"v":"9.0","n":2,"at":3,"epoch":1,"type":"ended"}\n'], sync=True
    )
    looks = Jobs(OfStorage(place))
    assert [looks.refresh()[0].word for _ in range(3)] == ["unreadable"] * 3


def test_events_that_do_not_count_are_forgotten(tmp_path: Path) -> None:
    state = LocalStorage(tmp_path)
    job = Job(state, "a-aaaaaa", 100.0)
    job.tell("generation-formed", 101.0)
    assert states(state) == [("a-aaaaaa", "running")]
    late = encode(Event(2, 102.0, 2, "master-started", {"read": {"1": 1}}))
    open_writer(job.storage, 2, 1).append([late], sync=True)
    assert states(state) == [("a-aaaaaa", "pending")]


def test_events_that_do_not_count_any_more_when_they_have_been_read_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LocalStorage(tmp_path)
    job = Job(state, "a-aaaaaa", 100.0)
    job.tell("generation-formed", 101.0)
    late = encode(Event(2, 102.0, 2, "master-started", {"read": {"1": 1}}))
    tell = index.HEADLINES["generation-formed"]

    def then(event: Event) -> dict[str, Any]:
        open_writer(job.storage, 2, 1).append([late], sync=True)
        return tell(event)

    monkeypatch.setitem(index.HEADLINES, "generation-formed", then)
    assert states(state) == [("a-aaaaaa", "pending")]


def elsewhere(state: LocalStorage, key: str, root: str) -> LocalStorage:
    """The storage of a job of this machine that keeps it under `root`."""
    state.replace(f"jobs/{key}/job.json", json.dumps({"name": "x", "storage": root}).encode())
    return LocalStorage(f"{root.rstrip('/')}/{key}")


def test_a_job_is_listed_as_its_storage_tells_wherever_that_is(tmp_path: Path) -> None:
    state = LocalStorage(tmp_path / "state")
    storage = elsewhere(state, "far-aaaaaa", f"{tmp_path}/far/")
    writer = open_writer(storage, 1, 0)
    writer.append([encode(Event(1, 100.0, 1, "submitted", {"id": "far-aaaaaa", "job": {"name": "far"}}))], sync=True)
    assert states(state) == [("far-aaaaaa", "pending")]
    writer.append([encode(Event(2, 101.0, 1, "ended", {"state": "succeeded"}))], sync=True)
    assert states(state) == [("far-aaaaaa", "succeeded")]


def test_a_storage_that_cannot_be_reached_is_asked_once_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = LocalStorage(tmp_path)
    Job(state, "good-aaaaaa", 100.0)
    for n in range(5):
        elsewhere(state, f"far{n}-aaaaaa", "s3://nobody")
    asked: list[str] = []

    def dead(place: str) -> LocalStorage:
        if "://" in place:
            asked.append(place)
            raise StorageFailed("could not list a folder: nobody answers")
        return LocalStorage(place)

    monkeypatch.setattr(index, "storage_for", dead)
    found = {job.id: job.unreadable for job in jobs(state)}
    assert len(asked) == 1
    assert found.pop("good-aaaaaa") == ""
    assert set(found.values()) == {"could not list a folder: nobody answers"}
    assert len(found) == 5


def test_an_ended_job_stays_ended_where_its_storage_cannot_be_read(tmp_path: Path) -> None:
    """A command that saw the end has noted it; the list need not have been asked while the storage was there."""
    state = LocalStorage(tmp_path / "state")
    elsewhere(state, "far-aaaaaa", "s3://nobody")
    end = {
        "job": "far-aaaaaa", "name": "far", "state": "failed", "reason": {"reason": "exit"}, "submitted": 5.0, "ended": 9.0,
    }  # fmt: skip
    note_end(f"{state.root}/jobs/far-aaaaaa", {**end, "state": "running", "ended": None})
    assert jobs(state)[0].lost
    note_end(f"{state.root}/jobs/far-aaaaaa", end)
    assert jobs(state) == [Headline("far-aaaaaa", "far", "failed", "exit", 5.0, None, 9.0, user=USER)]


def test_a_storage_that_is_not_mounted_any_more_makes_no_running_job_a_waiting_one(tmp_path: Path) -> None:
    state = LocalStorage(tmp_path / "state")
    storage = elsewhere(state, "far-aaaaaa", f"{tmp_path}/far/")
    writer = open_writer(storage, 1, 0)
    writer.append([encode(Event(1, 100.0, 1, "submitted", {"id": "far-aaaaaa", "job": {"name": "far"}}))], sync=True)
    writer.append([encode(Event(2, 101.0, 1, "generation-formed", {}))], sync=True)
    assert states(state) == [("far-aaaaaa", "running")]
    (tmp_path / "far").rename(tmp_path / "away")
    (job,) = jobs(state)
    assert (job.state, job.lost) == ("running", True)
    assert "has no events of it" in job.unreadable
    (tmp_path / "away").rename(tmp_path / "far")
    assert [(job.state, job.lost) for job in jobs(state)] == [("running", False)]
