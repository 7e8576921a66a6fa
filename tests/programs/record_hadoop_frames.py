"""Records what Hadoop's servers say, for the tests that change it: python tests/programs/record_hadoop_frames.py

A proxy stands between our client and the servers of RpcServer.java. Nothing is left to chance on our side, so that what
the client says when the recording is played is what it said then, byte by byte. Written: tests/recordings/hadoop_rpc.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

import hadoop_frames  # noqa: E402
from hadoop_server import hadoop_servers  # noqa: E402


async def record(port: int, play: hadoop_frames.Play) -> list[tuple[int, str]]:
    """Pieces that the server said, each with the number of bytes that it had been told before."""
    said: list[tuple[int, str]] = []
    told = 0

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal told
        theirs, ours = await asyncio.open_connection("localhost", port)

        async def back() -> None:
            while data := await theirs.read(1 << 20):
                said.append((told, data.hex()))
                writer.write(data)
            writer.close()

        returning = asyncio.create_task(back())
        while data := await reader.read(1 << 20):
            told += len(data)
            ours.write(data)
        ours.close()
        with contextlib.suppress(asyncio.CancelledError):  # the server is closed: all is recorded
            await returning

    async with await asyncio.start_server(proxy, "localhost", 0) as server:
        await hadoop_frames.play(server.sockets[0].getsockname()[1], play)
    return said


def main() -> None:
    recorded = {}
    with tempfile.TemporaryDirectory() as folder, hadoop_servers(Path(folder) / "log") as servers:
        for name, play in hadoop_frames.PLAYS.items():
            port = servers.start(name, play.authentication, play.protection)
            recorded[name] = asyncio.run(record(port, play))
    hadoop_frames.RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
