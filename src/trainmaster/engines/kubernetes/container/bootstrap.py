"""Read in a pod what was handed to it, for the master and for agents."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from trainmaster.core.errors import EngineFailed
from trainmaster.engines.kubernetes.container.entry import AGENT_SECRET, HANDED, MASTER_SECRET, SECRET
from trainmaster.engines.packed import opening_stores, unpacked
from trainmaster.engines.promises import broken_gpus
from trainmaster.engines.python_name import path_with_python
from trainmaster.engines.statuses import NO_DEVICES, TERMINATED

_OURS = ("TRAINMASTER_CONTAINER", "TRAINMASTER_PYTHON", "TRAINMASTER_NODE", "TRAINMASTER_POD")


def agent() -> dict[str, Any]:
    """Return the spec of this pod's agent."""
    handover = Path(HANDED, AGENT_SECRET)
    spec = {**unpacked(), **json.loads(handover.read_bytes())}
    handover.unlink()  # before a program of the user's runs, who could read it
    home = os.getcwd()
    private = os.path.join(home, ".trainmaster")
    os.makedirs(private, mode=0o700, exist_ok=True)
    os.makedirs(os.path.join(home, "work"), exist_ok=True)
    node, pod = os.environ["TRAINMASTER_NODE"], os.environ["TRAINMASTER_POD"]
    environ = opening_stores(spec, {name: value for name, value in os.environ.items() if name not in _OURS})
    environ["PATH"] = path_with_python(environ.get("PATH", os.defpath), private)
    promises = []
    if spec.get("gpus"):
        from trainmaster.host.devices import found

        try:
            promises = broken_gpus(spec["gpus"], found()[0], node)
        except EngineFailed as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            raise SystemExit(NO_DEVICES) from error
    return {
        **spec, "work": os.path.join(home, "work"), "runtime": private, "cache": os.path.join(home, ".cache"),
        "environ": environ, "node": node, "container": pod, "broken": promises,
    }  # fmt: skip


def master() -> tuple[str, dict[str, Any], Any]:
    """Return (the job's directory in this pod, the master's payload, the place of its master)."""
    payload = json.loads(Path(SECRET, MASTER_SECRET).read_bytes())
    # The first process of a pod ignores signals that it has no handler for. The next master is there before we are gone, and agents stay
    # with us until then; a master that is killed loses nothing.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    os.environ.update(payload["stores"])
    directory = Path("jobs", payload["job_id"]).absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # it outlives a master that is started again in its pod
    (directory / "job.json").write_text(json.dumps(payload["job"]))
    (directory / "site.json").write_text(json.dumps(payload["site"]))
    from trainmaster.engines.kubernetes.master.runtime import ContainerRuntime

    return (
        str(directory),
        payload,
        ContainerRuntime(payload, os.environ["TRAINMASTER_OWNER"], os.environ["TRAINMASTER_ADDRESS"]),
    )


def client_side_master(application: str, payload: dict[str, Any]) -> Any:
    """Return the place of a master on its client's machine. The master acts as the user, by the user's kubeconfig."""
    from trainmaster.engines.kubernetes.master.runtime import ContainerRuntime, address_towards
    from trainmaster.engines.kubernetes.submit.store import parts
    from trainmaster.kube.config import load

    context, namespace, _ = parts(application)
    config = load(context=context, namespace=namespace)
    return ContainerRuntime(payload, payload["owner"], address_towards(config), _previous_port(payload), config)


def _previous_port(payload: dict[str, Any]) -> int:
    """Return the port of the master before us; 0 where there was none, or somebody else has its port by now.

    Agents without a storage read no record, and come back to where they were.
    """
    from trainmaster.host.places import job_storage
    from trainmaster.log.documents.jobs import place_of
    from trainmaster.log.epochs import read_master
    from trainmaster.log.storage import storage_for

    record = read_master(storage_for(place_of(job_storage(payload["job_id"]))), payload["token"])
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
