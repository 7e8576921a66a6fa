"""In a pod: what it was given, for the master and for agents."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from trainmaster.engines.kubernetes.container.entry import AGENT_SECRET, HANDED, MASTER_SECRET, SECRET
from trainmaster.engines.packed import opening_stores, unpacked
from trainmaster.engines.statuses import TERMINATED
from trainmaster.host.python_name import path_with_python

_OURS = ("TRAINMASTER_CONTAINER", "TRAINMASTER_PYTHON", "TRAINMASTER_NODE", "TRAINMASTER_POD")


def agent() -> dict[str, Any]:
    """The spec of this pod's agent."""
    handover = Path(HANDED, AGENT_SECRET)
    told = {**unpacked(), **json.loads(handover.read_bytes())}
    handover.unlink()  # before a program of the user's runs, who could read it
    here = os.getcwd()
    private = os.path.join(here, ".trainmaster")
    os.makedirs(private, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(here, "work"), exist_ok=True)
    node, pod = os.environ["TRAINMASTER_NODE"], os.environ["TRAINMASTER_POD"]
    environ = opening_stores(told, {name: value for name, value in os.environ.items() if name not in _OURS})
    environ["PATH"] = path_with_python(environ.get("PATH", os.defpath), private)
    return {
        **told, "work": os.path.join(here, "work"), "runtime": private, "cache": os.path.join(here, ".cache"),
        "environ": environ, "node": node, "container": pod,
    }  # fmt: skip


def master() -> tuple[str, dict[str, Any], Any]:
    """(the job's directory in this pod, what the master is told, its seat's parts)."""
    told = json.loads(Path(SECRET, MASTER_SECRET).read_bytes())
    # Who is the first process of a pod ignores what it has no handler for. The next master is there before we are gone, and agents stay
    # with us until then; a master that is killed loses nothing.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    os.environ.update(told["stores"])
    directory = Path("jobs", told["job_id"]).absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # it outlives a master that is started again in its pod
    (directory / "job.json").write_text(json.dumps(told["job"]))
    (directory / "site.json").write_text(json.dumps(told["site"]))
    from trainmaster.engines.kubernetes.master.runtime import Parts

    return str(directory), told, Parts(told, os.environ["TRAINMASTER_OWNER"], os.environ["TRAINMASTER_ADDRESS"])


def beside(application: str, told: dict[str, Any]) -> Any:
    """The parts of a master's seat on its client's machine, which acts as the user, by his kubeconfig."""
    from trainmaster.engines.kubernetes.master.runtime import Parts, address_towards
    from trainmaster.engines.kubernetes.submit.store import parts
    from trainmaster.kube.config import load

    context, namespace, _ = parts(application)
    config = load(context=context, namespace=namespace)
    return Parts(told, told["owner"], address_towards(config), _port_before(told), config)


def _port_before(told: dict[str, Any]) -> int:
    """Where the master before us was: agents without a storage read no record, and come back to where they were. 0 where there was none,
    or somebody else is there by now.
    """
    from trainmaster.host.places import job_storage
    from trainmaster.log.epochs import read_master
    from trainmaster.log.storage import place_of, storage_for

    record = read_master(storage_for(place_of(job_storage(told["job_id"]))), told["token"])
    number = record.addresses[0].rpartition(":")[2] if record is not None else ""
    if not number.isdigit():
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(number)))
        except OSError:
            return 0
    return int(number)
