"""Connections of listeners send at once what is written, also where asyncio serves them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from trainmaster.client.ui.serving import bound
from trainmaster.host.network.listening import everywhere


@pytest.mark.parametrize("listening", [everywhere, lambda: bound(0, 0)])
def test_a_connection_waits_for_no_acknowledgement_before_it_sends(listening: Callable[[], socket.socket]) -> None:
    async def run() -> int:
        options: asyncio.Queue[int] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served: socket.socket = writer.get_extra_info("socket")
            options.put_nowait(served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listening()
        async with await asyncio.start_server(serve, sock=listener):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
            option = await options.get()
            writer.close()
            return option

    assert asyncio.run(run()) == 1
