"""Reach the bridge of a Spark application: a Unix socket in this user's private runtime directory, named after the application.

A question and its answer are one line of JSON each. A master's connection stays open (`follow`), and carries such lines both ways; its end
is the death of the other side. The directory is the user's alone, so whoever connects is that user.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainmaster.core.errors import EngineFailed
from trainmaster.core.foreign import json_in
from trainmaster.host.places import job_storage, shared_dir
from trainmaster.runtime.network.listeners import SUBMITTER

LIMIT = 64 * 1024 * 1024  # bytes of a line
ON_NODE = "@cluster"  # ends the name of an application whose driver is on a node: no bridge of this machine is its
_SUFFIX = ".sock"
_SUBMITTER = ".submitter"  # of the socket on which a submitter waits for the application that it has started
_END = "driver.end"  # in the job's directory: why its own application has ended
OVER = "its application {} has ended, and with it all tasks"


def folder() -> Path:
    """Return the directory of all bridges of this user on this machine."""
    return shared_dir("spark")


def applications() -> list[str]:
    """Return the applications that have a bridge, or had one when they were killed."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in folder().glob(f"*{_SUFFIX}"))


def short_path(application: str, directory: int, suffix: str = _SUFFIX) -> str:
    """Return a path of the application's socket that is short enough for one (unix(7)); `directory`: an open descriptor of `folder`."""
    return f"/proc/self/fd/{directory}/{application}{suffix}"


@contextlib.contextmanager
def awaiting_driver(job: str) -> Iterator[socket.socket]:
    """Listen for the driver of a job's own application."""
    directory = os.open(folder(), os.O_PATH)
    try:
        with SUBMITTER.at_path(short_path(job, directory, _SUBMITTER)) as listener:
            yield listener
    finally:
        (folder() / f"{job}{_SUBMITTER}").unlink(missing_ok=True)
        os.close(directory)


def connect_to_submitter(job: str) -> socket.socket:
    """Connect, as the driver of a job's own application, to its submitter. Raises OSError where that is gone."""
    try:
        return connect(job, _SUBMITTER)
    finally:  # one driver comes; a submitter that was killed removes nothing
        (folder() / f"{job}{_SUBMITTER}").unlink(missing_ok=True)


def note_end(job: str, why: str) -> None:
    """Keep the reason why a job's own application ends."""
    with contextlib.suppress(OSError):
        (job_storage(job) / _END).write_text(why)


def over(application: str, job: str) -> str:
    """Return the words about an application that has ended, with its driver's last note where the application was the job's own."""
    try:
        why = (job_storage(job) / _END).read_text()
    except OSError:
        why = f"its driver's log is {log}" if (log := driver_log(job)).exists() else ""
    return OVER.format(application) + (f": {why}" if why else "")


def driver_log(job: str) -> Path:
    """Return the place of the log of the driver of a job's own application."""
    return job_storage(job) / "driver.log"


def connect(application: str, suffix: str = _SUFFIX) -> socket.socket:
    """Connect to the bridge of an application. Raises OSError where there is none."""
    directory = os.open(folder(), os.O_PATH)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(short_path(application, directory, suffix))
    except OSError:
        connection.close()
        raise
    finally:
        os.close(directory)
    return connection


def clear(application: str) -> None:
    """Remove the socket of an application that was killed."""
    try:
        connect(application).close()
    except ConnectionRefusedError:
        (folder() / f"{application}{_SUFFIX}").unlink(missing_ok=True)
    except OSError:
        pass  # it is gone already


def line(message: Any) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def read(reader: Any) -> dict[str, Any]:
    """Return the next message; {} at the end. Raises ValueError for a line that is not a JSON object, or is longer than LIMIT."""
    text = reader.readline(LIMIT)
    message = json_in(text or b"{}")
    if not isinstance(message, dict):
        raise ValueError(f"{text[:80]!r} is not a message")
    return message


def ask(application: str, verb: str, **arguments: Any) -> Any:
    """Ask the bridge, and return its answer. Raises ConnectionError where the application has ended, EngineFailed where it refuses."""
    with connect(application) as connection:
        connection.sendall(line({"verb": verb, **arguments}))
        reply = read(connection.makefile("rb"))
    if not reply:
        raise ConnectionResetError(f"the application {application} ended while it was asked")
    if "error" in reply:
        raise EngineFailed(f"the application {application} refuses: {reply['error']}", anchor="spark-application")
    return reply["answer"]
