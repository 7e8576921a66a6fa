"""A feed among real processes: its owner, feeders and readers, each of which may be killed at any point."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from trainmaster.data.feed.owner import sweep
from trainmaster.runtime.feed.channel import FeedError, FeedGone
from trainmaster.runtime.feed.feeder import Feeder
from trainmaster.runtime.feed.layout import Column, column_of
from trainmaster.runtime.feed.reader import Batch, Reader

PROGRAM = Path(__file__).parents[1] / "programs" / "feed_parties.py"
ROWS = 10
BATCH = ROWS * (784 * 4 + 8)  # bytes, and a little
SIZE = 8 * BATCH


class Party:
    """A process that prints what it does, a line of JSON each."""

    def __init__(self, *arguments: str | int | Path, before: str = "") -> None:
        command = [sys.executable, str(PROGRAM), *map(str, arguments)]
        if before:
            command = ["sh", "-c", f'{before}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> Any:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        return json.loads(text) if text else None

    def lines(self) -> list[Any]:
        """Return all that it prints until it ends."""
        return list(iter(self.line, None))

    def command(self, word: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.line()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Party]


@pytest.fixture
def start() -> Iterator[Start]:
    parties: list[Party] = []

    def begin(*arguments: str | int | Path, before: str = "") -> Party:
        parties.append(Party(*arguments, before=before))
        return parties[-1]

    yield begin
    for party in parties:
        party.close()


@pytest.fixture
def path(home: Any) -> Iterator[Path]:
    path = home.runtime / "data.feed"
    yield path
    path.unlink(missing_ok=True)  # the tests kill owners


@pytest.fixture
def owner(start: Start, path: Path) -> Party:
    party = start("own", path, SIZE)
    assert party.line() == "ready"
    return party


def numbers(reader: Reader) -> list[tuple[int, int, int]]:
    """Read to the end, and compare each value."""
    read = []
    for batch in reader:
        stage, partition, number = batch.number
        mark = stage * 1_000_000 + partition * 1000 + number
        assert batch["x"].shape == (ROWS, 784)
        assert (batch["x"] == mark).all()
        assert batch["label"].tolist() == [mark] * ROWS
        read.append(batch.number)
    return read


def small(value: int = 0) -> list[Column]:
    return [column_of("x", np.full((ROWS, 784), value, "f4")), column_of("label", np.full(ROWS, value, "i8"))]


def test_several_feeders_one_of_them_twice(start: Start, owner: Party, path: Path) -> None:
    feeders = [start("feed", path, 1, partition, 20, ROWS) for partition in (0, 1, 2, 1)]
    with Reader(str(path)) as reader:
        read: list[Any] = []
        thread = threading.Thread(target=lambda: read.extend(numbers(reader)))
        thread.start()
        assert [feeder.lines()[-1] for feeder in feeders] == ["flushed"] * 4
        owner.command("end")
        thread.join(60)
    assert sorted(read) == [(1, partition, batch) for partition in range(3) for batch in range(20)]
    for partition in range(3):
        assert [batch for _, other, batch in read if other == partition] == list(range(20)), "in their order"
    until(lambda: (figures := owner.command("figures"))["free"] == figures["size"])
    figures = owner.command("figures")
    assert figures["fed"] == figures["read"] == {f"(1, {partition})": [[0, 20]] for partition in range(3)}
    assert figures["repeated"] == 20


def test_a_full_ring_makes_a_feeder_sleep(start: Start, owner: Party, path: Path) -> None:
    feeder = start("feed", path, 0, 0, 100, ROWS)
    until(lambda: owner.command("figures")["waiting"] == 1)

    def switches() -> list[str]:
        lines = Path(f"/proc/{feeder.process.pid}/status").read_text().splitlines()
        return [line for line in lines if line.startswith(("State", "voluntary"))]

    until(lambda: "sleeping" in switches()[0])  # the answer to `figures` may be sooner than its last steps
    before = switches()
    for _ in range(100):
        assert owner.command("figures")["waiting"] == 1
    assert switches() == before, "it did not wake up once"
    reader = start("read", path)
    assert feeder.lines()[-1] == "flushed"
    owner.command("end")
    assert reader.lines() == [*[[[0, 0, batch], ROWS, True] for batch in range(100)], "end"]


@pytest.mark.parametrize("where", ["greeted", "granted", "half", "written"])
def test_a_feeder_is_killed(start: Start, owner: Party, path: Path, where: str) -> None:
    first = start("hang", path, where)
    assert first.line() == where
    second = start("feed", path, 0, 0, 2, ROWS)  # Spark runs the same partition again
    if where in ("granted", "half"):
        until(lambda: owner.command("figures")["waiting"] == 1, what="the second feeder to wait for the first one")
    first.kill()
    assert second.lines() == [0, 1, "flushed"]
    owner.command("end")
    with Reader(str(path)) as reader:
        assert numbers(reader) == [(0, 0, 0), (0, 0, 1)]
    until(lambda: (figures := owner.command("figures"))["free"] == figures["size"])
    assert owner.command("figures")["repeated"] == int(where == "written")


def test_the_reader_is_killed(start: Start, owner: Party, path: Path) -> None:
    first = start("read", path, 2)
    feeder = start("feed", path, 0, 0, 30, ROWS)
    assert [first.line()[0] for _ in range(2)] == [[0, 0, 0], [0, 0, 1]]
    until(lambda: owner.command("figures")["waiting"] == 1, what="the ring to be full")
    first.kill()
    with Reader(str(path)) as reader:  # the owner may hear of it before it hears of the death
        batch = reader.read()
        assert batch is not None
        assert batch.number == (0, 0, 0), "a batch that was not given back comes again"
        del batch
        rest = threading.Thread(target=lambda: read.extend(numbers(reader)))
        read: list[Any] = []
        rest.start()
        assert feeder.lines()[-1] == "flushed"
        owner.command("end")
        rest.join(60)
    assert read == [(0, 0, batch) for batch in range(1, 30)]


def test_the_owner_is_killed(start: Start, owner: Party, path: Path) -> None:
    reader = start("read", path, 2)
    feeder = start("feed", path, 0, 0, 100, ROWS)
    reader.line()
    until(lambda: owner.command("figures")["waiting"] == 1)
    reader.kill()
    waiting = start("hang", path, "greeted")
    waiting.line()
    other = Reader(str(path))
    owner.kill()
    assert feeder.lines()[-1].startswith(f"FeedGone: the feed at {path} is gone, its agent has ended")
    assert feeder.process.wait() == 1
    with pytest.raises(FeedGone, match="its agent has ended"):
        list(other)
    with pytest.raises(FeedGone, match="Connection refused"):
        Feeder(str(path))
    assert sweep(path.parent) == [path]
    with pytest.raises(FeedGone, match="No such file"):
        Feeder(str(path))


def test_a_socket_is_taken_over_from_the_dead_alone(start: Start, owner: Party, path: Path) -> None:
    assert sweep(path.parent) == []
    assert "has an owner already" in start("own", path, SIZE).line()
    owner.kill()
    dead = path.with_name(f"{path.name}.{owner.process.pid}")  # it was killed just before it listened
    dead.touch()
    assert start("own", path, SIZE).line() == "ready"
    assert sweep(path.parent) == [dead]


def test_terminate_stops_feeders_at_once(start: Start, owner: Party, path: Path) -> None:
    feeders = [start("feed", path, 0, partition, 100, ROWS) for partition in range(2)]
    until(lambda: owner.command("figures")["waiting"] == 2)
    with Feeder(str(path)) as idle, Reader(str(path)) as reader:
        assert not idle.has_stopped
        kept = reader.read()
        reader.terminate()
        assert [feeder.lines()[-1] for feeder in feeders] == ["stopped"] * 2
        until(lambda: idle.has_stopped)
        assert not idle.put((0, 5, 0), small())
        assert not idle.flush()
        with Feeder(str(path)) as late:
            assert not late.put((0, 6, 0), small())
        while reader.read() is not None:  # what was under way
            pass
        assert kept is not None
        assert owner.command("figures")["held"] >= BATCH
        del kept
        until(lambda: (figures := owner.command("figures"))["free"] == figures["size"])


def test_a_row_that_is_too_large(owner: Party, path: Path) -> None:
    with Feeder(str(path)) as feeder:
        with pytest.raises(
            FeedError, match=r"a row has 200,\d+ bytes, and a batch may have .*, a third of the feed's ring"
        ):
            feeder.put((3, 4, 5), [column_of("x", np.zeros((1, 200_000), "u1"))])
        with pytest.raises(FeedError, match=r"a batch of 2 rows has .* fewer rows .*stage 3, partition 4, batch 5"):
            feeder.put((3, 4, 5), [column_of("x", np.zeros((2, 100_000), "u1"))])
        assert feeder.put((3, 4, 5), small()), "the feeder goes on"


def test_too_little_memory(start: Start, path: Path) -> None:
    assert (
        "the feed's ring needs 1,125,899,906,842,624 bytes of shared memory, and " in start("own", path, 1 << 50).line()
    )
    words = start("own", path, 10_000_000, before="ulimit -f 100").line()
    assert "needs 10,000,000 bytes of shared memory, and they cannot be had: File too large" in words.replace(
        "10,000,064", "10,000,000"
    )
    assert not path.exists()


def test_memory_is_used_again_only_when_nothing_refers_to_it(owner: Party, path: Path) -> None:
    with Feeder(str(path)) as feeder, Reader(str(path)) as reader:
        for number in range(3):
            feeder.put((0, 0, number), small(number))
        first, second = reader.read(), reader.read()
        assert isinstance(first, Batch)
        assert isinstance(second, Batch)
        row, arrow = first["x"][3], second.arrow()
        del first, second
        for number in range(3, 40):
            feeder.put((0, 0, number), small(number))
            batch = reader.read()
            assert batch is not None
            assert batch.number[2] == number - 1
            del batch
        assert (row == 0).all()
        assert arrow.column(1).to_pylist() == [1] * ROWS
        ahead = 1  # the reader was sent one that the program has not asked for yet
        until(lambda: (2 + ahead) * BATCH <= owner.command("figures")["held"] < (3 + ahead) * BATCH)
        row[:] = 5
        del row, arrow
        until(lambda: owner.command("figures")["held"] < (1 + ahead) * BATCH)


def test_what_a_program_still_has_when_it_ends_well_was_read(start: Start, owner: Party, path: Path) -> None:
    with Feeder(str(path)) as feeder:
        for number in range(3):
            feeder.put((0, 0, number), small(number))
        owner.command("end")
    assert start("leave", path).lines() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], "end"]
    until(lambda: owner.command("figures")["read"] == {"(0, 0)": [[0, 3]]})


def test_a_program_that_keeps_too_much_is_warned(
    start: Start, owner: Party, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start("feed", path, 0, 0, 20, ROWS)
    kept: list[Batch] = []
    numbers: list[int] = []

    def keep() -> None:
        while len(numbers) < 20 and (batch := reader.read()) is not None:
            kept.append(batch)
            numbers.append(batch.number[2])

    with caplog.at_level(logging.WARNING), Reader(str(path)) as reader:
        thread = threading.Thread(target=keep)
        thread.start()
        until(lambda: "copy what is kept" in caplog.text)
        assert "bytes of the feed's ring of 251,5" in caplog.text
        while thread.is_alive():
            kept.clear()
            thread.join(0.01)
    assert numbers == list(range(20))


def test_one_reader_at_a_time(owner: Party, path: Path) -> None:
    with Reader(str(path)), pytest.raises(FeedError, match="has a reader already"):
        Reader(str(path))
    Reader(str(path)).close()


def test_a_forked_child_takes_nothing_from_its_parent(start: Start, owner: Party, path: Path) -> None:
    with Feeder(str(path)) as feeder:
        feeder.put((0, 0, 7), small(7))
        program = start("fork", path)
        assert program.line().startswith("child: this iterator was begun before a fork")
        assert program.line() == "child has ended"
        assert owner.command("figures")["held"] >= BATCH
        assert program.command("go on") == 7.0
        until(lambda: owner.command("figures")["held"] == 0)


def test_a_close_ends_a_read_in_another_thread(owner: Party, path: Path) -> None:
    reader = Reader(str(path))
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(reader.read()))
    thread.start()
    reader.close()
    thread.join(60)
    assert answers == [None]


def test_a_batch_behind_the_end_is_refused(owner: Party, path: Path) -> None:
    with Feeder(str(path)) as feeder:
        feeder.put((0, 0, 0), small())
        owner.command("end")
        assert feeder.put((0, 0, 0), small()), "a repeated one is not"
        with pytest.raises(FeedError, match=r"batch \(0, 0, 1\) comes after the end of the feed"):
            feeder.put((0, 0, 1), small())


@pytest.mark.parametrize(
    "messages",
    [
        [b"garbage"],
        [b"[]"],
        [b'{"op":"written"}'],
        [b'{"op":"feed","v":"1.0"}', b'{"op":"written"}'],
        [b'{"op":"feed","v":"1.0"}', b'{"op":"reserve","number":[0,0],"size":5}'],
        [b'{"op":"feed","v":"1.0"}', b'{"op":"reserve","number":[0,0,0],"size":5000000}'],
        [b'{"op":"feed","v":"1.0"}', b'{"op":"next"}'],
        [b'{"op":"read","v":"1.0"}', b'{"op":"release","at":64}'],
        [b"x" * 5000],
    ],
)
def test_what_is_no_message_ends_its_connection_alone(owner: Party, path: Path, messages: list[bytes]) -> None:
    with Feeder(str(path)) as feeder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(path))
        for message in messages:
            stranger.send(message)
        while stranger.recv(4096):
            pass
        assert feeder.put((0, 0, 0), small())
        assert feeder.flush()


def test_another_version_is_refused(owner: Party, path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(path))
        stranger.send(b'{"op":"feed","v":"2.0"}')
        assert b"speaks version 1.0 of its protocol, and not 2.0" in stranger.recv(4096)


def test_nobody_can_make_the_memory_smaller(owner: Party, path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(path))
        stranger.send(b'{"op":"feed","v":"1.0"}')
        _, descriptors, _, _ = socket.recv_fds(stranger, 4096, 1)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptors[0], 0)
    os.close(descriptors[0])


def test_an_interrupted_feeder_is_closed(start: Start, owner: Party, path: Path) -> None:
    feeder = start("feed", path, 0, 0, 100, ROWS)
    until(lambda: owner.command("figures")["waiting"] == 1)
    feeder.process.send_signal(signal.SIGINT)
    feeder.process.wait()
    until(lambda: owner.command("figures")["waiting"] == 0)
