"""Lines for tests of the event log, and masters that write them."""

from __future__ import annotations

from trainmaster.core.machine.events import Event, encode
from trainmaster.log.epochs import take
from trainmaster.log.reader import Reader, replay
from trainmaster.log.storage import Storage
from trainmaster.log.writer import Writer, open_writer


def line(n: int, epoch: int = 1, text: str = "") -> bytes:
    return encode(Event(n, 1000.0 + n, epoch, "progressed", {"task": "worker:0", "text": text}))


def first_line(n: int, epoch: int, read: dict[int, int]) -> bytes:
    return encode(Event(n, 1000.0 + n, epoch, "master-started", {"read": {str(e): last for e, last in read.items()}}))


def lines(first: int, last: int, epoch: int = 1) -> list[bytes]:
    return [line(n, epoch) for n in range(first, last + 1)]


def start_master(storage: Storage, segment_size: int = 64 * 1024 * 1024) -> tuple[int, Writer]:
    """Do what a starting master does: take an epoch, read everything, write the first line."""
    epoch = take(storage)
    reader = Reader(storage)
    for _ in replay(reader, bytes):
        pass
    writer = open_writer(storage, epoch, reader.last, segment_size)
    writer.append([first_line(reader.last + 1, epoch, reader.read)], sync=True)
    return epoch, writer


def everything(storage: Storage) -> list[bytes]:
    return list(replay(Reader(storage), bytes))
