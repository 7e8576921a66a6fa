"""What is in a pod beside the user's image: our runtime and the job's files, put there by an init container.

    /trainmaster/boot     the job's ConfigMap: what the init container runs (`boot.py`), and what it is to put together
    /trainmaster/pieces   Secrets with the pieces of the runtime and of the job's files; in the init container alone
    /trainmaster/secret   token, key and secrets: for the agent its part, for the master all
    /trainmaster/home     the pod's own directory, empty at first: the runtime, the files, and the tasks' working directories

The init container runs in the *user's* image, with its Python, which it looks for as a shell does; an image without one ends with a status
of its own. What the client sent once is read from the cluster whenever a pod starts, so nothing of the client's is needed later. Where a
`runtime_image` is named, the runtime is copied out of that instead, and is in no Secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from trainmaster.core.plain import Plain
from trainmaster.engines.kubernetes.pods import Inside
from trainmaster.engines.statuses import NO_PYTHON

ROOT = "/trainmaster"
BOOT, PIECES, SECRET, HOME = f"{ROOT}/boot", f"{ROOT}/pieces", f"{ROOT}/secret", f"{ROOT}/home"
RUNTIME = "runtime"  # the runtime archive's folder in HOME
PUBLISHED = "/opt/trainmaster"  # where a runtime image has it
AGENT, MASTER = "trainmaster.agent.container:main", "trainmaster.master.container:main"
AGENT_SECRET, MASTER_SECRET = "agent.json", "master.json"
SCRIPT, MANIFEST = "boot.py", "manifest.json"
# What Kubernetes would expand, $(NAME) and $$, is not in it.
_FIND = f"""\
for python in "$TRAINMASTER_PYTHON" python3 python3.14 python3.13 python3.12 python3.11; do
  [ -n "$python" ] && "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
    exec "$python" -I -S {BOOT}/{SCRIPT} {BOOT} {PIECES} {HOME}
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


def boot(pieces: Sequence[Piece]) -> dict[str, str]:
    """What the job's ConfigMap holds for the init container."""
    manifest = [
        {"name": one.name, "digest": one.digest, "unpacked": one.unpacked, "pieces": list(one.secrets)}
        for one in pieces
    ]
    return {SCRIPT: Path(__file__).with_name(SCRIPT).read_text(), MANIFEST: json.dumps(manifest)}


def inside(
    job_id: str, entry: str, pieces: Sequence[Piece], environment: Mapping[str, str], runtime_image: str = "", master: bool = False,
) -> Inside:  # fmt: skip
    """The inner life of a pod that becomes `entry` (MODULE:FUNCTION of the runtime)."""
    secret = MASTER_SECRET if master else AGENT_SECRET
    shipped = [
        {"secret": {"name": name, "items": [{"key": "piece", "path": name}]}} for one in pieces for name in one.secrets
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "trainmaster-home", "emptyDir": {}},
        {"name": "trainmaster-secret", "secret": {"secretName": job_id, "items": [{"key": secret, "path": secret}]}},
    ]
    home = {"name": "trainmaster-home", "mountPath": HOME}
    init: list[dict[str, Any]] = []
    if runtime_image:
        copied = ["sh", "-c", f"exec cp -R {PUBLISHED} {HOME}/{RUNTIME}"]
        init.append({"name": "runtime", "image": runtime_image, "command": copied, "volumeMounts": [home]})
    if shipped:
        volumes += [
            {"name": "trainmaster-boot", "configMap": {"name": job_id, "items": _items(SCRIPT, MANIFEST)}},
            {"name": "trainmaster-pieces", "projected": {"sources": shipped}},
        ]
        mounts = [
            {"name": "trainmaster-boot", "mountPath": BOOT, "readOnly": True},
            {"name": "trainmaster-pieces", "mountPath": PIECES, "readOnly": True},
            home,
        ]
        name = "files" if runtime_image else "runtime"
        init.append({"name": name, "command": ["sh", "-c", _FIND], "env": _python(environment), "volumeMounts": mounts})
    return Inside(
        init=init,
        command=["sh", f"{HOME}/{RUNTIME}/start", entry],
        env=[
            *({"name": name, "value": value} for name, value in {"TRAINMASTER_ENGINE": "kubernetes", **environment}.items()),
            {"name": "TRAINMASTER_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "TRAINMASTER_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        volumes=volumes,
        mounts=[home, {"name": "trainmaster-secret", "mountPath": SECRET, "readOnly": True}],
        cwd=HOME,
    )  # fmt: skip


def _items(*keys: str) -> list[dict[str, str]]:
    return [{"key": key, "path": key} for key in keys]


def _python(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """The job's own Python is not there yet where it comes with the files."""
    given = environment.get("TRAINMASTER_PYTHON", "")
    return [{"name": "TRAINMASTER_PYTHON", "value": given}] if given.startswith("/") else []
