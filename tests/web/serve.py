"""`tm ui` as a process of its own, which a test's browser has signed in to."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
from collections.abc import Iterator
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import attrs
from conformance.engines import TM


@attrs.frozen
class Server:
    """A running `tm ui`. `address`: of a job's page; `cookie`: of a session in which that may be read and acted on, as browsers take it."""

    address: str
    pid: int
    cookie: Any


@contextlib.contextmanager
def served(job: str) -> Iterator[Server]:
    """Serve the pages of this machine's jobs; end the server by the signal of Ctrl-C, as its user does."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([TM, "ui", job, "--no-browser"], stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            yield Server(address.partition("?")[0], process.pid, _signed_in(address))
        finally:
            process.terminate()


def _signed_in(address: str) -> dict[str, str]:
    """Use the code at the end of the address, and return the session's cookie."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.netloc, timeout=60)
    try:
        connection.request("GET", f"{place.path}?{place.query}")
        response = connection.getresponse()
        ((name, morsel),) = SimpleCookie(response.getheader("Set-Cookie", "")).items()
        return {"name": name, "value": morsel.value, "url": f"http://{place.netloc}/"}
    finally:
        connection.close()
