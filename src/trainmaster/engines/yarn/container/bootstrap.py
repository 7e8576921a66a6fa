"""In a container of YARN: what it was given, for the master and for agents.

A container's directory has a long path, and a socket's may have 107 bytes (unix(7)): sockets are in it all the same, under the name that
the kernel gives to our open descriptor of it.
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
from trainmaster.engines.yarn.container.payload import taken
from trainmaster.host.python_name import path_with_python

if TYPE_CHECKING:  # what an agent imports its first program waits for
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
    """The spec of this container's agent."""
    told, credentials = taken()
    configure(told["configuration"])
    here = os.getcwd()
    private = os.path.join(here, ".trainmaster")
    os.makedirs(private, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(here, "work"), exist_ok=True)
    tokens = None
    if times := told.get("tokens"):
        from trainmaster.engines.yarn.tokens import AgentTokens, Tokens, delegated

        tokens = AgentTokens(Tokens(delegated(credentials), **times), private, programs=True)
    devices = _devices(told.get("gpus"))
    application = os.environ.get("LOCAL_DIRS", here).split(",")[0]  # of the application, on this node
    environ = opening_stores(told, _programs(here, tokens))
    return {
        **told, "work": os.path.join(here, "work"), "runtime": private, "sockets": _short(private),
        "cache": os.path.join(application, "trainmaster-cache"), "environ": environ,
        "node": told.get("node") or node(), "tokens": tokens, "devices": devices,
    }  # fmt: skip


_held: list[Any] = []  # for as long as we live


def _devices(gpus: int | None) -> tuple[str, ...]:
    """The devices of this container, where YARN counts them (None: it does not). Programs that were given none see none."""
    if gpus is None:
        return ()
    from trainmaster.host.devices import VISIBLE, Devices

    held = Devices()
    try:
        names = held.take(gpus)
    except EngineFailed as error:
        from trainmaster.engines.statuses import NO_DEVICES

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
    environ["PATH"] = path_with_python(environ.get("PATH", os.defpath), os.path.join(here, ".trainmaster"))
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
        f"<property><name>{_escaped(name)}</name><value>{_escaped(value)}</value></property>\n"
        for name, value in properties.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml"):
        (folder / name).write_text(f"<configuration>\n{rows}</configuration>\n")
    os.environ["HADOOP_CONF_DIR"] = str(folder)


def _escaped(text: str) -> str:
    """Return a text as it stands in XML. The library's own way imports a whole parser, and `urllib.request`."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def master() -> tuple[str, dict[str, Any], Any]:
    """(the job's directory in this container, what the master is told, its seat's parts)."""
    told, credentials = taken()
    configure(told["configuration"])
    os.environ.update(told["stores"])
    directory = Path("jobs", told["job_id"]).absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / "job.json").write_text(json.dumps(told["job"]))
    (directory / "site.json").write_text(json.dumps(told["site"]))
    from trainmaster.engines.yarn.master.runtime import Parts

    parts = Parts(told, credentials)
    if parts.tokens is not None:
        parts.tokens.begin()
    return str(directory), told, parts
