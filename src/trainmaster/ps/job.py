"""How parameter servers and workers of one job find each other, and how they know that they are of one job.

Servers are the tasks of a role with a port `ps` (`ports: [ps]`). Each listens on that port with TLS, under the job's certificate, and at an
abstract Unix socket that is named by the job's token, the role and the index: processes of one machine, and of one network namespace, find
it there. The agent tells a program of the job a token for parameter servers, made of the job's own, and the job's certificate; and the
programs of that role the certificate's key.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass

from .. import runtime
from ..runtime.link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .client import Client

ROLE = PORT = "ps"
_AGENT_LIMIT = 30.0  # s until an agent that is away is given up


class BadPlace(ValueError):
    """This process has no place among parameter servers; the message says what is missing."""


@dataclass(frozen=True)
class Place:
    """The place of a server in its job. `listen`: the addresses to serve at."""

    index: int
    servers: int
    token: str
    certificate: str
    key: str
    listen: list[str]
    directory: str

    def leader(self) -> Sequence[str]:
        return addresses(self.token, ROLE)[0]


def from_job(*, half: bool = False) -> Client:
    """Return a client of the job's parameter servers. Raises BadPlace where there are none."""
    from .client import Client, Identity

    credentials = _credentials()
    task = runtime.task()
    copy = os.environ.get("TRAINMASTER_COPY", "0")
    name = task.key if copy == "0" else f"{task.key}/{copy}"
    token = credentials["token"]
    if not addresses(token, ROLE):
        raise BadPlace(f"the job has no role {ROLE!r} with a port {PORT!r}: its parameter servers")
    attempt = task.generation * 2**20 + task.attempt  # both only grow
    return Client(
        functools.partial(addresses, token, ROLE), Identity(token, credentials["certificate"], name, attempt), half=half
    )


def place_of_job() -> Place:
    """Return the place of this server in its job. Raises BadPlace."""
    credentials = _credentials()
    task = runtime.task()
    port = os.environ.get(f"TRAINMASTER_PORT_{PORT.upper()}")
    if not port:
        raise BadPlace(f"role {task.role!r} has no port {PORT!r}: add `ports: [{PORT}]` to it in the job file")
    token, certificate, key = credentials["token"], credentials["certificate"], credentials["key"]
    listen = [_local_address(token, task.role, task.index)]
    if key:
        peers = task.peers.get(task.role, [])
        address = str(peers[task.index]["address"]) if task.index < len(peers) else ""
        listen.append(_joined(address or "0.0.0.0", port))
    directory = os.environ.get("TRAINMASTER_CHECKPOINT", "")
    return Place(task.index, task.world, token, certificate, key, listen, directory)


def addresses(token: str, role: str) -> list[list[str]]:
    """Return the addresses of each server, as the job's file of peers has them now."""
    servers = []
    for index, peer in enumerate(runtime.task().peers.get(role, [])):
        port = (peer or {}).get("ports", {}).get(PORT)
        remote = [_joined(str(peer["address"]), str(port))] if port and peer.get("address") else []
        servers.append([_local_address(token, role, index), *remote])
    return servers


def _local_address(token: str, role: str, index: int) -> str:
    name = hashlib.blake2b(f"{role}:{index}".encode(), key=token.encode()[:64], digest_size=16).hexdigest()
    return f"unix:@trainmaster-ps-{name}"


def _joined(address: str, port: str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _credentials() -> dict[str, Any]:
    """Ask the agent for token, certificate and key. Raises BadPlace."""
    path = os.environ.get("TRAINMASTER_SOCKET")
    if not path:
        raise BadPlace(
            "no job started this process: tell a server where to serve by --listen, a client by Client(addresses, ...)"
        )
    link = Link(path)
    try:
        answer = link.ask({"op": "credentials"}, _AGENT_LIMIT)
    finally:
        link.end()
    if answer is None or "token" not in answer:
        raise BadPlace(f"the agent at {path} did not tell the token of parameter servers within {_AGENT_LIMIT:g} s")
    return answer
