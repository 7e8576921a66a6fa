"""The environment of a program: its submitter's, then what the job says, then what only this end of it knows.

What a role says goes before what the whole job says: its own variables, secret or not, before the secrets of every role. A framework's
`defaults` yield to the submitter's own variables. PYTHONPATH gets one directory, appended last, which holds nothing but
`trainmaster/runtime`: no import of the program's changes its file, and a Trainmaster that the program's own Python has goes first, for
`trainmaster` is there a namespace without code of its own (PEP 420).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import trainmaster
from trainmaster.agent.attempt.place import Place
from trainmaster.agent.attempt.workplace import variable
from trainmaster.core.spec.threads import thread_variables

Texts = Mapping[str, str]


def environ(
    place: Place, attempt: int, env: Texts, defaults: Texts, inputs: Texts, outputs: Mapping[str, Mapping[str, Any]],
    threads: int | None = None,
) -> dict[str, str]:  # fmt: skip
    """`env`, `defaults` and `threads` as ordered; `inputs` as they are told, `outputs` with their places."""
    site = place.workplace
    told = {f"TRAINMASTER_INPUT_{variable(name)}": path for name, path in inputs.items()}
    told |= {f"TRAINMASTER_PORT_{variable(name)}": str(port) for name, port in site.ports.items()}
    for name, output in outputs.items():
        path = "-" if output["as"] == "stream" else f"{site.cwd}/{output['local']}"
        told[f"TRAINMASTER_OUTPUT_{variable(name)}"] = path
    told |= {
        "TRAINMASTER_JOB": place.job, "TRAINMASTER_ROLE": place.role, "TRAINMASTER_INDEX": str(place.index),
        "TRAINMASTER_ATTEMPT": str(attempt), "TRAINMASTER_SOCKET": place.programs.path,
    }  # fmt: skip
    if place.devices:
        told["CUDA_VISIBLE_DEVICES"] = ",".join(place.devices)
    before = {"PYTHONUNBUFFERED": "1", **filled(place, defaults)}
    shared, own = place.secrets.get("", {}), place.secrets.get(place.role, {})
    whole = {**before, **place.environ, **shared, **told, **filled(place, env), **own, "PWD": site.cwd}
    if threads is not None:
        whole |= thread_variables(threads, whole)
    runtime = runtime_path(os.path.dirname(site.private))
    whole["PYTHONPATH"] = f"{whole['PYTHONPATH']}:{runtime}" if whole.get("PYTHONPATH") else runtime
    return whole


def filled(place: Place, env: Texts) -> dict[str, str]:
    """Variables with the places that they name filled in."""
    return {name: place.workplace.filled(str(value), place.address) for name, value in env.items()}


def runtime_path(folder: str) -> str:
    """The directory for PYTHONPATH, below the job's own `folder`; made once."""
    path = os.path.join(folder, "python")
    link = os.path.join(path, "trainmaster", "runtime")
    if not os.path.lexists(link):
        os.makedirs(os.path.dirname(link), exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another task of the job has made it
            os.symlink(os.path.join(os.path.dirname(os.path.abspath(trainmaster.__file__)), "runtime"), link)
    return path
