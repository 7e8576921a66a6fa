"""Begin an agent in a Spark task, and a master beside the driver, on its submitter's machine or on a node.

The agent outlives nothing: it gets SIGTERM when the Python worker dies that started it, by Spark's cancelling, by the loss of its executor
or by the end of its application.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.engines.packed import opening_stores
from trainmaster.engines.python_name import path_with_python
from trainmaster.engines.statuses import OUT_OF_REACH, TERMINATED
from trainmaster.host import linux
from trainmaster.runtime.network.pinned import trusting

if TYPE_CHECKING:
    from trainmaster.engines.contract import MasterContainer

# Variables that Spark sets for its own workers. OMP_NUM_THREADS is the executor's cores, even if a task has fewer.
_SPARKS = (
    "SPARK_",
    "PYTHON_WORKER_FACTORY_",
    "PYTHONHASHSEED",
    "OMP_NUM_THREADS",
    "TRAINMASTER_CONTAINER",
    "TRAINMASTER_PYTHON",
)


def agent() -> dict[str, Any]:
    """Return the spec of this container's agent."""
    linux.die_with_parent(signal.SIGTERM)
    spec: dict[str, Any] = json.load(sys.stdin)
    if os.getppid() != spec.pop("worker"):
        raise SystemExit(TERMINATED)
    spec |= secrets_for(spec.pop("ticket"), spec["certificate"])
    home = os.getcwd()
    find_hadoop(os.path.dirname(home))
    atexit.register(shutil.rmtree, home, ignore_errors=True)  # the process that made it may have been killed
    private = os.path.join(home, ".trainmaster")
    for place in (private, os.path.join(home, "work")):
        os.mkdir(place, mode=0o700)
    environ = opening_stores(spec, {name: value for name, value in os.environ.items() if not name.startswith(_SPARKS)})
    environ["PATH"] = path_with_python(environ.get("PATH", os.defpath), private)
    sockets = f"/proc/{os.getpid()}/fd/{os.open(private, os.O_PATH)}"  # a short name: sockets' paths are limited
    return {
        **spec, "work": os.path.join(home, "work"), "runtime": private, "sockets": sockets,
        "cache": os.path.join(os.path.dirname(home), "cache-of-trainmaster"), "environ": environ,
    }  # fmt: skip


def find_hadoop(place: str) -> None:
    """Name the Hadoop configuration that Spark on YARN brings from the submitter into the directory of each container, `place`."""
    folder = os.path.join(place, "__spark_conf__", "__hadoop_conf__")
    if os.path.isdir(folder):
        os.environ["HADOOP_CONF_DIR"] = folder


def secrets_for(ticket: Mapping[str, Any], certificate: str) -> dict[str, Any]:
    """Fetch the secrets of a ticket from the job's master. Ends the process where the master is away, or knows no such ticket any more."""
    host, port = ticket["address"]
    end = time.monotonic() + ticket["within"]
    while not (answer := _answer(host, port, ticket, certificate, end)):
        time.sleep(random.uniform(0.1, 0.5))
    secrets = json.loads(answer)
    if secrets is None:
        raise SystemExit("trainmaster: somebody has fetched the secrets of this container; who reads the network here?")
    return dict(secrets)


def _answer(host: str, port: int, ticket: Mapping[str, Any], certificate: str, end: float) -> bytes:
    """Return the master's answer to a ticket; none where the master, which bounds its connections, had no room for this one. Ends the
    process where nobody listens there, and after the time `end`.
    """
    try:
        with (
            socket.create_connection((host, port), ticket["within"]) as plain,
            trusting(certificate).wrap_socket(plain) as connection,
        ):
            connection.sendall(f"{ticket['number']}\n".encode())
            answer, why, is_heard = connection.makefile("rb").readline(), "it closed the connection", True
    except OSError as error:
        answer, why, is_heard = b"", str(error), not isinstance(error, ConnectionRefusedError)
    if not answer and not (is_heard and time.monotonic() < end):
        print(f"trainmaster: the job's master is out of reach at {host}:{port}: {why}", file=sys.stderr)
        raise SystemExit(OUT_OF_REACH)
    return answer


def client_side_master(application: str, payload: Mapping[str, Any]) -> MasterContainer:
    """Return the place of a master beside the driver."""
    from trainmaster.engines.spark.master.engine import BesideDriver

    return BesideDriver(application, payload)


def master() -> tuple[str, dict[str, Any], MasterContainer]:
    """Return (the job's directory on this node, the master's payload, its place), as the driver writes them to our stdin."""
    from trainmaster.engines.spark.master.engine import BesideDriver

    payload: dict[str, Any] = json.load(sys.stdin)
    find_hadoop(os.getcwd())
    directory = os.path.abspath(os.path.join("jobs", payload["job_id"]))
    os.makedirs(directory, mode=0o700)
    for name in ("job", "site"):
        with open(os.path.join(directory, f"{name}.json"), "w") as file:
            json.dump(payload.pop(name), file)
    os.environ.update(payload["stores"])
    return directory, payload, BesideDriver(f"{payload['application']}/{payload['job_id']}", payload)
