"""What the master tells its readers: all of it, however slowly they read and whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from log_lines import line
from waiting import until_async

from trainmaster import __version__
from trainmaster.client.jobs.this_machine import connect_to
from trainmaster.client.watch.disconnected import Disconnected
from trainmaster.client.watch.live import Live
from trainmaster.core.decide.drive import Drive
from trainmaster.core.errors import StorageFailed
from trainmaster.core.machine.events import Event, decode, encode
from trainmaster.core.machine.state import State, populate
from trainmaster.core.spec.reading import job_from
from trainmaster.log.metrics.files import read_metrics
from trainmaster.log.segments import segments
from trainmaster.log.snapshots import write_snapshot
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import open_writer
from trainmaster.master.connections import feed
from trainmaster.master.connections.feed import Feed
from trainmaster.master.connections.serve import Listener
from trainmaster.master.measuring import Measuring
from trainmaster.master.turn import Turns
from trainmaster.web.rest import rest
from trainmaster.web.rest.encoding import Encoded


class Agents:
    """No agent is there."""

    def of(self, task: str) -> None:
        return None


class Host:
    """A master as its feed sees it."""

    def __init__(self, folder: Path) -> None:
        self.agents = Agents()
        self.directory = str(folder)
        self.storage = LocalStorage(folder)
        self.samples: dict[str, dict[str, Any]] = {}
        self.storage_trouble = ""
        self.over = False
        self.state = State(id="t-aaaaaa")
        self.turns = Turns(Drive(self.state))
        populate(self.state, job_from({"name": "t", "roles": {"worker": {"command": "true"}}}))
        self.feed = Feed(self)  # type: ignore[arg-type]
        self._writer = open_writer(self.storage, 1, 0)

    @functools.cached_property
    def measuring(self) -> Measuring:
        return Measuring(self.storage, 1, time.time, self.feed.wake, self.feed.progress)

    async def tell(self, *lines: bytes, to_log: bool = True) -> None:
        if to_log:
            self._writer.append(lines, sync=False)
        self.state.n = decode(lines[-1]).n
        await self.feed.publish([decode(one) for one in lines])

    async def end(self) -> None:
        self.over = True
        await self.feed.wake()


def ready(n: int) -> bytes:
    return line(n).replace(b'"type":"progressed"', b'"type":"ready"').replace(b'"task":', b'"attempt":1,"task":')


def started(n: int, attempt: int) -> bytes:
    return encode(
        Event(n, 1000.0 + n, 1, "started", {"task": "worker:0", "attempt": attempt, "pid": 7, "elapsed": 1.0})
    )


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(feed, "RECENT", 100)
    monkeypatch.setattr(feed, "AGAIN", 0.01)
    return Host(tmp_path)


def test_a_reader_that_falls_far_behind_skips_nothing(host: Host) -> None:
    async def act() -> None:
        got: list[int] = []
        events = host.feed.events(0, True)
        for n in range(1, 5001):
            await host.tell(line(n))
            if n in (50, 2000, 2001):
                while len(got) < n - 20:
                    got.append((await anext(events))["n"])
        await host.end()
        got += [record["n"] async for record in events]
        assert got == list(range(1, 5001))

    asyncio.run(act())


def test_readers_hear_of_events_and_samples_as_they_come(host: Host) -> None:
    async def act() -> None:
        version = await host.feed.changed(0, 60)
        assert version > 0
        assert await host.feed.changed(version, 0.01) == version
        waiting = asyncio.create_task(host.feed.changed(version, 60))
        await host.tell(line(1))
        later = await waiting
        assert later > version
        waiting = asyncio.create_task(host.feed.changed(later, 60))
        host.measuring.sample("worker:0", {"type": "sample", "cpu": 0.5, "memory": 2**20, "gpus": [], "progress": None})
        host.measuring.report("worker:0", {"step": 3, "metrics": {"loss": 0.25, "<script>": 1}})
        assert await waiting > later
        names = ["cpu", "memory", "step", "metric.loss", "metric.<script>"]
        assert [series.name for series in await host.feed.metrics(["worker:0"])] == names
        assert [series.values for series in await host.feed.metrics([""], ["memory"])] == [[2.0**20]]
        assert await host.feed.metrics(since=time.time() + 60) == []
        await host.measuring.close()
        assert read_metrics(host.storage).last("worker:0", "metric.loss") == 0.25

    asyncio.run(act())


def test_the_timeline_is_read_once_and_follows_what_is_published(host: Host) -> None:
    async def act() -> None:
        await host.tell(*(started(n, n) for n in range(1, 301)))
        assert host.feed._timeline is None  # nobody has looked
        timeline = await host.feed.timeline()
        assert timeline.n == len(timeline.attempts) == 300
        await host.tell(*(started(n, n) for n in range(301, 321)))
        assert (await host.feed.timeline()) is timeline
        await host.tell(*(started(n, n) for n in range(321, 801)))  # more than are kept: the log has the first of them
        looks = await asyncio.gather(host.feed.timeline(), host.feed.timeline())
        assert looks == [timeline, timeline]
        assert [number for _, number in timeline.attempts] == list(range(1, 801))

    asyncio.run(act())


def test_a_reader_of_a_master_that_follows_sees_what_was_measured_before(host: Host) -> None:
    async def act() -> None:
        host.measuring.report("worker:0", {"metrics": {"loss": 0.5}})
        await host.feed.metrics()
        await host.measuring.close()
        host.measuring = Measuring(host.storage, 2, time.time, host.feed.wake, host.feed.progress)
        host.measuring.report("worker:0", {"metrics": {"loss": 0.25}})
        assert [series.values for series in await host.feed.metrics()] == [[0.5, 0.25]]
        await host.measuring.close()

    asyncio.run(act())


def test_events_that_no_log_has_leave_a_hole_in_the_timeline(host: Host) -> None:
    async def act() -> None:
        await host.tell(*(started(n, n) for n in range(1, 301)), to_log=False)
        timeline = await host.feed.timeline()
        assert [number for _, number in timeline.attempts] == list(range(201, 301))

    asyncio.run(act())


def test_events_that_are_on_their_way_to_the_log_are_waited_for(host: Host) -> None:
    async def act() -> None:
        lines = [line(n) for n in range(1, 301)]
        await host.tell(*lines, to_log=False)
        reading = asyncio.create_task(anext(host.feed.events(0, True)))
        looks: list[int] = []
        read = host.storage.entries
        host.storage.entries = lambda folder: (looks.append(1), read(folder))[1]  # type: ignore[method-assign]
        await until_async(lambda: len(looks) > 3)
        host._writer.append(lines, sync=True)
        assert (await reading)["n"] == 1

    asyncio.run(act())


def test_what_was_dropped_under_a_snapshot_is_waited_for_by_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "droppable", 2000)
    host._writer = open_writer(host.storage, 1, 0)

    async def act() -> None:
        for n in range(1, 301):
            await host.tell(line(n))
        host._writer.flush()
        write_snapshot(host.storage, 250, 1, __version__, b"{}")
        (parts,) = segments(host.storage).values()
        for part, after in itertools.pairwise(parts[1:]):
            if after.first <= 251:
                host.storage.remove(part.path)
        got = [record["n"] async for record in host.feed.events(0, False)]
        assert got == [*range(1, parts[1].first), *range(201, 301)]

    asyncio.run(asyncio.wait_for(act(), 60))


def test_a_reader_that_leaves_leaves_nothing_behind(host: Host) -> None:
    complaints: list[dict[str, Any]] = []

    async def act() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        await host.tell(line(1))
        stream = host.feed.stream(0, True, None)
        assert {next(iter(await anext(stream))) for _ in range(2)} == {"event", "status"}
        await stream.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert host.feed.idle.is_set()

    asyncio.run(act())
    gc.collect()
    assert complaints == []


async def _told(host: Host, logs: bool = True) -> list[dict[str, Any]]:
    return [dict(item) async for item in host.feed.stream(0, logs, None)]


def fails(times: int, act: Callable[..., Any]) -> Callable[..., Any]:
    left = [times]

    def failing(*given: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise StorageFailed("could not read: nobody answers")
        return act(*given, **more)

    return failing


def test_output_that_cannot_be_read_now_is_read_later(host: Host) -> None:
    host.storage.replace("logs/worker-0/1.log", b"hello\n")
    host.storage.read = fails(3, host.storage.read)  # type: ignore[method-assign]

    async def act() -> None:
        await host.tell(ready(1))
        got = []
        async for item in host.feed.stream(0, True, None):
            if "log" in item:
                got.append(item["log"]["data"])
                await host.end()
        assert got == ["hello\n"]

    asyncio.run(act())


class Agent:
    """Has all that its program printed, and sends it to whoever follows, at once."""

    open = True

    def __init__(self, host: Host, printed: str) -> None:
        self._host, self._printed = host, printed
        self.asked = 0

    def of(self, task: str) -> Agent:
        return self

    def send(self, message: dict[str, Any]) -> bool:
        if message["type"] == "follow":
            self.asked += 1
            data = self._printed[message["offset"] :]
            place = {"offset": message["offset"], "next": len(self._printed)}
            self._host.feed.piece({"id": message["id"], "data": data, "end": True, **place})
        return True


def test_a_follower_of_a_task_gets_each_line_once_and_hears_the_next_attempt(host: Host) -> None:
    async def act() -> None:
        task = host.state.tasks["worker:0"]
        task.attempt = 1
        host.agents = agent = Agent(host, "one\n")  # type: ignore[assignment]
        got: list[str] = []

        async def follow() -> None:
            async for piece in host.feed.log("worker:0", None, 0, True):
                got.append(piece["data"])

        following = asyncio.create_task(follow())
        for n in range(1, 4):  # events that have nothing to do with it
            await until_async(lambda n=n: agent.asked == n)
            await host.tell(line(n))
        await until_async(lambda: agent.asked == 4)
        assert got == ["one\n"]
        task.attempt, task.final, host.agents = 2, "succeeded", Agent(host, "two\n")  # type: ignore[assignment]
        await host.feed.wake()
        await following  # a task that has ended has no more to tell, whatever the others do
        assert got == ["one\n", "two\n"]

    asyncio.run(act())


def test_who_follows_a_task_that_has_ended_waits_for_nothing(host: Host) -> None:
    async def act() -> None:
        task = host.state.tasks["worker:0"]
        task.attempt, task.final = 1, "succeeded"
        host.storage.replace("logs/worker-0/1.log", b"hello\n")
        pieces = host.feed.log("worker:0", None, 0, True)
        assert [piece["data"] async for piece in pieces] == ["hello\n"]

    asyncio.run(asyncio.wait_for(act(), 60))


def test_a_stream_that_could_not_tell_all_does_not_look_like_the_end(host: Host) -> None:
    async def act() -> None:
        await host.tell(ready(1))
        await host.end()
        host.storage.read = fails(10**9, host.storage.read)  # type: ignore[method-assign]
        with pytest.raises(StorageFailed, match="nobody answers"):
            await _told(host)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(act())


def test_a_log_that_the_master_cannot_read_now_is_read_by_who_asked(host: Host, tmp_path: Path) -> None:
    """A command goes on with the stored log: it must not be told of an internal error."""
    host.storage.replace("logs/worker-0/1.log", b"hello\n")
    host.storage.read = fails(1, host.storage.read)  # type: ignore[method-assign]
    path = f"{tmp_path}/master.sock"

    def printed() -> list[str]:
        master = Live("t-aaaaaa", lambda: connect_to(path), "token")
        return [piece["data"] for piece in master.log("worker:0", 1)]

    async def act() -> None:
        listener = Listener(rest(host.feed, host, "token"))  # type: ignore[arg-type]
        await listener.on_socket(path)
        try:
            with pytest.raises(Disconnected, match="cannot read it now: could not read: nobody answers"):
                await asyncio.to_thread(printed)
            host.state.tasks["worker:0"].final = "succeeded"
            assert await asyncio.to_thread(printed) == ["hello\n"]
        finally:
            await listener.close()

    asyncio.run(act())


async def answered(place: str, port: int) -> tuple[int, bytes]:
    """What a proxy is answered: the status, and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {place} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def test_readers_of_a_storage_that_hangs_leave_the_master_its_own_threads(host: Host) -> None:
    host.storage.replace("logs/worker-0/1.log", b"printed\n")
    answers, waiting = threading.Event(), list[str]()
    read = host.storage.read

    def hanging(path: str, offset: int = 0, size: int | None = None) -> bytes | None:
        waiting.append(path)
        answers.wait(60)
        return read(path, offset, size)

    host.storage.read = hanging  # type: ignore[method-assign]

    async def follow() -> list[object]:
        return [piece async for piece in host.feed.log("worker:0", 1, 0, False)]

    async def act() -> None:
        readers = [asyncio.create_task(follow()) for _ in range(40)]  # a default pool has at most 32 threads
        try:
            await until_async(lambda: len(waiting) >= feed.THREADS)
            await asyncio.wait_for(asyncio.to_thread(int), 30)
        finally:
            answers.set()
        assert all(await asyncio.gather(*readers))

    asyncio.run(act())


@pytest.mark.parametrize(
    ("took", "later", "made"),
    [(0.0, 0.001, 5), (0.05, 0.2, 2), (5.0, 0.3, 2)],
    ids=["a small job's is always new", "for ten times as long", "never older than a second"],
)
def test_readers_who_ask_at_once_share_a_status_that_took_long(
    host: Host, took: float, later: float, made: int
) -> None:
    now = 100.0
    statuses = []

    class Slow(Feed):
        def status(self) -> dict[str, Any]:
            nonlocal now
            now += took
            return {}

    slow = Slow(host, lambda: now)  # type: ignore[arg-type]
    for _ in range(5):
        statuses.append(slow.shown_status())
        now += later
    assert len({id(status) for status in statuses}) == made


def test_a_status_that_readers_share_is_encoded_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = Encoded()
    shown = {"tasks": [{"task": "worker:0"}]}
    assert json.loads(encoded.item({"status": shown})) == {"status": shown}
    assert encoded.status(shown) is encoded.status(shown)
    assert json.loads(encoded.status({"tasks": []})) == {"tasks": []}
    assert json.loads(encoded.item({"event": {"n": 1}})) == {"event": {"n": 1}}


def test_a_masters_log_is_followed_by_its_epoch(host: Host, tmp_path: Path) -> None:
    """The master looks at its own log again and again, and reads that of an earlier epoch to its end."""
    folder = tmp_path / "logs" / "master"
    folder.mkdir(parents=True)
    (folder / "1.log").write_text("first\n")
    (folder / "2.log").write_text("second\n")

    async def act() -> None:
        host.state.epoch = 2
        assert await host.feed.stored("master", 1) == (1, 6)
        assert await host.feed.stored("master") == (2, 7)
        assert [piece["data"] async for piece in host.feed.log("master", 1, 0, True)] == ["first\n"]
        pieces = host.feed.log("master", 2, 0, True)
        assert (await anext(pieces))["data"] == "second\n"
        more = asyncio.ensure_future(anext(pieces))
        (folder / "2.log").write_text("second\nmore\n")
        assert (await more)["data"] == "more\n"
        await host.end()
        assert [piece async for piece in pieces] == []

    asyncio.run(asyncio.wait_for(act(), 60))
