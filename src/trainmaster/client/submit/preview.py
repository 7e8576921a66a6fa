"""Show what submitting would do, without it: the job as understood, what is asked of the engine, what is shipped, how inputs divide."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.client.jobs.backends import backend
from trainmaster.client.jobs.places import URL, client_side
from trainmaster.client.spec.commands import check_commands
from trainmaster.client.spec.secrets import names
from trainmaster.client.submit.checks import check
from trainmaster.client.submit.files import much_shipped, shipped_files
from trainmaster.client.submit.requests import requests
from trainmaster.client.submit.submit import place
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import COPIED, HADOOP, INPUT_KEYS, SUCCEEDED, Environment, Input, Job, uses
from trainmaster.core.spec.quantities import format_bytes, format_count
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.core.spec.threads import VARIABLES as THREADS
from trainmaster.engines import registry
from trainmaster.engines.registry import DEFAULT
from trainmaster.words.text import not_shipped, readable

if TYPE_CHECKING:
    from trainmaster.core.input.splits import Listing

_SHOWN = 8


def preview(job: Job, base: Path, engine: str = DEFAULT) -> dict[str, Any]:
    """Return the preview as plain data. Raises BadInput as submitting would."""
    where = backend(engine)
    plain, values = place(job, base, os.environ, where)
    check(plain, where, job, probe=False)
    if where.on_this_machine and plain.environment == Environment():
        check_commands(plain, base, os.environ)
    container_requests = requests(plain)
    objects = {}
    if registry.engine(engine).capabilities.dry_run_objects:
        objects = {"objects": client_side(engine).objects(plain, container_requests)}
    return {
        "job": job_to(plain),
        "directory": str(base),
        "engine": engine,
        "requests": [attrs.asdict(request) for request in container_requests],
        "secrets": names(values),
        **objects,
        "threads": thread_shares(plain, engine),
        **_files(plain, job, base),
        "inputs": {name: _input(plain, name, engine, job.inputs[name].urls[0]) for name in plain.inputs},
    }


def _files(job: Job, described: Job, base: Path) -> dict[str, Any]:
    """Return the files that are shipped, where a task works in a directory of its own, and the names of those that cannot be."""
    if not any(role.workdir == COPIED for role in job.roles.values()):
        return {"files": None, "left_out": []}
    shipped, left_out = shipped_files(described, base)
    return {"files": [{"name": name, "bytes": size} for name, size in shipped], "left_out": left_out}


def thread_shares(job: Job, engine: str) -> dict[str, Any]:
    """Return role -> the fewest (`min`) and the most (`max`) threads of each of its programs when they first start and no other job runs.
    `shared`: another job on this machine would make them fewer. `variables`: those that say so, without those that the user has set.
    """
    from trainmaster.core.machine.ranks import copies
    from trainmaster.core.spec.threads import CORES, MACHINE, thread_count, thread_variables
    from trainmaster.host.machine import cores

    # On this machine programs have the submitter's variables, and share the machine.
    is_local = registry.is_on_this_machine(engine)
    shares = {}
    for role in job.roles.values():
        threads = CORES if role.threads == MACHINE and not is_local else role.threads
        running = copies(role.processes, role.resources.gpus)
        most, least = (
            thread_count(threads, role.resources.cores, running, cores(), tasks)
            for tasks in tasks_at_start(job, role.name)
        )
        variables = thread_variables(most, dict.fromkeys([*(os.environ if is_local else ()), *role.env], ""))
        shares[role.name] = {"min": least, "max": most, "variables": sorted(variables), "shared": threads == MACHINE}
    return shares


def tasks_at_start(job: Job, role: str) -> tuple[int, int]:
    """Return the fewest and the most tasks of the job that its master counts when the tasks of `role` first start: without those of roles
    that start later or have succeeded by then. A gang begins with any number of containers from its least on.
    """
    from trainmaster.core.spec.dependencies import stages

    stage = stages(job.roles)
    begun = [other for other in job.roles.values() if stage[other.name] <= stage[role] and not other.idles]
    succeeded = {name for other in begun for name, condition in other.after.items() if condition == SUCCEEDED}
    replicas = [other.replicas for other in begun if other.name not in succeeded]
    most = sum(size.most for size in replicas)
    return (most if job.gang is False else sum(size.least for size in replicas)), most


def thread_lines(shares: dict[str, Any]) -> Iterator[str]:
    """Yield the threads of each role's programs, for people."""
    for role, share in shares.items():
        count = f"{share['min']}" if share["min"] == share["max"] else f"{share['min']} to {share['max']}"
        by_user = sorted({*THREADS} - {*share["variables"]})
        yield (
            f"threads of each {role} program's libraries: {count}"
            + ("" if share["min"] == share["max"] else ", by how many of the job's tasks begin together")
            + (", fewer beside other jobs" if share["shared"] and share["max"] > 1 else "")
            + (f", except {', '.join(by_user)}, which you have set" if by_user else "")
        )


def _input(job: Job, name: str, engine: str, described: str) -> dict[str, Any]:
    """Return how an input of this machine divides; others are listed when the job runs. `described`: its URL as its user wrote it."""
    from trainmaster.data.store.stores import local_path

    source = job.inputs[name]
    readers = [
        f"{role.name}:{i}"
        for role in job.roles.values()
        if source in uses(job, role.name)
        for i in range(role.replicas.max)
    ]
    is_carried = not registry.is_on_this_machine(engine) and not URL.match(described)
    elsewhere = is_carried or not all(map(local_path, source.urls)) or registry.is_mount(source.urls[0], engine)
    if source.as_ in ("mount", "follow") or elsewhere or source.format.startswith(HADOOP):
        return {"url": source.location, "as": source.as_, "readers": readers}
    from trainmaster.core.input.splits import parts
    from trainmaster.data.sources import list_input

    listing = list_input(source)
    facts = {
        "url": source.location,
        "as": source.as_,
        "readers": readers,
        "files": len(listing.files),
        "bytes": listing.size,
    }
    if source.as_ == "stream":
        facts["parts"] = _stream_parts(source, listing, readers)
    elif source.as_ in ("download", "list"):
        divided = parts(listing.files, len(readers), "whole" if source.split == "whole" else "split")
        facts["parts"] = {
            task: {"files": len(part), "bytes": sum(file.size for file in part)}
            for task, part in zip(readers, divided, strict=True)
        }
    return facts


def _stream_parts(source: Input, listing: Listing, readers: list[str]) -> dict[str, dict[str, int]]:
    """Return each task's part of a stream: ranges of the files that can be cut, else whole files."""
    from trainmaster.core.input.splits import split_records
    from trainmaster.data.formats.formats import cuttable

    whole = source.split == "whole"
    divided = split_records(
        listing.files, 1 if whole else len(readers), lambda file: cuttable(source.format, file.path)
    )
    sizes = {file.path: file.size for file in listing.files}
    parts = [
        {
            "files": len(part),
            "bytes": sum((sizes[span.path] if span.end is None else span.end) - span.start for span in part),
        }
        for part in divided
    ]
    return dict(zip(readers, parts * len(readers) if whole else parts, strict=not whole))


def _without_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Return the job without the keys that change nothing: it is read as the same job. The name stays."""
    job, name = job_from(data), data["name"]

    def is_same(candidate: dict[str, Any]) -> bool:
        try:
            return job_from({"name": name, **candidate}) == job
        except BadInput:
            return False

    def thin(section: dict[str, Any], whole: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Return a section without such keys. `whole`: makes a job of the section."""
        for key in list(section):
            rest = {other: value for other, value in section.items() if other != key}
            if is_same(whole(rest)):
                section = rest
            elif isinstance(section[key], dict):
                section = {**section, key: thin(section[key], partial(_within, section, key, whole))}
        return section

    thinner = thin(data, dict)
    while thinner != data:  # without one key, another one may have its default
        data, thinner = thinner, thin(thinner, dict)
    roles = {role: _short(keys) for role, keys in thinner["roles"].items()}
    return {"name": name, **thinner, "roles": roles}


def _within(section: dict[str, Any], key: str, whole: Callable[[dict[str, Any]], dict[str, Any]], part: Any) -> Any:
    return whole({**section, key: part})


def _short(role: dict[str, Any]) -> dict[str, Any]:
    """Return a role whose fixed number of replicas is a number."""
    replicas = role.get("replicas")
    if isinstance(replicas, dict) and len({*replicas.values()}) == 1 and "min" in replicas:
        return {**role, "replicas": replicas["min"]}
    return role


def _plain(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job as a user would write it: a fixed number of replicas is a number, and an input has the keys that act on it."""
    roles = {name: _short(role) for name, role in job["roles"].items()}
    inputs = {
        name: {key: value for key, value in source.items() if key in ("url", "as", "to", *INPUT_KEYS[source["as"]])}
        for name, source in job["inputs"].items()
    }
    written: dict[str, Any] = readable({**job, "roles": roles, "inputs": inputs})
    return written


def lines(plan: dict[str, Any], everything: bool = False) -> Iterator[str]:
    """Yield the preview for people: a job file, `everything` with the keys that have their defaults, and as comments in it the request.
    Where an engine makes objects, these are the YAML, and all else is comments in it.
    """
    comments = [f"# {line}".rstrip() for line in request_lines(plan)]
    if "objects" not in plan:
        yield from (*_job_file_lines(plan["job"], everything), "", *comments)
        return
    from trainmaster.kube.manifest import as_yaml

    yield from (*(f"# {line}".rstrip() for line in _job_file_lines(plan["job"], everything)), "#", *comments, "---")
    yield from as_yaml(plan["objects"]).splitlines()


def _job_file_lines(job: dict[str, Any], everything: bool) -> list[str]:
    import yaml

    shown = _plain(job) if everything else _without_defaults(job)
    text: str = yaml.safe_dump(shown, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)
    return text.splitlines()


def request_lines(plan: dict[str, Any]) -> Iterator[str]:
    """Yield what is asked for, without objects."""
    yield f"asked of {plan['engine']}, in {plan['directory']}:"
    groups: dict[tuple[Any, ...], int] = {}
    for request in plan["requests"]:
        key = (
            request["role"],
            request["cores"],
            request["memory"],
            request["program_memory"],
            request["gpus"],
            request["gang"],
            tuple(request["extended"].items()),
        )
        groups[key] = groups.get(key, 0) + 1
    for (role, cores, memory, program, gpus, gang, extended), count in groups.items():
        parts = [
            f"{cores:g} {'core' if cores == 1 else 'cores'}",
            f"{format_bytes(memory)} ({format_bytes(program)} for the program)",
            *([format_count(gpus, "GPU")] if gpus else []),
            *(f"{number} {name}" for name, number in extended),
        ]
        yield f"  {count} x {role}: {', '.join(parts)}{', together' if gang else ''}"
    yield from thread_lines(plan["threads"])
    if plan["files"] is not None:
        total = sum(file["bytes"] for file in plan["files"])
        yield f"shipped: {format_count(len(plan['files']), 'file')}, {format_bytes(total)}"
        yield from much_shipped([(file["name"], file["bytes"]) for file in plan["files"]])
    if plan["left_out"]:
        yield not_shipped(plan["left_out"])
    for name, source in plan["inputs"].items():
        size = (
            f", {format_count(source['files'], 'file')}, {format_bytes(source['bytes'])}" if "files" in source else ""
        )
        yield f"input {name}: {source['as']} of {source['url']}{size}"
        for task, part in list(source.get("parts", {}).items())[:_SHOWN]:
            yield f"  {task}: {format_count(part['files'], 'file')}, {format_bytes(part['bytes'])}"
    if plan["secrets"]:
        yield f"secrets, kept in no file: {', '.join(plan['secrets'])}"
