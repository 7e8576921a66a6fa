"""A user names a job by `engine://place/id`, its id, its name, or any beginning of an id that no other job shares.

A name stands for its job that runs, else for its newest: whoever starts a job again and again means the present one. A name may be
written as the job has it, or as the job's ids begin: in small letters, and with no more than 40 characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import attrs

from trainmaster.client.jobs.places import engine_of, in_id, job_ids, site_of
from trainmaster.core.errors import BadInput, NotFound, TrainmasterError
from trainmaster.engines import registry

_SHOWN = 5
_ENDING = re.compile("-[a-z2-7]{6}")  # follows the name in an id


@attrs.frozen(slots=True)
class Handle:
    """One job on one engine. `place` is the machine it was submitted from; "" for this one."""

    id: str
    engine: str = registry.DEFAULT
    place: str = ""

    def __str__(self) -> str:
        return f"{self.engine}://{self.place}/{self.id}"


def handle_of(job: str) -> Handle:
    """Return the handle of a job that was submitted from this machine."""
    import socket

    return Handle(job, engine_of(job), socket.gethostname())


def resolve(text: str) -> str:
    """Return the id that `text` names. Raises NotFound where no job is meant, BadInput where several are."""
    identifier = parse(text).id
    known = job_ids()
    if identifier in known:
        return identifier
    for name in dict.fromkeys((identifier, in_id(identifier))):
        named = [job for job in known if job.startswith(name) and _ENDING.fullmatch(job.removeprefix(name))]
        if named:
            return named[0] if len(named) == 1 else _running_or_newest(name, named)
    begun = sorted(job for job in known if job.startswith(identifier))
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise _ambiguous(f"{identifier} is the beginning of {len(begun)} jobs", begun)
    if named := [job for job in known if site_of(job).get("application") == identifier]:
        return named[0]
    job, trouble = _job_on_cluster(parse(text))
    if job:
        return job
    from difflib import get_close_matches

    near = get_close_matches(identifier, known, 1, 0.6)
    raise NotFound(
        f"there is no job {identifier}" + (f"; did you mean {near[0]}?" if near else ""),
        place=f"the cluster could not be asked: {trouble}" if trouble else "",
        mend="see them all: tm list",
        anchor="no-such-job",
    )


def _job_on_cluster(handle: Handle) -> tuple[str, str]:
    """Return our job on a cluster that is meant, submitted from another machine; "" where there is none, or no cluster is at hand. Return
    also why a cluster could not be asked, else "".
    """
    from trainmaster.client.jobs.adopting import adopt

    trouble = ""
    for engine, is_named in _clusters(handle):
        try:
            jobs = adopt(engine, handle.id)
        except TrainmasterError as error:
            if is_named or error.anchor == "job-rights":  # the cluster has the job
                raise
            trouble = error.message  # the job need not be on that cluster at all
            continue
        if len(jobs) > 1:
            raise _ambiguous(f"{handle.id} is the beginning of {len(jobs)} jobs", jobs)
        if jobs:
            return jobs[0], ""
    return "", trouble


def _clusters(handle: Handle) -> Iterator[tuple[str, bool]]:
    """Yield the clusters that may have the job, and whether the user named them: the one that the handle names, else those at hand."""
    named = "" if registry.is_on_this_machine(handle.engine) else handle.engine
    if named := named or engine_of_application(handle.id):
        yield named, True
        return
    yield from ((engine, False) for engine in registry.configured())


def engine_of_application(text: str) -> str:
    """Return the engine whose own tools call a job `text`; "" where no engine's tools do."""
    for engine in registry.usable():
        pattern = engine.capabilities.application_id
        if pattern and re.fullmatch(pattern, text):
            return engine.name
    return ""


def _running_or_newest(name: str, named: list[str]) -> str:
    """Return the job of one name that runs, else the newest."""
    from trainmaster.client.jobs.places import state_dir
    from trainmaster.log.index import jobs
    from trainmaster.log.storage import LocalStorage

    headlines = [job for job in jobs(LocalStorage(state_dir())) if job.id in named]  # newest first
    running = [job.id for job in headlines if job.ended is None and not job.unreadable]
    if len(running) > 1:
        raise _ambiguous(f"{len(running)} jobs named {name} are running", running)
    return running[0] if running else headlines[0].id


def _ambiguous(problem: str, jobs: list[str]) -> BadInput:
    shown = ", ".join(jobs[:_SHOWN]) + (", ..." if len(jobs) > _SHOWN else "")
    return BadInput(f"{problem}: {shown}", mend="give more of the id", anchor="ambiguous-job")


def parse(text: str) -> Handle:
    """Return the parts of a handle, whether the job exists or not."""
    engine, separator, rest = text.strip().partition("://")
    place, _, job = rest.partition("/") if separator else ("", "", engine)
    engine = engine if separator else registry.DEFAULT
    registry.engine(engine, text)  # raises BadInput where there is none
    if not job or "/" in job or job.startswith("."):
        raise BadInput(f"{text!r} names no job", mend="see them all: tm list", anchor="no-such-job")
    return Handle(job, engine, place)
