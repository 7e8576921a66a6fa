"""A job as it is on a cluster: with no path of this machine, and with the files of this machine that its containers get.

Its programs see nothing of this machine: each task has a directory of its own, filled from `files`; inputs and outputs are on storage that
every node reaches, and so is the job's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from trainmaster.client.jobs.places import URL, client_side
from trainmaster.client.submit.carried import local_places, rerouted
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import COPIED, Job, Role
from trainmaster.core.spec.threads import CORES, MACHINE
from trainmaster.engines.contract import Shipped
from trainmaster.engines.registry import is_mount
from trainmaster.log.storage import local_path

_ENVIRONMENT = "environment"


def adapted(job: Job, engine: str) -> Job:
    """Return the job as it is on a cluster. Raises BadInput where it names a place of this machine alone."""
    for place, url in _places(job):
        if not URL.match(url):
            shared = ", or write file://PATH where every node has that path" if place != "storage" else ""
            raise BadInput(
                f"{url} is a path of this machine, and the nodes of {engine} do not see it", place=f"{place}: {url}",
                mend=f"put it on storage that they reach (hdfs://, s3://){shared}", anchor="not-on-the-cluster",
            )  # fmt: skip
    if job.storage and not is_mount(job.storage, engine):
        _check_is_mounted(job.storage)
    roles = {name: _with_own_cores(attrs.evolve(role, workdir=COPIED)) for name, role in job.roles.items()}
    storage = job.storage or client_side(engine).store(job).jobs
    return rerouted(attrs.evolve(job, roles=roles, storage=storage), local_places(job), engine)


def _check_is_mounted(storage: str) -> None:
    """Raise BadInput where a storage is a path that this machine does not have: commands here read the job's events from it."""
    path = local_path(storage)
    if path is not None and not os.path.isdir(path):
        raise BadInput(
            f"{path} is not a directory of this machine, and commands here read the job's events from it", place=f"storage: {storage}",
            mend="name a mounted directory that this machine shares with every node, or storage that all reach (hdfs://, s3://)",
            anchor="not-on-the-cluster",
        )  # fmt: skip


def _with_own_cores(role: Role) -> Role:
    """Return the role with the threads that fit its own cores: the others of a node belong to other jobs."""
    return attrs.evolve(role, threads=CORES) if role.threads == MACHINE else role


def _places(job: Job) -> Iterator[tuple[str, str]]:
    yield from ((f"cache[{number}]", url) for number, url in enumerate(job.cache))
    if job.checkpoint is not None and job.checkpoint.url:
        yield "checkpoint.url", job.checkpoint.url
    if job.storage:
        yield "storage", job.storage


def shipped(job: Job, site: Mapping[str, Any]) -> tuple[dict[str, Any], list[Shipped]]:
    """Return `site` with the names that this machine's files have in a container, and these files.

    A file that the engine brings into the container is written as `brought:NAME` (see `data.cached`).
    """
    shipped_site, files = dict(site), []
    brings = client_side(site["engine"]).fetches
    if archive := site.get("archive"):
        files.append(Shipped("files.tar.gz", Path(archive)))
        shipped_site["archive"] = "files.tar.gz"
    archives = []
    for number, entry in enumerate(site.get("archives") or ()):
        source, _, alias = entry.partition("#")
        if not URL.match(source):
            path = Path(source)
            same = next((file.name for file in files if file.path == path), "")
            if not same:  # a container gets one file under one name only (seen with Hadoop 3.4.2)
                files.append(Shipped(f"archive-{number}-{path.name}", path))
            entry = f"{same or f'archive-{number}-{path.name}'}#{alias or path.name.partition('.')[0]}"
        archives.append(_reference(entry, f"archive-{number}", brings, files))
    if archives:
        shipped_site["archives"] = archives
    shipped_site["cache"] = [
        _reference(entry, f"cache-{number}", brings, files) for number, entry in enumerate(job.cache)
    ]
    environment = job.environment
    if environment.path:
        shipped_site["environment"] = environment.path
    elif environment.archive or site.get("environment"):
        url = environment.archive if URL.match(environment.archive) else ""
        path = Path("" if url else environment.archive or site["environment"])
        files.append(Shipped(_ENVIRONMENT, path, url, unpacked=True, own=True))
        shipped_site["environment"] = _ENVIRONMENT
    return shipped_site, files


def _reference(entry: str, name: str, brings: Callable[[str], bool], files: list[Shipped]) -> str:
    """Return `entry`, URL#NAME, as agents read it; where the engine brings it, under `name`, append it to `files`."""
    url, _, alias = entry.partition("#")
    if not brings(url):
        return entry
    from trainmaster.data.cached import ARCHIVES, BROUGHT, plain

    same = next((file.name for file in files if file.url == url and not file.own), "")
    if not same:  # as above
        files.append(Shipped(name, url=url, unpacked=url.endswith(ARCHIVES)))
    name = same or name
    return f"{BROUGHT}{name}#{alias or plain(os.path.basename(url.rstrip('/')))}"
