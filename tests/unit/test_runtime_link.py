"""Telling the agent something never waits, whatever other threads of the program ask and wherever the agent is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT, until

from trainmaster.runtime.elastic import Rendezvous
from trainmaster.runtime.link import Link

AT_ONCE = 30.0  # s; a call that waits for the agent does so for ever


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The path of an agent's socket, and the socket, which nobody serves yet."""
    with socket.socket(socket.AF_UNIX) as listener:
        yield str(tmp_path / "s"), listener


def asking(link: Link) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(link.ask({"op": "lease"})), daemon=True)
    thread.start()
    return thread, answers


def frame(file: Any, op: str) -> dict[str, Any]:
    """The next frame of that kind."""
    while True:
        received: dict[str, Any] = json.loads(file.readline())
        if received["op"] == op:
            return received


def test_telling_does_not_wait_for_a_thread_that_asks_an_agent_that_is_away(place: tuple[str, socket.socket]) -> None:
    path, listener = place
    link = Link(path)
    thread, answers = asking(link)
    until(lambda: link._pause > 0.02, what="the first failure to connect")
    began = time.monotonic()
    assert [link.post({"op": "progress"}) for _ in range(5)] == [False] * 5
    link.flush(0.1)
    assert time.monotonic() - began < AT_ONCE
    listener.bind(path)
    listener.listen()
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as file:
        asked = frame(file, "lease")
        file.write(json.dumps({"id": asked["id"], "shards": []}).encode() + b"\n")
        file.flush()
        thread.join(AT_ONCE)
    assert answers == [{"id": asked["id"], "shards": []}]
    link.end()


def test_telling_does_not_wait_for_a_thread_that_waits_for_its_answer(place: tuple[str, socket.socket]) -> None:
    path, listener = place
    listener.bind(path)
    listener.listen()
    link = Link(path)
    thread, answers = asking(link)
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as file:
        asked = frame(file, "lease")
        began = time.monotonic()
        assert link.post({"op": "progress", "value": 0.5})
        link.poll()
        assert time.monotonic() - began < AT_ONCE
        assert frame(file, "progress")["value"] == 0.5
        file.write(json.dumps({"id": asked["id"]}).encode() + b"\n")
        file.flush()
        thread.join(AT_ONCE)
    assert answers == [{"id": asked["id"]}]
    link.end()


def test_a_connection_that_breaks_while_somebody_tells_is_made_anew_by_who_asks(
    place: tuple[str, socket.socket],
) -> None:
    path, listener = place
    listener.bind(path)
    listener.listen()
    link = Link(path)
    thread, answers = asking(link)
    first, _ = listener.accept()
    with first, first.makefile("rb") as file:
        frame(file, "lease")
    link.post({"op": "progress"})
    second, _ = listener.accept()
    with second, second.makefile("rwb") as file:
        asked = frame(file, "lease")
        file.write(json.dumps({"id": asked["id"]}).encode() + b"\n")
        file.flush()
        thread.join(AT_ONCE)
    assert answers == [{"id": asked["id"]}]
    link.end()


def test_a_link_that_has_ended_connects_no_more(place: tuple[str, socket.socket]) -> None:
    path, listener = place
    listener.bind(path)
    listener.listen()
    link = Link(path)
    link.end()
    assert not link.post({"op": "progress"})
    assert link.ask({"op": "lease"}) is None
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_who_waits_for_a_round_is_freed_where_another_thread_leaves(
    place: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, listener = place
    listener.bind(path)
    listener.listen()
    monkeypatch.setenv("TRAINMASTER_SOCKET", path)
    rendezvous, errors = Rendezvous(), list[str]()

    def join() -> None:
        with pytest.raises(RuntimeError) as raised:
            rendezvous.join()
        errors.append(str(raised.value))

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    reports, _ = listener.accept()  # says in which phase the program is
    connection, _ = listener.accept()
    with reports, connection, connection.makefile("rb") as file:
        frame(file, "join")
        rendezvous.leave()
        thread.join(LIMIT)
    assert errors == ["the rendezvous elastic: another thread has left it, or joined anew"]
