"""Reach the bridge of a Spark application: a Unix socket in this user's private runtime directory, named after the application.

A question and its answer are one line of JSON each. A master's connection stays open (`follow`), and carries such lines both ways; its end
is the death of the other side. The directory is the user's alone, so whoever connects is that user.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from trainmaster.core.errors import EngineFailed
from trainmaster.host.places import runtime_dir

LIMIT = 64 * 1024 * 1024  # bytes of a line
_SUFFIX = ".sock"


def folder() -> Path:
    """Return the directory of all bridges of this user on this machine."""
    place = runtime_dir() / "spark"
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def applications() -> list[str]:
    """Return the applications that have a bridge, or had one when they were killed."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in folder().glob(f"*{_SUFFIX}"))


def short_path(application: str, directory: int) -> str:
    """Return a path of the application's socket that is short enough for one (unix(7)); `directory`: an open descriptor of `folder`."""
    return f"/proc/self/fd/{directory}/{application}{_SUFFIX}"


def connect(application: str) -> socket.socket:
    """Connect to the bridge of an application. Raises OSError where there is none."""
    directory = os.open(folder(), os.O_PATH)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(short_path(application, directory))
    except OSError:
        connection.close()
        raise
    finally:
        os.close(directory)
    return connection


def line(message: Any) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def ask(application: str, verb: str, **arguments: Any) -> Any:
    """Ask the bridge, and return its answer. Raises ConnectionError where the application has ended, EngineFailed where it refuses."""
    with connect(application) as connection:
        connection.sendall(line({"verb": verb, **arguments}))
        answer = connection.makefile("rb").readline()
    if not answer:
        raise ConnectionResetError(f"the application {application} ended while it was asked")
    reply = json.loads(answer)
    if "error" in reply:
        raise EngineFailed(f"the application {application} refuses: {reply['error']}", anchor="spark-application")
    return reply["answer"]
