"""Output on its way to a storage whose files cannot grow, and whoever reads it there meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from waiting import until_async

from trainmaster.agent.output import shipping
from trainmaster.agent.output.shipping import Shipping
from trainmaster.agent.output.spool import MIB, Spool
from trainmaster.core.errors import StorageFailed
from trainmaster.log.output import Copy, attempts, beyond
from trainmaster.log.storage import LocalStorage, Storage, storage_for

KIB = 1024
LINES = [b"%09d\n" % n for n in range(400_000)]


@pytest.fixture
def store() -> Storage:
    return storage_for(f"memory://{uuid.uuid4().hex}/job")


@contextlib.asynccontextmanager
async def shipped(storage: Storage, kept: Spool) -> AsyncIterator[Shipping]:
    """The spool of attempt 1 of worker:0, shipped while it is written."""
    sending = Shipping(lambda: storage, "worker:0", every=0.01, piece=64 * KIB)
    sending.follow(kept, 1)
    work = asyncio.create_task(sending.run())
    try:
        yield sending
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


class Reading:
    """A reader of a stored log: what it got, "?" for what it was told is kept no more."""

    def __init__(self, storage: Storage, kept: Spool) -> None:
        self.log = Copy(storage, "worker:0", 1, kept.head)
        self.at, self.got = 0, b""

    def read(self) -> bytes:
        for piece in self.log.pieces(self.at):
            assert piece["offset"] == self.at
            self.at = piece["next"]
            self.got += b"?" * piece["left_out"] if "left_out" in piece else piece["data"].encode()
        return self.got


def fits(got: bytes, wanted: bytes) -> bool:
    return len(got) == len(wanted) and all(one in (b"?"[0], right) for one, right in zip(got, wanted, strict=True))


def parts(storage: Storage) -> list[tuple[int, int]]:
    return [(int(entry.name), entry.size) for entry in storage.entries("logs/worker-0/1.log.d")]


@pytest.mark.parametrize("grows", [True, False])
def test_what_is_shipped_in_a_hurry_is_readable_at_once(tmp_path: Path, store: Storage, grows: bool) -> None:
    """Where files of the storage grow, as those of HDFS do, it is a piece of its own; all is one file in the end."""
    storage = LocalStorage(str(tmp_path / "stored")) if grows else store
    kept = Spool(str(tmp_path / "log"))

    async def act() -> None:
        sending = Shipping(lambda: storage, "worker:0", every=3600)
        sending.follow(kept, 1)
        for count in (1, 2, 3):
            kept.write(b"line\n")
            await sending.hurry()
            await sending.hurry()  # nothing new: nothing happens
            found = [
                storage.read(f"logs/worker-0/1.log.d/{name.name}") for name in storage.entries("logs/worker-0/1.log.d")
            ]
            assert b"".join(one or b"" for one in found) == b"line\n" * count
            assert len(found) == (count if grows else 1)
        kept.close()
        assert await sending.finish(60) == ""
        assert storage.read("logs/worker-0/1.log") == b"line\n" * 3
        assert storage.entries("logs/worker-0/1.log.d") == []

    asyncio.run(act())


def test_a_log_is_read_in_pieces_and_then_as_a_whole(tmp_path: Path, store: Storage) -> None:
    kept = Spool(str(tmp_path / "log"))

    async def act() -> None:
        async with shipped(store, kept) as sending:
            reading = Reading(store, kept)
            assert reading.read() == b""
            for n in range(5):
                kept.write("Zeile mit €\n".encode())
                wanted = "Zeile mit €\n".encode() * (n + 1)
                await until_async(lambda wanted=wanted: reading.read() == wanted, what=lambda: reading.got)
            assert len(parts(store)) == 1  # a short piece is put again, longer
            kept.close()
            assert await sending.finish(60) == ""
            sending.clear()
        assert parts(store) == []
        assert store.read("logs/worker-0/1.log") == "Zeile mit €\n".encode() * 5
        assert reading.read() == Reading(store, kept).read() == "Zeile mit €\n".encode() * 5
        assert attempts(store, LocalStorage(tmp_path), "worker:0") == [1]
        assert reading.log.size == reading.at
        assert not (tmp_path / "log").exists()

    asyncio.run(act())


@pytest.mark.parametrize("whole", [32 * MIB, 0])
def test_a_store_keeps_no_more_than_the_limit_and_says_what_it_left_out(
    tmp_path: Path, store: Storage, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(shipping, "WHOLE", whole)
    kept = Spool(str(tmp_path / "log"), limit=MIB, head=64 * KIB)

    async def act() -> None:
        async with shipped(store, kept) as sending:
            early = Reading(store, kept)
            for n in range(0, len(LINES), 10_000):
                kept.write(b"".join(LINES[n : n + 10_000]))
                end = (n + 10_000) * 10
                await until_async(lambda end=end: sum((parts(store) or [(0, 0)])[-1]) == end, what=lambda: parts(store))
                if n < 200_000:
                    early.read()
            kept.close()
            assert await sending.finish(60) == ""
        assert fits(early.read(), b"".join(LINES))
        assert b"?" in early.got
        late = Reading(store, kept).read()
        assert fits(late, b"".join(LINES))
        assert late.startswith(b"".join(LINES)[: 64 * KIB])
        assert late.endswith(b"".join(LINES[-20_000:]))
        stored = sum(size for _, size in parts(store)) + len(store.read("logs/worker-0/1.log") or b"")
        assert stored <= MIB + 2 * 64 * KIB  # and the pieces at the two ends of the gap
        assert (parts(store) == []) == bool(whole)

    asyncio.run(act())


def test_what_a_dead_store_does_not_take_stays_here(
    tmp_path: Path, store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Spool(str(tmp_path / "log"))
    kept.write(b"the last words\n")
    kept.close()

    def dead(*_: object, **__: object) -> None:
        raise StorageFailed("could not write: nobody answers")

    monkeypatch.setattr(store, "replace", dead)

    async def act() -> None:
        async with shipped(store, kept) as sending:
            told = await sending.finish(0.2)
            sending.clear()
        assert "nobody answers" in told
        assert str(tmp_path / "log") in told
        assert (tmp_path / "log").read_text() == "the last words\n"

    asyncio.run(act())


def test_a_file_that_is_compacted_between_two_reads_is_read_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    kept = Spool(str(tmp_path / "logs/worker-0/1.log"), limit=MIB, head=64 * KIB)
    kept.write(b"".join(LINES[:100_000]))
    read, reading = storage.read, Reading(storage, kept)

    def meanwhile(path: str, offset: int = 0, size: int | None = None) -> bytes | None:
        found = read(path, offset, size)
        if kept.printed < 3_000_000:
            kept.write(b"".join(LINES[kept.printed // 10 : kept.printed // 10 + 20_000]))
        return found

    storage.read = meanwhile  # type: ignore[method-assign]
    got = reading.read()
    kept.close()
    assert fits(got, b"".join(LINES[: kept.printed // 10]))
    assert b"?" in got


def test_what_was_handed_out_is_cut_from_a_piece() -> None:
    told = {"offset": 10, "next": 16, "data": "äöü"}
    assert beyond(told, 10) == told
    assert beyond(told, 14) == {"offset": 14, "next": 16, "data": "ü"}
    assert beyond(told, 16) is None
    gap = {"offset": 10, "next": 30, "data": "\n[trainmaster: 20 bytes left out here]\n", "left_out": 20}
    rest = {"offset": 25, "next": 30, "data": "\n[trainmaster: 5 bytes left out here]\n", "left_out": 5}
    assert beyond(gap, 25) == rest
