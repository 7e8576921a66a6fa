"""Fill a pod, by an init container, with what the user's image lacks: our runtime and the job's files.

    /trainmaster/boot     a ConfigMap: the init container's script (`boot.py`), and the manifest of the files that it puts together
    /trainmaster/pieces   Secrets with the pieces of the runtime and of the job's files; in the init container alone
    /trainmaster/secret   token and secrets: for an agent those of its role, in the init container alone; for the master all
    /trainmaster/handover in memory: the secrets that an init container copies there, until the agent has read and deleted them. They are in
                          a folder of their own, for in the volume's, which is sticky, nobody deletes another user's files
    /trainmaster/home     the pod's own directory, empty at first: the runtime, the files, and the tasks' working directories

The init container runs in the *user's* image, with its Python, which it looks for as a shell does; an image without one ends with a status
of its own. It runs `boot.py` only where that and the manifest have the digest that the pod's own command names. The client sends
them once and each pod reads them from the cluster when it starts, so nothing of the client's is needed later. Where a `runtime_image` is
named, the runtime is copied out of that instead, and is in no Secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from trainmaster.core.plain import Plain
from trainmaster.engines.kubernetes import ENGINE
from trainmaster.engines.kubernetes.names import dns_label, run_name
from trainmaster.engines.kubernetes.pods.pods import PodBootstrap
from trainmaster.engines.statuses import NO_PYTHON
from trainmaster.kube.config import ACCOUNT

ROOT = "/trainmaster"
BOOT, PIECES, SECRET, HOME = f"{ROOT}/boot", f"{ROOT}/pieces", f"{ROOT}/secret", f"{ROOT}/home"
HANDOVER = f"{ROOT}/handover"
HANDED = f"{HANDOVER}/agent"  # the folder of what is handed over
RUNTIME = "runtime"  # the runtime archive's folder in HOME
PUBLISHED = "/opt/trainmaster"  # where a runtime image has it
AGENT, MASTER = "trainmaster.agent.container:main", "trainmaster.master.container:main"
AGENT_SECRET, MASTER_SECRET = "agent.json", "master.json"
# For a runtime image, whose user may be another than the program's.
_HAND_OVER = f" && mkdir -p -m 777 {HANDED} && cp {SECRET}/{AGENT_SECRET} {HANDED}"
_HANDOVER_SIZE = "2Mi"  # a Secret holds one MiB
# Kubernetes would mount these into every container of a pod that has an account; we mount them into the master's own alone.
_ACCOUNT_FILES: list[dict[str, Any]] = [
    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
]
SCRIPT, MANIFEST = "boot.py", "manifest.json"
# Python; its first argument is the digest. It is in a shell's single quotes, so it contains none.
_LOAD = f"""\
import sys
if sys.version_info < (3, 11): sys.exit({NO_PYTHON})
import hashlib
script, manifest = [open("{BOOT}/" + name, "rb").read() for name in ("{SCRIPT}", "{MANIFEST}")]
if hashlib.sha256(script + manifest).hexdigest() != sys.argv[1]:
    sys.exit("the ConfigMap that says how to fill this pod was changed since the submission")
names = dict(__name__="boot")
exec(compile(script, "{SCRIPT}", "exec"), names)
names["main"](manifest, *sys.argv[2:])
"""
# It contains nothing that Kubernetes would expand, $(NAME) or $$. A Python is started once, for each pod's start waits for it. One that is
# too old says so, or (2) knows no -I; 126 and 127 are the shell's, and those of scripts that find no such version (pyenv).
_FIND = f"""\
for python in "$TRAINMASTER_PYTHON" python3 python3.14 python3.13 python3.12 python3.11; do
  command -v "$python" >/dev/null || continue
  "$python" -I -S -c '{_LOAD}' "$@"
  status=$?
  case $status in {NO_PYTHON}|2|126|127) ;; *) exit $status ;; esac
done
echo "the image has no Python >= 3.11" >&2
exit {NO_PYTHON}
"""


@attrs.frozen(slots=True)
class Piece(Plain):
    """A file that pods get: the Secrets with its pieces, in order, and its digest. `unpacked`: an archive's contents."""

    name: str
    digest: str
    secrets: tuple[str, ...]
    unpacked: bool = False


def agent_key(role: str) -> str:
    """Name the entry of the job's Secret that holds what agents of `role` read."""
    return f"agent.{dns_label(role)}.json"


def boot(pieces: Sequence[Piece]) -> dict[str, str]:
    """Return the files that the init container runs and reads, by their names."""
    manifest = [
        {"name": piece.name, "digest": piece.digest, "unpacked": piece.unpacked, "pieces": list(piece.secrets)}
        for piece in pieces
    ]
    return {SCRIPT: Path(__file__).with_name(SCRIPT).read_text(), MANIFEST: json.dumps(manifest)}


def digest_of(files: Mapping[str, str]) -> str:
    """Return the digest of what `boot` returns, by which the init container knows it again."""
    return hashlib.sha256((files[SCRIPT] + files[MANIFEST]).encode()).hexdigest()


def inside(
    job_id: str, role: str, pieces: Sequence[Piece], digest: str, environment: Mapping[str, str], runtime_image: str = "",
) -> PodBootstrap:  # fmt: skip
    """Return the inner life of a pod: of an agent of `role`, or of the master (""). `digest`: of the files of the init container."""
    file, key = (AGENT_SECRET, agent_key(role)) if role else (MASTER_SECRET, MASTER_SECRET)
    shipped = [
        {"secret": {"name": name, "items": [{"key": "piece", "path": name}]}}
        for piece in pieces
        for name in piece.secrets
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "trainmaster-home", "emptyDir": {}},
        {"name": "trainmaster-secret", "secret": {"secretName": job_id, "items": [{"key": key, "path": file}]}},
    ]
    home: dict[str, Any] = {"name": "trainmaster-home", "mountPath": HOME}
    secret: dict[str, Any] = {"name": "trainmaster-secret", "mountPath": SECRET, "readOnly": True}
    handover: dict[str, Any] = {"name": "trainmaster-handover", "mountPath": HANDOVER}
    # The master's container starts anew in its pod, without init containers, and no program of a user runs in it.
    copied, own = ([secret, handover], [handover]) if role else ([], [secret])
    if role:
        volumes.append({"name": "trainmaster-handover", "emptyDir": {"medium": "Memory", "sizeLimit": _HANDOVER_SIZE}})
    else:
        volumes.append({"name": "trainmaster-account", "projected": {"sources": _ACCOUNT_FILES}})
        own = [secret, {"name": "trainmaster-account", "mountPath": ACCOUNT, "readOnly": True}]
    init: list[dict[str, Any]] = []
    if runtime_image:
        copy = f"cp -R {PUBLISHED} {HOME}/{RUNTIME}" + (_HAND_OVER if role else "")
        mounts = [home, *copied]
        init.append({"name": "runtime", "image": runtime_image, "command": ["sh", "-c", copy], "volumeMounts": mounts})
    if shipped:
        volumes += [
            {"name": "trainmaster-boot", "configMap": {"name": run_name(job_id)}},
            {"name": "trainmaster-pieces", "projected": {"sources": shipped}},
        ]
        mounts = [
            {"name": "trainmaster-boot", "mountPath": BOOT, "readOnly": True},
            {"name": "trainmaster-pieces", "mountPath": PIECES, "readOnly": True},
            home,
        ]
        arguments = [digest, PIECES, HOME]
        if not runtime_image:
            mounts += copied
            arguments += [f"{SECRET}/{file}", HANDED] if role else []
        name = "files" if runtime_image else "runtime"
        command = ["sh", "-c", _FIND, "sh", *arguments]
        init.append({"name": name, "command": command, "env": _python(environment), "volumeMounts": mounts})
    return PodBootstrap(
        init=init,
        command=["sh", f"{HOME}/{RUNTIME}/start", AGENT if role else MASTER],
        env=[
            *({"name": name, "value": value} for name, value in {"TRAINMASTER_CONTAINER": ENGINE.container_side, **environment}.items()),
            {"name": "TRAINMASTER_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "TRAINMASTER_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        volumes=volumes,
        mounts=[home, *own],
        cwd=HOME,
    )  # fmt: skip


def _python(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the variable with the job's own Python, unless it comes with the files: then it is not there yet."""
    path = environment.get("TRAINMASTER_PYTHON", "")
    return [{"name": "TRAINMASTER_PYTHON", "value": path}] if path.startswith("/") else []
