"""What submitting would do, without doing it: the job as understood, what is asked of the engine, what is shipped, how inputs divide."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from trainmaster.client.secrets import names
from trainmaster.client.submit import check, prepared, requests, shipped_files
from trainmaster.core.job import COPIED, Job, uses
from trainmaster.core.quantities import format_bytes, format_count
from trainmaster.core.reading import job_to

_SHOWN = 8


def preview(job: Job, base: Path) -> dict[str, Any]:
    """Plain data; raises BadInput as submitting would."""
    plain, values = prepared(job, base, os.environ)
    check(plain, probe=False)
    asked = [attrs.asdict(request) for request in requests(plain)]
    return {
        "job": job_to(plain),
        "directory": str(base),
        "engine": "local",
        "requests": asked,
        "secrets": names(values),
        "files": _files(plain, base),
        "inputs": {name: _input(plain, name) for name in plain.inputs},
    }


def _files(job: Job, base: Path) -> list[dict[str, Any]] | None:
    """The files that are shipped, where a task works in a directory of its own."""
    if not any(role.workdir == COPIED for role in job.roles.values()):
        return None
    return [{"name": name, "bytes": size} for name, size in shipped_files(job, base)]


def _input(job: Job, name: str) -> dict[str, Any]:
    """How an input of this machine divides; others are listed when the job runs."""
    from trainmaster.data.stores import local_path

    given = job.inputs[name]
    readers = [
        f"{role.name}:{i}"
        for role in job.roles.values()
        if given in uses(job, role.name)
        for i in range(role.replicas.max)
    ]
    if local_path(given.url) is None:
        return {"url": given.url, "as": given.as_, "readers": readers}
    from trainmaster.core.splits import parts
    from trainmaster.data.sources import list_input

    listing = list_input(given.url, f"inputs.{name}.url")
    told = {"url": given.url, "as": given.as_, "readers": readers, "files": len(listing.files), "bytes": listing.size}
    if given.as_ in ("download", "list"):
        divided = parts(listing.files, len(readers), "whole" if given.split == "whole" else "split")
        told["parts"] = {
            task: {"files": len(part), "bytes": sum(file.size for file in part)}
            for task, part in zip(readers, divided, strict=True)
        }
    return told


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    import yaml

    yield from yaml.safe_dump(found["job"], sort_keys=False, default_flow_style=None, width=120).splitlines()
    yield ""
    yield f"asked of {found['engine']}, in {found['directory']}:"
    groups: dict[tuple[Any, ...], int] = {}
    for request in found["requests"]:
        key = (
            request["role"],
            request["cores"],
            request["memory"],
            request["program_memory"],
            request["gpus"],
            request["gang"],
        )
        groups[key] = groups.get(key, 0) + 1
    for (role, cores, memory, program, gpus, gang), count in groups.items():
        parts = [
            f"{cores:g} cores",
            f"{format_bytes(memory)} ({format_bytes(program)} for the program)",
            *([f"{gpus} GPUs"] if gpus else []),
        ]
        yield f"  {count} x {role}: {', '.join(parts)}{', together' if gang else ''}"
    if found["files"] is not None:
        total = sum(file["bytes"] for file in found["files"])
        yield f"shipped: {format_count(len(found['files']), 'file')}, {format_bytes(total)}"
    for name, told in found["inputs"].items():
        size = f", {format_count(told['files'], 'file')}, {format_bytes(told['bytes'])}" if "files" in told else ""
        yield f"input {name}: {told['as']} of {told['url']}{size}"
        for task, part in list(told.get("parts", {}).items())[:_SHOWN]:
            yield f"  {task}: {format_count(part['files'], 'file')}, {format_bytes(part['bytes'])}"
    if found["secrets"]:
        yield f"secrets, kept in no file: {', '.join(found['secrets'])}"
