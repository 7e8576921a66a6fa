"""From a command line to a job: a file, flags and a command become one description, with the origin of each value."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from trainmaster.client.spec.flags import ROLE, layer
from trainmaster.core.errors import BadInput, NotFound
from trainmaster.core.input.shards import OUTPUTS
from trainmaster.core.machine.state import keeper_of
from trainmaster.core.spec.job import COPIED, COUNTED_LATER, SHARED, Job, uses
from trainmaster.core.spec.shapes import PER_GPU
from trainmaster.engines import registry
from trainmaster.engines.registry import DEFAULT
from trainmaster.frameworks.launchers import OURS, set_by_launchers

_PLAIN = ("job", "trainmaster")  # stems of job files that name nothing; their directory does
_SCRIPT = re.compile(r"[\w./-]+\.[A-Za-z]\w*")  # the first argument of an interpreter that names a file; 0.5 does not
_PROGRAMS = {".py": "python", ".sh": "sh"}
_INTERPRETERS = ("python", "sh", "bash", "env", "perl", "node", "julia", "Rscript")


@attrs.frozen(slots=True)
class Described:
    """A job, the directory that its paths are relative to, where its values came from, and the engine it is for."""

    job: Job
    base: Path
    origins: Mapping[tuple[str, ...], str]
    engine: str = DEFAULT


def describe(file: str | None, options: Mapping[str, Any], command: Sequence[str], engine: str = DEFAULT) -> Described:
    """Return the job of a file, of flags and a command, or of both. Raises BadInput, naming the place of what is wrong."""
    from trainmaster.client.spec import settings

    registry.engine(engine)  # raises BadInput where there is none
    if file is None and not command:
        raise BadInput(
            "there is no job: neither a job file nor a command",
            mend="tm run job.yaml, or tm run -- python train.py",
            anchor="no-job",
        )
    try:
        working_directory = Path.cwd()
    except FileNotFoundError as error:
        raise BadInput("the present directory was removed", mend="go to one that is there", anchor="no-file") from error
    data, origins = _loaded(file)
    base = _folder_of(file) if file not in (None, "-") else working_directory
    roles = list(data.get("roles") or ()) if isinstance(data.get("roles"), Mapping) else []
    flags, flag_origins = layer(options, command, roles, engine)
    _refuse_unknown_roles(flags, flag_origins, roles)
    named: settings.Layer = ({"name": _name(file, command)}, {("name",): "its file or program"})
    job, places = settings.job([named, *settings.standing(), (data, origins), (flags, flag_origins)])
    return Described(job, base, places, engine)


def _folder_of(file: str) -> Path:
    """Return a job file's directory, with one spelling: `..` in it is followed, and a job is the same one by whatever way it is named."""
    folder = Path(file).absolute().parent
    return folder.resolve() if ".." in folder.parts else folder


def _loaded(file: str | None) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    if file is None:
        return {}, {}
    from trainmaster.client.spec import jobfile

    if (interpreter := _PROGRAMS.get(os.path.splitext(file)[1])) is not None:
        how = f"{interpreter} {file}"
        raise BadInput(
            f"{file} is a program, not a job file", mend=f"a command comes after --: tm run -- {how}", anchor="no-job"
        )
    if file == "-":
        import sys

        return jobfile.parse(sys.stdin.read(), "stdin")
    try:
        return jobfile.load(file)
    except NotFound as error:
        if not os.path.exists(file) and not file.endswith((".yaml", ".yml", ".json")):
            error.mend = f"a command comes after --: tm run -- {file} ..."
        raise


def _refuse_unknown_roles(
    flags: Mapping[str, Any], origins: Mapping[tuple[str, ...], str], roles: Sequence[str]
) -> None:
    """Raise BadInput where a flag names a role that the job does not have: a misspelt name must not become a new role."""
    for role in flags.get("roles") or () if roles else ():
        if role not in roles:
            from trainmaster.core.spec.reading import nearest

            place = next(
                f"{'.'.join(path)}   ({origin})" for path, origin in origins.items() if path[:2] == ("roles", role)
            )
            raise BadInput(
                f"the job has no role {role!r}", place=place, mend=nearest(role, roles), anchor="unknown-role"
            )


def _name(file: str | None, command: Sequence[str]) -> str:
    """Return the name of a job that has none: its file, or the directory of a file called job.yaml, or its program."""
    if file not in (None, "-"):
        path = Path(str(file)).absolute()
        text = path.parent.name if path.stem in _PLAIN else path.stem
    else:
        text = program(command)
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text).strip("-")
    return plain[:60] or "job"


def program(command: Sequence[str]) -> str:
    """Return a program's name: `train` for python train.py, `python` for python -c ..., `eval` for ./eval.sh."""
    program, *rest = command or ("job",)
    words = [word for word in rest if not word.startswith("-")]
    script = words[0] if words and words[0] == rest[0] and _SCRIPT.fullmatch(words[0]) else ""
    name = os.path.basename(script or program)
    return name if name.rstrip("0123456789.") in _INTERPRETERS else name.partition(".")[0]


# Keys that change nothing on one machine, and why.
_UNUSED = {
    "network": "tasks on one machine reach each other by 127.0.0.1",
    "master": "on one machine the master has no container of its own",
}


def job_warnings(job: Job, engine: str = DEFAULT, written: Collection[tuple[str, ...]] = ()) -> Iterator[str]:
    """Yield the warnings of a submit: points of the job that are likely not meant. `written`: the keys that its user wrote."""
    capabilities = registry.engine(engine).capabilities
    if capabilities.on_this_machine:
        yield from _unused(job)
        yield from left_out_lines(job, engine, skipped=OURS)  # no user sets what a job tells its programs
    else:
        yield from _unshared(job, engine, written)
    if capabilities.without_storage and not job.storage:
        yield capabilities.without_storage
    for role in job.roles.values():
        restarts = role.restart.scope != "never" and role.restart.limit
        # A program need not read an input that it counts itself.
        shards = any(source.as_ == "shards" and source.url != COUNTED_LATER for source in uses(job, role.name))
        if not restarts or "trainmaster.zoo" in role.command:  # that program needs no advice on how its state is kept
            continue
        if job.checkpoint is None and shards and keeper_of(job, role.name) == OUTPUTS:
            yield (
                f"role {role.name} reads shards and has no checkpoint: what an attempt has read is given out again where it ends before "
                "its outputs are committed, also to a program that goes on from a checkpoint of its own"
            )
        elif job.checkpoint is None and shards:
            yield (
                f"role {role.name} reads shards and has no checkpoint; if its program keeps checkpoints of its own, "
                "what it read after the one it begins from is not given out again"
            )
        elif job.checkpoint is None and role.counts and (role.workdir == COPIED or not capabilities.on_this_machine):
            yield (
                f"role {role.name} may restart and the job has no checkpoint; what its program keeps in its own directory "
                "is not sure to be there again"
            )
        elif shards and role.restart.scope == "task":
            yield (
                f"role {role.name} reads shards and restarts task by task: what it read since the checkpoint it begins from "
                "is not given out again; where the checkpoint is all that it knows, set restart.scope: group"
            )


def job_notes(job: Job, engine: str = DEFAULT) -> Iterator[str]:
    """Yield what a submit says of a job that may be meant so: its programs see no GPU of this machine, as it asks for none."""
    from trainmaster.host.machine import VISIBLE, shows_devices

    roles = list(job.roles.values())
    is_asked = any(role.resources.gpus or role.processes == PER_GPU or VISIBLE in role.env for role in roles)
    if is_asked or VISIBLE in os.environ or not registry.is_on_this_machine(engine) or not shows_devices():
        return
    role = job.roles.get(ROLE, roles[0])
    flag = f" (--gpus {role.processes})" if role.name == ROLE or len(roles) == 1 else ""
    yield (
        "the programs see no GPU of this machine, because the job asks for none; "
        f"for one in each program set roles.{role.name}.resources.gpus: {role.processes}{flag}"
    )


def left_out_lines(job: Job, engine: str, skipped: str = "") -> Iterator[str]:
    """Yield a sentence that names the submitter's variables which the programs do not get, without those of the launcher `skipped`."""
    passed_on = {name for role in job.roles.values() for name in role.env}
    by_launcher = set_by_launchers({name: "" for name in os.environ if name not in passed_on})
    groups = {launcher: names for launcher, names in by_launcher.items() if launcher != skipped}
    names = [name for group in groups.values() for name in group]
    if names and registry.is_on_this_machine(engine):
        yield (
            f"an outer launcher ({', '.join(groups)}) has set {', '.join(names)}, which the programs do not get; "
            f"to pass one on, name it in a role's env: --env {names[0]}"
        )


def _unshared(job: Job, engine: str, written: Collection[tuple[str, ...]]) -> Iterator[str]:
    for role in job.roles.values():
        if role.workdir == SHARED and ("roles", role.name, "workdir") in written:
            yield (
                f"role {role.name} has workdir: share, and on {engine} each task has a directory of its own all the same; "
                "what tasks share, put on storage that all nodes reach"
            )


def _unused(job: Job) -> Iterator[str]:
    from trainmaster.core.spec.reading import job_from

    plain = job_from({"roles": {"worker": {"command": "true"}}})
    for name, why in _UNUSED.items():
        if getattr(job, name) != getattr(plain, name):
            yield f"{name}: changes nothing here; {why}"
    if "://" not in job.storage:
        for name in ("every", "piece"):
            if getattr(job.logs, name) != getattr(plain.logs, name):
                yield f"logs.{name}: changes nothing here; pieces of logs are stored where storage: is a URL"
