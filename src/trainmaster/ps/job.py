"""How parameter servers and workers of one job find each other, and how they know that they are of one job.

Servers are the tasks of a role with a port `ps` (`ports: [ps]`). Each listens at a Unix socket, where processes of its machine find it: in
the job's own directory, or, on a cluster, where containers share none, at an abstract one, named by the job's token, role and index. On a
cluster it also listens on the port with TLS, under the job's certificate. The agent gives each program of the job a token for parameter
servers, made from the job's own, and the job's certificate. Programs of that role also get the certificate's key.

The file of peers is that of the beginning of a process: it lacks tasks that were not reached by then, and has the former port of one that
restarted alone. So a worker tells each server where server 0 is. Servers write their addresses into the directory of their logs and
checkpoints, where all of them share it. Where tasks restart alone (`restart: {scope: task}`), servers and workers alike get the number of
servers.

The directory is what `TRAINMASTER_PS_DIRECTORY` names, a variable of the job file; without it servers keep nothing. It is best one that all
of them see. One of each container's own survives a server's program, not its container: then the server is lost (`_loss`). The
job's `checkpoint.path` would not do: its newest set is put back into all tasks, and each server has its own share.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from dataclasses import dataclass, replace

from .. import runtime
from ..runtime.folders import create_draft
from ..runtime.link import credentials as ask_for_credentials
from .errors import StateLost
from .storage.checkpoints import journal_folder
from .storage.placements import job_name, present_servers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .client import Client

ROLE = PORT = "ps"
DIRECTORY = "TRAINMASTER_PS_DIRECTORY"
_LETTERS = 8  # characters of the name in a socket's path: with `.PID` that is no longer than `places._LONGEST_SOCKET`
_AGENT_LIMIT = 30.0  # s until an agent that is away is given up


class BadPlace(ValueError):
    """This process has no place among parameter servers; the message says what is missing."""


@dataclass(frozen=True)
class Place:
    """The place of a server in its job. `listen`: the addresses to serve at."""

    index: int
    servers: int
    told_servers: int  # by the command, at the job's beginning
    token: str
    certificate: str
    key: str
    listen: list[str]
    directory: str
    loss: str = ""  # why it cannot begin as one of the servers, if it is one of them

    def leader(self) -> Sequence[str]:
        return addresses(self.token, self.certificate, 1)[0]

    def publish(self) -> None:
        """Write where this server is, for those of other machines."""
        if self.directory and self.key:
            path = _address_file(self.directory, self.index)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(create_draft(f"{path}.part"), "w", encoding="utf-8") as file:
                file.write(self.listen[-1])
            os.rename(f"{path}.part", path)


def from_job(servers: int = 0, *, half: bool = False) -> Client:
    """Return a client of the job's parameter servers. Raises BadPlace where there are none.

    `servers`: their number; 0: as many as the file of peers has, which are all of them where the job's tasks restart together.
    """
    from .client import Client, Identity

    credentials = _credentials()
    task = runtime.task()
    copy = os.environ.get("TRAINMASTER_COPY", "0")
    name = task.key if copy == "0" else f"{task.key}/{copy}"
    token = credentials["token"]
    servers = servers or len(task.peers.get(ROLE, []))
    if not servers:
        raise BadPlace(f"the job has no role {ROLE!r}, or no task of it was reached yet: tell the number of servers")
    attempt = task.generation * 2**20 + task.attempt  # both only grow
    return Client(
        functools.partial(addresses, token, credentials["certificate"], servers),
        Identity(token, credentials["certificate"], name, attempt),
        half=half,
    )


def place_of_job(servers: int = 0) -> Place:
    """Return the place of this server in its job, of `servers`; 0: of as many as the file of peers has. Raises BadPlace, StateLost."""
    credentials = _credentials()
    task = runtime.task()
    port = os.environ.get(f"TRAINMASTER_PORT_{PORT.upper()}")
    if not port:
        raise BadPlace(f"role {task.role!r} has no port {PORT!r}: add `ports: [{PORT}]` to it in the job file")
    token, certificate, key = credentials["token"], credentials["certificate"], credentials["key"]
    listen = [_local_address(token, certificate, task.role, task.index)]
    if key:
        peers = task.peers.get(task.role, [])
        if task.index >= len(peers) or not peers[task.index]:
            raise BadPlace(f"the file of peers does not have this task, {task.key}")
        listen.append(_joined(str(peers[task.index]["address"]), port))
    directory = _directory()
    told_servers = servers or task.world
    servers = present_servers(directory, task.index, job_name(token), told_servers)
    place = Place(task.index, servers, told_servers, token, certificate, key, listen, directory)
    if task.index >= servers or not (loss := _loss(task, place)):
        return place
    if not task.index:
        raise StateLost(loss)
    return replace(place, servers=task.index, loss=loss)  # unless the others do without it, and it joins them again


def _loss(task: runtime.Task, place: Place) -> str:
    """Say why a server may not begin with nothing where workers may have pushed already; "" where it may begin.

    A first server has no workers among its peers, since they begin after it. A server that ran before has left a log, unless its directory
    was in a container that is lost. Peers and workers would not find the new one either.
    """
    has_workers = any(peer for role, peers in task.peers.items() if role != task.role for peer in peers)
    is_lost = place.directory and not os.path.isdir(journal_folder(place.directory, place.index, place.servers))
    if task.attempt > 1 and has_workers and place.key and is_lost:
        return (
            f"the container of server {place.index} is lost, and its log and checkpoints were in it: begin the job again; a"
            " --checkpoint_dir that every node sees (file://PATH) survives containers"
        )
    return ""


def _directory() -> str:
    directory = os.environ.get(DIRECTORY)
    return os.path.abspath(directory) if directory else ""


def addresses(token: str, certificate: str, servers: int) -> list[list[str]]:
    """Return the addresses of each server: here, as it wrote it last, and as the file of peers has it."""
    peers = runtime.task().peers.get(ROLE, [])
    directory = _directory()
    ways = []
    for index in range(servers):
        way = [_local_address(token, certificate, ROLE, index)]
        if directory:
            with contextlib.suppress(OSError), open(_address_file(directory, index), encoding="utf-8") as file:
                way.append(file.read())
        peer = peers[index] if index < len(peers) else None
        if peer and PORT in peer["ports"]:
            way.append(_joined(str(peer["address"]), str(peer["ports"][PORT])))
        ways.append(way)
    return ways


def _address_file(directory: str, index: int) -> str:
    return os.path.join(directory, "serving", f"{index}")


def _local_address(token: str, certificate: str, role: str, index: int) -> str:
    name = hashlib.blake2b(f"{role}:{index}".encode(), key=token.encode()[:64], digest_size=16).hexdigest()
    if certificate:  # on a cluster
        return f"unix:@trainmaster-ps-{name}"
    folder = os.path.dirname(os.environ["TRAINMASTER_SOCKET"])  # of all agents of the job, and closed to other users
    return f"unix:{folder}/ps-{name[:_LETTERS]}"


def _joined(address: str, port: str) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _credentials() -> dict[str, Any]:
    """Ask the agent for token, certificate and key. Raises BadPlace."""
    path = os.environ.get("TRAINMASTER_SOCKET")
    if not path:
        raise BadPlace(
            "no job started this process: tell a server where to serve by --listen, a client by Client(addresses, ...)"
        )
    answer = ask_for_credentials(_AGENT_LIMIT)
    if answer is None:
        raise BadPlace(f"the agent at {path} did not tell the token of parameter servers within {_AGENT_LIMIT:g} s")
    return answer
