"""What Hadoop's servers said to a client of ours, as programs/record_hadoop_frames.py recorded it, and a server that says it again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs
from hadoop_server import PROTOCOL, Responses, asked

from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.handshake import Peer
from trainmaster.hadoop.rpc import Connection
from trainmaster.hadoop.security.auth import Auth, ByToken, Simple
from trainmaster.hadoop.security.credentials import Token

RECORDED = Path(__file__).parent / "recordings/hadoop_rpc.json"
BOB = ByToken(Token(b"\x03bob", b"password of bob", "TEST", ""))
Pieces = Sequence[tuple[int, bytes]]  # how much was told before, and what was said then


@attrs.frozen
class Play:
    """A client's part. All that is by chance is nothing but zeros."""

    auth: Auth
    authentication: str = "token"
    protection: str = "authentication"


PLAYS = {
    "simple": Play(Simple("alice"), "simple"),
    "token": Play(BOB),
    "integrity": Play(BOB, protection="integrity"),
    "privacy": Play(BOB, protection="privacy"),
    "refused": Play(Simple("alice")),
}
CALLS = [
    ("echo", "first"),
    ("throw", "java.io.IOException", "on\npurpose"),
    ("echo", "x" * 500),
    ("nonesuch",),
    ("echo", "last"),
]


async def play(port: int, part: Play) -> list[str]:
    """The calls one after the other, and what came of each."""
    came: list[str] = []
    try:
        connection = await Connection.open(Peer("localhost", port), PROTOCOL, part.auth, nonce=bytes)
    except HadoopError as error:
        return [f"{type(error).__name__}: {error}"]
    async with connection:
        for call in CALLS:
            try:
                answers = (await connection.call("refresh", asked(*call), Responses)).responses
                came.append(" ".join(str(answer.userMessage) for answer in answers))
            except HadoopError as error:
                came.append(f"{type(error).__name__}: {error}")
    return came


def recordings() -> dict[str, Pieces]:
    read = json.loads(RECORDED.read_text())
    return {name: [(told, bytes.fromhex(said)) for told, said in pieces] for name, pieces in read.items()}


@contextlib.asynccontextmanager
async def playing(pieces: Pieces, patience: float | None = None) -> AsyncIterator[int]:
    """A server that says each piece when it has been told as much as then, and closes after the last; its port.

    One with `patience` that has been told nothing for so many seconds says all the rest at once.
    """

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = 0
        with contextlib.suppress(OSError):
            for due, said in pieces:
                while told < due:
                    try:
                        data = await asyncio.wait_for(reader.read(1 << 16), patience)
                    except TimeoutError:
                        data = b""
                    if not data:
                        told = 1 << 62
                    told += len(data)
                writer.write(said)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
