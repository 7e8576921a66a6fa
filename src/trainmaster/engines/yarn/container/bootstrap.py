"""The beginning of a container of YARN: give the master or the agent what it needs to start.

The path of a container's directory is long, and a socket's path may have 107 bytes (unix(7)). So sockets in that directory are opened by
the short name that the kernel gives to our open descriptor of it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.core.errors import EngineFailed
from trainmaster.engines.packed import opening_stores
from trainmaster.engines.promises import broken_gpus
from trainmaster.engines.python_name import path_with_python
from trainmaster.engines.yarn.container.payload import taken
from trainmaster.engines.yarn.container.promises import broken, mount_points

if TYPE_CHECKING:  # an agent's first program waits for each import
    from trainmaster.engines.yarn.tokens import AgentTokens

_YARNS = (
    "CONTAINER_ID",
    "HADOOP_TOKEN_FILE_LOCATION",
    "APPLICATION_WEB_PROXY_BASE",
    "APP_SUBMIT_TIME_ENV",
    "TRAINMASTER_CONTAINER",
    "TRAINMASTER_PYTHON",
)
CONFIGURATION = "hadoop-conf"


def agent() -> dict[str, Any]:
    """Return the spec of this container's agent."""
    payload, credentials = taken()
    configure(payload["configuration"])
    folder = os.getcwd()
    private = os.path.join(folder, ".trainmaster")
    os.makedirs(private, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(folder, "work"), exist_ok=True)
    tokens = None
    if times := payload.get("tokens"):
        from trainmaster.engines.yarn.tokens import AgentTokens, Tokens, delegation_tokens

        tokens = AgentTokens(Tokens(delegation_tokens(credentials), **times), private, programs=True)
    devices = _devices(payload.get("gpus"))
    application = os.environ.get("LOCAL_DIRS", folder).split(",")[0]  # of the application, on this node
    environ = opening_stores(payload, _program_environment(folder, tokens))
    place = payload.get("node") or node()
    promises = [*broken(os.environ, mount_points(), place), *broken_gpus(payload.get("gpus") or 0, devices, place)]
    return {
        **payload, "work": os.path.join(folder, "work"), "runtime": private, "sockets": _short_name(private),
        "cache": os.path.join(application, "trainmaster-cache"), "environ": environ,
        "node": place, "tokens": tokens, "devices": devices, "broken": promises,
    }  # fmt: skip


_leases: list[Any] = []  # of devices, held for the life of this process


def _devices(gpus: int | None) -> tuple[str, ...]:
    """Lease the devices of this container, where YARN counts them (None: it does not). Programs that were given none see none."""
    if gpus is None:
        return ()
    from trainmaster.host.devices import Devices
    from trainmaster.host.machine import VISIBLE

    devices = Devices()
    try:
        names = devices.take(gpus)
    except EngineFailed as error:
        from trainmaster.engines.statuses import NO_DEVICES

        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(NO_DEVICES) from error
    _leases.append(devices)
    if not gpus:
        os.environ[VISIBLE] = ""
    return names


def _program_environment(folder: str, tokens: AgentTokens | None) -> dict[str, str]:
    """Return the environment that programs begin with: the container's, without our own variables. Programs get only HDFS tokens."""
    environ = {name: value for name, value in os.environ.items() if name not in _YARNS}
    if not os.access(environ.get("HOME", ""), os.W_OK):  # YARN's default home exists for nobody
        environ["HOME"] = folder
    environ["PATH"] = path_with_python(environ.get("PATH", os.defpath), os.path.join(folder, ".trainmaster"))
    if tokens is not None:
        environ["HADOOP_TOKEN_FILE_LOCATION"] = tokens.of_programs
    return environ


def node() -> str:
    return f"{os.environ.get('NM_HOST', socket.gethostname())}:{os.environ.get('NM_PORT', '0')}"


def _short_name(folder: str) -> str:
    """Return a short name of a directory, good for the life of this process."""
    return f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"


def configure(properties: Mapping[str, str]) -> None:
    """Write Hadoop's configuration, as the submitter had it, where libraries look for it."""
    folder = Path(CONFIGURATION).absolute()
    folder.mkdir(exist_ok=True)
    rows = "".join(
        f"<property><name>{_escape(name)}</name><value>{_escape(value)}</value></property>\n"
        for name, value in properties.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml"):
        (folder / name).write_text(f"<configuration>\n{rows}</configuration>\n")
    os.environ["HADOOP_CONF_DIR"] = str(folder)


def _escape(text: str) -> str:
    """Return a text escaped for XML. The standard library's own function imports a whole parser, and `urllib.request`."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def master() -> tuple[str, dict[str, Any], Any]:
    """Return (the job's directory in this container, the master's payload, the place of its master)."""
    payload, credentials = taken()
    configure(payload["configuration"])
    os.environ.update(payload["stores"])
    directory = Path("jobs", payload["job_id"]).absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / "job.json").write_text(json.dumps(payload["job"]))
    (directory / "site.json").write_text(json.dumps(payload["site"]))
    from trainmaster.engines.yarn.master.runtime import ContainerRuntime

    parts = ContainerRuntime(payload, credentials)
    if parts.tokens is not None:
        parts.tokens.begin()
    return str(directory), payload, parts
