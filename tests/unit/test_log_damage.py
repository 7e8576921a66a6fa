"""A log whose lines are whole and wrong is damaged: readers say which and why, in one error, and never tell a wrong state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from scripted import Script, job, role

from trainmaster.cli.tm import run
from trainmaster.client.jobs import actions
from trainmaster.client.watch.follow import _Seen, _Stored
from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import encode
from trainmaster.log.replay import replayed
from trainmaster.log.storage import storage_for

Records = list[dict[str, Any]]


def write(folder: Path, damage: Callable[[Records], object]) -> Path:
    """Write the log of a job whose program runs, damaged."""
    script = Script(job(worker=role()))
    script.start("worker:0")
    script.succeed("worker:0")
    records = [json.loads(encode(event)) for event in script.log]
    damage(records)
    lines = [
        record if isinstance(record, bytes) else json.dumps(record, separators=(",", ":")).encode()
        for record in records
    ]
    storage_for(folder).replace("events/1-1.jsonl", b"\n".join(lines) + b"\n", durable=False)
    return folder


def at(records: Records, kind: str) -> int:
    return next(place for place, record in enumerate(records) if record["type"] == kind)


def change(kind: str, **fields: Any) -> Callable[[Records], object]:
    return lambda records: records[at(records, kind)].update(fields)


def put(kind: str, line: bytes) -> Callable[[Records], object]:
    return lambda records: records.__setitem__(at(records, kind), line)  # type: ignore[call-overload]


DAMAGES: list[tuple[Callable[[Records], object], str]] = [
    (put("granted", b'{"v":"1.1","n":4,"at":10'), "is not an event: '{\"v\":"),
    (put("granted", b"\xff\xfe{}"), "is not an event"),
    (put("granted", b"null"), "is not an event: 'null"),
    (put("granted", b"[" * 100_000), "is not an event"),
    (change("granted", n="4"), "is not an event"),
    (change("granted", at="yesterday"), "is not an event"),
    (change("granted", type=["granted"]), "is not an event"),
    (change("granted", task="worker:9"), "cannot follow: granted: KeyError('worker:9')"),
    (change("asked", tasks=7), "cannot follow: asked: tasks must be list, not 7"),
    (lambda records: records[at(records, "granted")].pop("task"), "cannot follow: granted: task is missing"),
    (change("agent-connected", type="started", attempt=1), "cannot follow"),
    (change("ready", type="uploaded", outputs={}), "cannot follow: uploaded: worker:0 is staging, where uploaded cannot come"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "problem"), DAMAGES)
def test_damage_is_reported_in_one_error(tmp_path: Path, damage: Callable[[Records], object], problem: str) -> None:
    with pytest.raises(StorageFailed) as raised:
        replayed(storage_for(write(tmp_path, damage)))
    assert raised.value.message.startswith("the event log is damaged: ")
    assert problem in raised.value.message
    assert raised.value.anchor == "log-damaged"


def test_whoever_follows_is_reported_alike(home: Any) -> None:
    write(home.state / "jobs" / "test-aaaaaa", change("ready", type="uploaded", outputs={}))
    stored = _Stored("test-aaaaaa", _Seen(), logs=False, tail=None, on_this_machine=True)
    with pytest.raises(StorageFailed, match="worker:0 is staging, where uploaded cannot come"):
        list(stored.news())


def test_a_job_with_a_damaged_log_is_ended_by_force(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home.state / "jobs" / "test-aaaaaa", change("asked", tasks=7))
    backend = mock.Mock()
    monkeypatch.setattr(actions, "backend_of", lambda job: backend)
    assert actions.kill("test-aaaaaa", force=True) is None
    backend.end.assert_called_once()


def ended(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        run(list(arguments))
    return ended.value.code


def test_the_events_of_a_damaged_log_are_shown_as_far_as_they_are_events(
    home: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(home.state / "jobs" / "test-aaaaaa", change("asked", tasks=7))
    assert ended("events", "test-aaaaaa") == 0
    assert "{'tasks': 7}" in capsys.readouterr().out
    write(folder, put("granted", b"null"))
    assert ended("events", "test-aaaaaa") == 3
    captured = capsys.readouterr()
    assert "the job was submitted" in captured.out
    assert "is not an event: 'null" in captured.err


def test_nothing_is_proven_from_a_damaged_log(home: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        home.state / "jobs" / "test-aaaaaa",
        change("started", type="shards-done", input="train", ranges=[[0, 1]], records=1, mark=1),
    )
    assert ended("audit", "test-aaaaaa") == 3
    assert "shards-done: records must be list or none, not 1" in capsys.readouterr().err
