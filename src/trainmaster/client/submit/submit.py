"""From a described job to a running master, in stages: place, check, ship, record, start.

Everything that can be known to be wrong is said before anything is started. The work of a stage depends on where the job will run: that
part of it is the `Backend`'s.

A job's directory holds, from the instant it has its name, the job without its secrets (`job.json`), what belongs to this place
(`site.json`), its token, and what a resumed job needs of its submitter. The name is the id, and where somebody has it another one is drawn;
a key of idempotency is taken in the same way, so that of two who submit under one key the second is given the first one's job.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from trainmaster.client.jobs.backend import Backend, Warn
from trainmaster.client.jobs.backends import backend
from trainmaster.client.jobs.places import (
    JOB_FILE,
    SITE_FILE,
    TOKEN_FILE,
    absolute,
    all_absolute,
    in_id,
    job_draft,
    job_storage,
    keep_draft,
    state_dir,
    storage_errors,
)
from trainmaster.client.submit.checks import archive_path, check, check_files
from trainmaster.client.submit.gpus import with_gpus
from trainmaster.client.submit.idempotency import claim_of, give_up, key_file, same_job, take
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import COPIED, Environment, Job, Role
from trainmaster.engines.registry import DEFAULT

if TYPE_CHECKING:
    from trainmaster.client.spec.secrets import Values

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


def print_warning(text: str, key: str) -> None:
    """Print a warning about a key of a job on stderr."""
    print(f"warning: {f'{key}: ' if key else ''}{text}", file=sys.stderr, flush=True)


def submit(
    job: Job, *, base: Path | None = None, key: str = "", fork: bool = False, environ: Mapping[str, str] | None = None,
    engine: str = DEFAULT, prepare: Callable[[str], object] = lambda name: None, announce: Callable[[str], object] = lambda name: None,
    warn: Warn = print_warning, sources: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Start `job`; returns its id. Relative paths and the programs' directory are those of `base` (default: the present one).

    `key`: the job that was submitted under it is returned instead, another one refused. `fork`: the master may be forked out of us.
    `prepare` is called with the id of a job on this machine before its master starts. `announce` is called with the id once the job has
    begun, before a signal that came meanwhile acts: whoever is interrupted knows what goes on. `warn(text, key)` is called with what its
    cluster did otherwise than a key of the job says. `sources`: dotted key -> where its value comes from; they are kept with the job.
    """
    from trainmaster.interrupts import postponing

    base = (base or Path.cwd()).absolute()
    submitter = submitter_environment() if environ is None else dict(environ)
    where = backend(engine)
    while True:
        with storage_errors("keep the job", state_dir()):
            if key and (known := same_job(key, job, base, engine)):
                announce(known)
                return known
            state_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
        placed, values = place(job, base, submitter, where)
        check(placed, where, job)
        site, payload = ship(job, placed, values, base, submitter, where)
        site["sources"] = dict(sources or {})
        with postponing():
            with record(placed, site, payload, key, claim_of(job, base, engine)) as name:
                if name:
                    where.record(name, payload)
                    if where.on_this_machine:
                        prepare(name)
                    where.start(name, placed, payload, fork=fork, warn=warn)
            if name:
                announce(name)
                return name


# -- the stages --


def place(job: Job, base: Path, environ: Mapping[str, str], where: Backend) -> tuple[Job, Values]:
    """Return the job as it is stored, with absolute places and without secret values; and these."""
    from trainmaster.client.spec.secrets import separated

    if job.tensorboard is not None:
        from trainmaster.client.tensorboard import with_board

        job = with_board(job, base, where.engine)
    plain, values = separated(job, environ, base)
    inputs = {name: attrs.evolve(source, url=all_absolute(source.url, base)) for name, source in plain.inputs.items()}
    outputs = {name: attrs.evolve(output, url=absolute(output.url, base)) for name, output in plain.outputs.items()}
    checkpoint = plain.checkpoint
    if checkpoint is not None and checkpoint.url:
        checkpoint = attrs.evolve(checkpoint, url=absolute(checkpoint.url, base))
    storage = absolute(plain.storage, base) if plain.storage else ""
    cache = tuple(absolute(url, base) for url in plain.cache)
    archives = tuple(archive_path(archive, base) for archive in plain.archives)
    check_files(plain, base)
    placed = attrs.evolve(
        plain, inputs=inputs, outputs=outputs, checkpoint=checkpoint, storage=storage, cache=cache, archives=archives
    )
    if plain.environment != Environment():
        from trainmaster.client.spec.environment import placed as environment_placed

        environment = environment_placed(plain.environment, base, is_local=where.on_this_machine)
        placed = attrs.evolve(placed, environment=environment)
    if not where.on_this_machine:
        placed = attrs.evolve(placed, roles={name: _limited(role) for name, role in placed.roles.items()})
    return where.place(with_gpus(placed, where.on_this_machine)), values


def _limited(role: Role) -> Role:
    """Return a role whose containers have a limit of memory, as those of clusters have."""
    return attrs.evolve(role, resources=attrs.evolve(role.resources, memory=role.resources.program_memory))


def ship(
    described: Job, job: Job, values: Values, base: Path, environ: Mapping[str, str], where: Backend
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the job's facts on this machine, its `site.json`; and its payload, which is kept in no file."""
    from trainmaster.frameworks.launchers import without_launchers
    from trainmaster.host.allowance import Allowance

    facts, programs = where.ship(described, job, base, without_launchers(environ))
    if where.on_this_machine:
        from trainmaster.host.places import check_sockets

        check_sockets(new_id(job.name))  # all ids of a name are of one length
    with storage_errors("keep the job", state_dir()):
        site = site_facts(job, base, values, described) | {"engine": where.engine} | facts
    token = os.urandom(32).hex()
    return site, {"token": token, "secrets": values, "environ": programs, "allowance": Allowance.present().to_json()}


@contextlib.contextmanager
def record(
    job: Job, site: Mapping[str, Any], payload: Mapping[str, Any], key: str, claim: Mapping[str, Any]
) -> Iterator[str]:
    """Make the directory of a new job, and yield its id; "" where another job has taken the key. Where the block fails nothing is left.

    The job's token is locked until the block is over: nobody takes the job up while it is started or undone.
    """
    with storage_errors("keep the job", state_dir()), job_draft() as draft:
        locked = _write(draft, job, site, payload["token"])
        name = _kept(draft, job.name)
    storage = job_storage(name)
    with locked, _undone_where_it_fails(storage, key, name):
        with storage_errors("keep the job", state_dir()):
            is_taken = bool(key) and not take(key, name, claim)
        if is_taken:
            _undo(storage, key, name)
        yield "" if is_taken else name


@contextlib.contextmanager
def _undone_where_it_fails(storage: Path, key: str, name: str) -> Iterator[None]:
    from trainmaster.interrupts import undisturbed

    try:
        yield
    except BaseException:
        with undisturbed():
            _undo(storage, key, name)
        raise


def _undo(storage: Path, key: str, name: str) -> None:
    """Remove all that was made for a job of which nothing was started."""
    import shutil

    shutil.rmtree(storage, ignore_errors=True)
    if key and key_file(key).parent.is_dir():
        give_up(key, name)


def resubmit(job: str, *, fork: bool = False, announce: Callable[[str], object] = lambda name: None) -> str:
    """Submit a job of this machine anew, as it was and from the directory it was submitted from; returns the new id. See `submit`."""
    from trainmaster.agent.input.stdin import has_been_read
    from trainmaster.core.spec.reading import job_from
    from trainmaster.log.documents.jobs import read_job, read_site

    storage = job_storage(job)
    site = read_site(storage) if (storage / SITE_FILE).is_file() else {}
    if "cwd" not in site:
        raise BadInput(
            f"{job} was submitted from another machine, and its files are there", mend=f"tm retry {job} there", anchor="job-elsewhere"
        )  # fmt: skip
    if has_been_read(str(storage)):
        raise BadInput(
            f"a program of {job} read from the stdin of its command, and what it read is kept nowhere",
            mend="start it again with the same input: ... | tm run ...", anchor="no-stdin",
        )  # fmt: skip
    try:
        described = job_from(read_job(storage))
        if site.get("carried"):
            from trainmaster.client.submit.carried import restored

            described = restored(described, site["carried"])
        return submit(
            described, base=Path(site["cwd"]), fork=fork, engine=site.get("engine", DEFAULT), announce=announce,
            sources=site.get("sources"),
        )  # fmt: skip
    except BadInput as error:
        if error.anchor == "unset-variable":
            error.mend = f"the value of a secret is kept nowhere: set the variable, then tm retry {job}"
        raise


def submitter_environment() -> dict[str, str]:
    """Return our environment without what Python itself has put there: LC_CTYPE, where the locale is C (PEP 538)."""
    environ = dict(os.environ)
    if environ.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8"):
        inherited = [
            line for line in Path("/proc/self/environ").read_bytes().split(b"\0") if line.startswith(b"LC_CTYPE=")
        ]
        if not inherited:
            del environ["LC_CTYPE"]
    return environ


def site_facts(job: Job, base: Path, values: Values, described: Job | None = None) -> dict[str, Any]:
    """Return the facts of this machine: directory, shipped files, names of secrets. `described`: the job as its user wrote it."""
    from trainmaster.client.spec.secrets import names
    from trainmaster.client.submit.files import pack_files
    from trainmaster.host.machine import user_name

    facts: dict[str, Any] = {"cwd": str(base), "user": user_name(), "secret_names": names(values)}
    if any(role.workdir == COPIED for role in job.roles.values()):
        facts["archive"] = pack_files(described or job, base)
    if job.archives:
        facts["archives"] = list(job.archives)
    return facts


def new_id(name: str) -> str:
    """Return an id for a new job: `<name>-<6 characters>`."""
    return f"{in_id(name) or 'job'}-{''.join(_ALPHABET[byte % 32] for byte in os.urandom(6))}"


def _kept(draft: Path, name: str) -> str:
    """Return the id of a new job of this name, whose directory the draft is from now on. Another job's directory is left alone."""
    while not keep_draft(draft, job := new_id(name)):
        pass
    return job


def _write(draft: Path, job: Job, facts: Mapping[str, Any], token: str) -> TextIO:
    """Keep what the job's commands need; returns its token, locked: while that is open, we are known to be submitting."""
    import fcntl

    from trainmaster.core.spec.reading import job_to
    from trainmaster.log.documents import files as documents

    token_file = open(os.open(draft / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")  # noqa: SIM115  it is returned
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(token_file, fcntl.LOCK_EX)
    token_file.write(token)
    token_file.flush()
    os.fsync(token_file.fileno())
    documents.write(draft / SITE_FILE, facts)
    documents.write(draft / JOB_FILE, job_to(job))
    return token_file
