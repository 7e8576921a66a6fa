"""In a container of YARN: what it was given, for the master and for agents.

A container's directory has a long path, and a socket's may have 107 bytes (unix(7)): sockets are in it all the same, under the name that
the kernel gives to our open descriptor of it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from trainmaster.core.errors import EngineFailed
from trainmaster.engines.contract import MasterSide
from trainmaster.engines.yarn.exits import NO_DEVICES
from trainmaster.engines.yarn.launching import context, taken
from trainmaster.engines.yarn.settings import settings
from trainmaster.engines.yarn.tokens import (
    AgentTokens,
    MasterTokens,
    Tokens,
    delegated,
    fetched,
    keytab_login,
    places,
    submitted,
)
from trainmaster.hadoop.credentials import AM_RM_TOKEN, RM_DELEGATION_TOKEN, Credentials

AGENT = "trainmaster.agent.container:main"
_YARNS = (
    "CONTAINER_ID",
    "HADOOP_TOKEN_FILE_LOCATION",
    "APPLICATION_WEB_PROXY_BASE",
    "APP_SUBMIT_TIME_ENV",
    "TRAINMASTER_ENGINE",
    "TRAINMASTER_PYTHON",
)
CONFIGURATION = "hadoop-conf"


def agent() -> dict[str, Any]:
    """The spec of this container's agent."""
    told, credentials = taken()
    configure(told["configuration"])
    here = os.getcwd()
    private = os.path.join(here, ".trainmaster")
    os.makedirs(private, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(here, "work"), exist_ok=True)
    tokens = None
    if times := told.get("tokens"):
        tokens = AgentTokens(Tokens(delegated(credentials), **times), private, programs=True)
    devices = _devices(told.get("gpus"))
    application = os.environ.get("LOCAL_DIRS", here).split(",")[0]  # of the application, on this node
    return {
        **told, "work": os.path.join(here, "work"), "runtime": private, "sockets": _short(private),
        "cache": os.path.join(application, "trainmaster-cache"), "environ": _programs(here, tokens),
        "node": told.get("node") or node(), "tokens": tokens, "devices": devices,
    }  # fmt: skip


_held: list[Any] = []  # for as long as we live


def _devices(gpus: int | None) -> tuple[str, ...]:
    """The devices of this container, where YARN counts them (None: it does not). Programs that were given none see none."""
    if gpus is None:
        return ()
    from trainmaster.engines.devices import VISIBLE, Devices

    held = Devices()
    try:
        names = held.take(gpus)
    except EngineFailed as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(NO_DEVICES) from error
    _held.append(held)
    if not gpus:
        os.environ[VISIBLE] = ""
    return names


def _programs(here: str, tokens: AgentTokens | None) -> dict[str, str]:
    """The environment that programs begin with: the container's, without what is ours. Of its tokens they have those of HDFS."""
    environ = {name: value for name, value in os.environ.items() if name not in _YARNS}
    if not os.access(environ.get("HOME", ""), os.W_OK):  # YARN's default is nobody's
        environ["HOME"] = here
    if tokens is not None:
        environ["HADOOP_TOKEN_FILE_LOCATION"] = tokens.of_programs
    return environ


def node() -> str:
    return f"{os.environ.get('NM_HOST', socket.gethostname())}:{os.environ.get('NM_PORT', '0')}"


def _short(folder: str) -> str:
    """A short name of a directory, for as long as we live."""
    return f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"


def configure(properties: Mapping[str, str]) -> None:
    """Have Hadoop's configuration as the submitter had it, where libraries look for it."""
    folder = Path(CONFIGURATION).absolute()
    folder.mkdir(exist_ok=True)
    rows = "".join(
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml"):
        (folder / name).write_text(f"<configuration>\n{rows}</configuration>\n")
    os.environ["HADOOP_CONF_DIR"] = str(folder)


def master() -> tuple[str, dict[str, Any], Any]:
    """(the job's directory in this container, what the master is told, its seat's parts)."""
    told, credentials = taken()
    configure(told["configuration"])
    directory = Path("jobs", told["job_id"]).absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / "job.json").write_text(json.dumps(told["job"]))
    (directory / "site.json").write_text(json.dumps(told["site"]))
    parts = Parts(told, credentials)
    if parts.tokens is not None:
        parts.tokens.begin()
    return str(directory), told, parts


class Parts:
    """What a seat in a container of YARN is made of."""

    def __init__(self, told: Mapping[str, Any], credentials: Credentials) -> None:
        from trainmaster.hadoop.conf import load

        self._told, self._credentials = told, credentials
        self._conf = load(os.environ["HADOOP_CONF_DIR"])
        self.tokens = self._held()
        self.address = _our_address(self._conf)
        self.proxies = _proxies(self._conf)
        self.agents: dict[str, Any] = {"configuration": told["configuration"]}

    def engine(self, job: Any, spec: Any, page: Callable[[], str]) -> MasterSide:
        """The master's side of YARN; `page` says the address of the job's page, once it is there."""
        from trainmaster.engines.yarn.engine import YarnMaster
        from trainmaster.hadoop.auth import ByToken, Simple
        from trainmaster.hadoop.conf import is_secure
        from trainmaster.hadoop.yarn import ResourceManager, Scheduler

        token = self._credentials.of_kind(AM_RM_TOKEN)
        assert token is not None, "YARN gives its masters a token"
        rm_token = self._credentials.of_kind(RM_DELEGATION_TOKEN)
        who = ByToken(rm_token) if is_secure(self._conf) and rm_token is not None else Simple(self._told["user"])
        manager = ResourceManager.of(self._conf, who)
        if (tokens := self.tokens) is not None:

            def log_in() -> None:
                newer = tokens.tokens.credentials.of_kind(RM_DELEGATION_TOKEN)
                if newer is not None:
                    manager.login(ByToken(newer))

            tokens.heed.append(log_in)
        wait = self._conf.integer("yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill", 15000)
        return YarnMaster(
            job, spec, self._context, lambda token: Scheduler.of(self._conf, token), token, manager, page, wait / 1000
        )

    def _held(self) -> MasterTokens | None:
        """The tokens that we have, where the cluster is secure."""
        tokens = submitted(self._credentials)
        if tokens is None:
            return None
        private = os.path.abspath(".trainmaster")
        os.makedirs(private, mode=0o700, exist_ok=True)
        from trainmaster.core.reading import job_from

        job = job_from(self._told["job"])
        said = settings(job.engines.get("yarn") or {}).kerberos
        if said is None:
            return MasterTokens(tokens, private)
        wanted, kerberos = places(job), keytab_login(self._told["keytab"], said)
        return MasterTokens(tokens, private, lambda: fetched(self._conf, kerberos, wanted))

    def _context(self, spec: Mapping[str, Any]) -> Any:
        secret = {name: spec[name] for name in ("token", "secrets")}
        told = {name: value for name, value in spec.items() if name not in secret}
        credentials = self._credentials
        if self.tokens is not None:
            told["tokens"] = self.tokens.tokens.times
            credentials = credentials.merged(self.tokens.tokens.credentials)
        from trainmaster.engines.yarn.launching import Resource

        resources = {name: Resource(**fields) for name, fields in self._told["resources"].items()}
        return context(
            AGENT,
            told,
            secret,
            resources,
            credentials.without_kind(AM_RM_TOKEN).without_kind(RM_DELEGATION_TOKEN),
            {**self._told["environment"], **self._told.get("of_roles", {}).get(spec["task"].rpartition(":")[0], {})},
        )


def _proxies(conf: Any) -> set[str]:
    """The addresses of YARN's web proxies: one of its own, or in each ResourceManager."""
    from trainmaster.hadoop.conf import resource_managers

    apart = conf.get("yarn.web-proxy.address")
    hosts = [apart.rpartition(":")[0]] if apart else [host for host, _ in resource_managers(conf)]
    found = set()
    for host in hosts:
        try:
            found |= {str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        except OSError:  # one that has no address now shows nothing
            continue
    return found


def _our_address(conf: Any) -> str:
    """The address by which this node reaches the ResourceManager, so also the one by which others reach this node."""
    from trainmaster.hadoop.conf import resource_managers

    host, port = resource_managers(conf, "scheduler.address")[0]
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])
