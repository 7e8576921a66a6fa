"""Compose the environment of a program: its submitter's, then the job's, then the values that only the agent knows.

A role's own variables, secret or not, override the whole job's and the secrets of every role. The submitter's own variables override a
framework's `defaults` and the settings of libraries for the network. PYTHONPATH gets one directory, appended last, which holds those
packages of `trainmaster` alone that are made for programs. So every import of the program finds the same file as without us. A Trainmaster
in the program's own Python takes precedence, because `trainmaster` in that directory is a namespace without code of its own (PEP 420).
ElasticDL's packages are in a second directory, which TRAINMASTER_ALIAS=elasticdl appends. They come before an ElasticDL that is installed.
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
_VISIBLE = "CUDA_VISIBLE_DEVICES"
PROGRAMS = ("elasticdl", "ps", "runtime", "zoo")  # our packages that programs import: these import nothing else of ours


def environ(
    place: Place, attempt: int, env: Texts, defaults: Texts, inputs: Texts, outputs: Mapping[str, Mapping[str, Any]],
    threads: int | None = None, checkpoint: Mapping[str, Any] | None = None, memory: int | None = None,
) -> dict[str, str]:  # fmt: skip
    """Return the whole environment. `env`, `defaults`, `threads` and `memory` (bytes, the program's limit) are the order's; `inputs` maps
    names to paths, `outputs` to places.

    Memory for the states that a program saves is not offered where a set must tell which records of shards it has seen.
    """
    site = place.workplace
    variables = {f"TRAINMASTER_INPUT_{variable(name)}": path for name, path in inputs.items()}
    variables |= {f"TRAINMASTER_PORT_{variable(name)}": str(port) for name, port in site.ports.items()}
    for name, output in outputs.items():
        path = "-" if output["as"] == "stream" else f"{site.cwd}/{output['local']}"
        variables[f"TRAINMASTER_OUTPUT_{variable(name)}"] = path
    variables |= {
        "TRAINMASTER_JOB": place.job, "TRAINMASTER_ROLE": place.role, "TRAINMASTER_INDEX": str(place.index),
        "TRAINMASTER_ATTEMPT": str(attempt), "TRAINMASTER_SOCKET": place.programs.path,
    }  # fmt: skip
    if checkpoint:
        variables["TRAINMASTER_CHECKPOINT"] = os.path.normpath(os.path.join(site.cwd, checkpoint["path"]))
    if memory is not None:
        variables["TRAINMASTER_MEMORY_LIMIT"] = str(memory)
    if not checkpoint or checkpoint.get("memory"):
        variables["TRAINMASTER_MEMORY"] = site.memory()
    fallbacks = {"PYTHONUNBUFFERED": "1", **place.way.variables(), **filled(place, defaults)}
    if place.devices:
        variables[_VISIBLE] = ",".join(place.devices)
    elif place.on_this_machine:  # a cluster shows a container its own devices alone
        from trainmaster.host.machine import has_driver  # which the agents of a template have loaded

        if has_driver():
            fallbacks[_VISIBLE] = ""
    job_secrets, role_secrets = place.secrets.get("", {}), place.secrets.get(place.role, {})
    merged = {
        **fallbacks,
        **place.environ,
        **job_secrets,
        **variables,
        **filled(place, env),
        **role_secrets,
        "PWD": site.cwd,
    }
    if threads is not None:
        merged |= thread_variables(threads, merged)
    runtime = runtime_path(os.path.dirname(site.private))
    alias = merged.get("TRAINMASTER_ALIAS")
    paths = (merged.get("PYTHONPATH"), runtime, alias and f"{runtime}/trainmaster/{alias}/alias")
    merged["PYTHONPATH"] = ":".join(path for path in paths if path)
    return merged


def filled(place: Place, env: Texts) -> dict[str, str]:
    """Return the variables with the places that they name filled in, and `{index}`, the task's in its role."""
    index = str(place.index)
    return {
        name: place.workplace.filled(str(value).replace("{index}", index), place.address) for name, value in env.items()
    }


def runtime_path(folder: str) -> str:
    """Return the directory for PYTHONPATH, below the job's own `folder`; made once."""
    path = os.path.join(folder, "python")
    ours, theirs = os.path.dirname(os.path.abspath(trainmaster.__file__)), os.path.join(path, "trainmaster")
    os.makedirs(theirs, exist_ok=True)
    for name in PROGRAMS:
        with contextlib.suppress(FileExistsError):  # another task of the job has made it
            os.symlink(os.path.join(ours, name), os.path.join(theirs, name))
    return path
