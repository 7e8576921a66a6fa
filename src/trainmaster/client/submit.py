"""From a job to a running master: everything that can be known to be wrong is said before anything is started.

A job's directory holds, from the beginning, the job without its secrets (`job.json`), what belongs to this place (`site.json`), its
token, and what a resumed job needs of its submitter. Making the directory takes the id, and where somebody has it another one is drawn; a
key of idempotency is taken in the same way, so that of two who submit under one key the second is given the first one's job.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from trainmaster.client.places import JOB_FILE, TOKEN_FILE, in_id, job_storage, kept, site_of, state_dir
from trainmaster.core.errors import BadInput
from trainmaster.core.job import COPIED, HADOOP, Environment, Job

if TYPE_CHECKING:
    from trainmaster.client.secrets import Values

LOCAL = "local"
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def print_warning(text: str, key: str) -> None:
    """Print a warning about a key of a job on stderr."""
    print(f"warning: {f'{key}: ' if key else ''}{text}", file=sys.stderr, flush=True)


def submit(
    job: Job, *, base: Path | None = None, key: str = "", fork: bool = False, environ: Mapping[str, str] | None = None,
    engine: str = LOCAL, prepare: Callable[[str], object] = lambda name: None, announce: Callable[[str], object] = lambda name: None,
    warn: Callable[[str, str], object] = print_warning,
) -> str:  # fmt: skip
    """Start `job`; returns its id. Relative paths and the programs' directory are those of `base` (default: the present one).

    `key`: the job that was submitted under it is returned instead, another one refused. `fork`: the master may be forked out of us.
    `prepare` is called with the id of a job on this machine before its master starts. `announce` is called with the id once the job has
    begun, before a signal that came meanwhile acts: whoever is interrupted knows what goes on. `warn(text, key)` is called with what its
    cluster did otherwise than a key of the job says.
    """
    from trainmaster.interrupts import postponing

    base = (base or Path.cwd()).absolute()
    taken = submitters() if environ is None else dict(environ)
    with kept("keep the job", state_dir()):
        if key and (known := _same_job(key, job, base, engine)):
            announce(known)
            return known
        state_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    plain, values = prepared(job, base, taken, engine)
    check(plain, engine=engine)
    from trainmaster.agent.kernel import Allowance
    from trainmaster.engines.local.places import check_sockets
    from trainmaster.master.launch import launch

    elsewhere = _elsewhere(job, plain, base, engine, taken)
    private = {
        "token": os.urandom(32).hex(),
        "secrets": values,
        "environ": taken,
        "allowance": Allowance.present().to_json(),
    }
    if engine == LOCAL:
        private["environ"] = _programs_environ(plain, base, taken)
        check_sockets(new_id(plain.name))  # all ids of a name are of one length
    with kept("keep the job", state_dir()):
        facts = site(plain, base, values, job) | {"engine": engine} | elsewhere
    with postponing():
        name = _begin(plain, facts, private, key, _claim(job, base, engine), prepare, warn)
        if name and engine == LOCAL:
            launch(str(job_storage(name)), private, fork=fork)
        if name:
            announce(name)
            return name
    return submit(
        job,
        base=base,
        key=key,
        fork=fork,
        environ=environ,
        engine=engine,
        prepare=prepare,
        announce=announce,
        warn=warn,
    )


def _begin(
    job: Job, facts: Mapping[str, Any], private: Mapping[str, Any], key: str, claim: Mapping[str, Any], prepare: Callable[[str], object],
    warn: Callable[[str, str], object],
) -> str:  # fmt: skip
    """Make the directory of a new job; on a cluster, start its master too. Where that fails nothing is left.

    Returns its id, or "" where another job has taken the key.
    """
    from trainmaster.master.launch import keep

    is_local = facts["engine"] == LOCAL
    with kept("keep the job", state_dir()):
        name, storage = _take_id(job.name)
        with _undone_where_it_fails(storage, key, name):
            held = _write(storage, job, facts, private["token"])
    with held, _undone_where_it_fails(storage, key, name):  # nobody takes it up while it is undone
        with kept("keep the job", state_dir()):
            if not private["secrets"] and is_local:
                keep(storage, private["environ"], private["allowance"])
            if key and not _take(key, name, claim):
                _undo(storage, key, name)
                return ""
        if is_local:
            prepare(name)
        else:
            from trainmaster.client.distant import start

            start(facts["engine"], name, job, private["secrets"], private["token"], warn)
    return name


def _programs_environ(job: Job, base: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what programs on this machine begin with: the submitter's variables, and the job's environment activated in them.

    Raises BadInput where a program cannot be executed.
    """
    from trainmaster.client.commands import check_commands

    programs = dict(environ)
    if job.environment != Environment():
        from trainmaster.client.environment import activated

        programs = activated(job.environment, base, programs)
    check_commands(job, base, programs)
    return programs


def _elsewhere(job: Job, plain: Job, base: Path, engine: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """What this machine has for the nodes of a cluster: inputs, the places of outputs, the archive of a Python with required packages."""
    if engine == LOCAL:
        return {}
    from trainmaster.client.distant import carried

    places = {key: _absolute(url, base) for key, url in carried(job).items()}
    told: dict[str, Any] = {"carried": places, "submitted": round(time.time(), 3)}
    wanted = plain.environment
    if wanted.requirements and not wanted.path and not wanted.archive:
        from trainmaster.client.portable import archive

        told["environment"] = str(archive(Path(wanted.requirements), environ))
    return told


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
    """Nothing was started: leave nothing."""
    import shutil

    shutil.rmtree(storage, ignore_errors=True)
    if key and _key_file(key).parent.is_dir():
        _give_up(key, name)


def again(job: str, *, fork: bool = False, announce: Callable[[str], object] = lambda name: None) -> str:
    """Submit a job of this machine anew, as it was and from the directory it was submitted from; returns the new id. See `submit`."""
    from trainmaster.core.reading import job_from

    storage = job_storage(job)
    told = json.loads((storage / "site.json").read_bytes())
    if "cwd" not in told:
        raise BadInput(
            f"{job} was submitted from another machine, and its files are there", mend=f"tm retry {job} there", anchor="job-elsewhere"
        )  # fmt: skip
    try:
        described = job_from(json.loads((storage / JOB_FILE).read_bytes()))
        if told.get("carried"):
            from trainmaster.client.carried import restored

            described = restored(described, told["carried"])
        return submit(described, base=Path(told["cwd"]), fork=fork, engine=told.get("engine", LOCAL), announce=announce)
    except BadInput as error:
        if error.anchor == "unset-variable":
            error.mend = f"the value of a secret is kept nowhere: set the variable, then tm retry {job}"
        raise


def submitters() -> dict[str, str]:
    """Our environment without what Python itself has put there: LC_CTYPE, where the locale is C (PEP 538)."""
    taken = dict(os.environ)
    if taken.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8"):
        given = [line for line in Path("/proc/self/environ").read_bytes().split(b"\0") if line.startswith(b"LC_CTYPE=")]
        if not given:
            del taken["LC_CTYPE"]
    return taken


def prepared(job: Job, base: Path, environ: Mapping[str, str], engine: str = LOCAL) -> tuple[Job, Values]:
    """The job as it is stored, with absolute places and without secret values; and these."""
    from trainmaster.client.secrets import separated

    plain, values = separated(job, environ, base)
    inputs = {name: attrs.evolve(given, url=_absolute(given.url, base)) for name, given in plain.inputs.items()}
    outputs = {name: attrs.evolve(made, url=_absolute(made.url, base)) for name, made in plain.outputs.items()}
    checkpoint = plain.checkpoint
    if checkpoint is not None and checkpoint.url:
        checkpoint = attrs.evolve(checkpoint, url=_absolute(checkpoint.url, base))
    storage = _absolute(plain.storage, base) if plain.storage else ""
    cache = tuple(_absolute(given, base) for given in plain.cache)
    archives = tuple(_archive(given, base) for given in plain.archives)
    _check_jars(plain, base)
    _check_files(plain, base)
    changed = attrs.evolve(
        plain, inputs=inputs, outputs=outputs, checkpoint=checkpoint, storage=storage, cache=cache, archives=archives
    )
    if plain.environment != Environment():
        from trainmaster.client.environment import placed

        changed = attrs.evolve(changed, environment=placed(plain.environment, base, here=engine == LOCAL))
    if engine != LOCAL:
        from trainmaster.client.distant import adapted

        changed = adapted(changed, engine)
    return changed, values


def check(job: Job, probe: bool = True, engine: str = LOCAL) -> None:
    """Raise BadInput where the job can never run there, before anything is started. `probe`: outputs may be tried by writing to them."""
    from trainmaster import frameworks
    from trainmaster.client.places import client_of

    frameworks.load(job.framework)
    client = client_of(engine, requests)
    client.check(job)
    archive = "" if job.environment.path else job.environment.archive
    if _URL.match(archive) and not client.brings(archive):
        from trainmaster.client.environment import wrong

        problem = f"{engine} brings an archive that is a file of this machine"
        raise wrong("archive", archive, problem, "fetch it, and name its path")
    if job.network and engine != LOCAL:
        from trainmaster.agent.interfaces import check as check_network

        check_network(job.network)
    _check_schemes(job)
    _check_inputs(job, engine)
    if job.outputs:
        from trainmaster.data.checks import check_outputs

        outputs = {name: made for name, made in job.outputs.items() if not in_pods(made.url, engine)}
        check_outputs(attrs.evolve(job, outputs=outputs), probe)


def requests(job: Job) -> list[Any]:
    """The containers that the job asks for, at its largest."""
    from trainmaster.core.state import State, populate
    from trainmaster.master.orders import Orders

    state = State(id="x")
    populate(state, job)
    orders = Orders(job, {})
    return [orders.request(state, key, 1) for key in state.tasks]


def at_once(job: Job) -> list[Any]:
    """Those of them that its first master will ask for at once."""
    from trainmaster.core.actions import Ask
    from trainmaster.core.drive import Drive
    from trainmaster.core.reading import job_to
    from trainmaster.core.stimuli import MasterStarted, Submitted
    from trainmaster.master.orders import Orders

    drive, orders = Drive(), Orders(job, {})
    orders.near = True
    _, actions = drive.take([MasterStarted(1), Submitted("x", job_to(job))], 0.0)
    if orders.unlocated(drive.state):
        return []
    return [orders.request(drive.state, one.task, one.serial) for one in actions if isinstance(one, Ask)]


def site(job: Job, base: Path, values: Values, described: Job | None = None) -> dict[str, Any]:
    """What the job is on this machine: its directory, its shipped files, its secrets' names. `described`: the job as its user wrote it."""
    from trainmaster.client.files import pack_files
    from trainmaster.client.secrets import names

    told: dict[str, Any] = {"cwd": str(base), "secret_names": names(values)}
    if any(role.workdir == COPIED for role in job.roles.values()):
        told["archive"] = pack_files(described or job, base)
    if job.archives:
        told["archives"] = list(job.archives)
    return told


def _archive(given: str, base: Path) -> str:
    path, mark, name = given.partition("#")
    if _URL.match(path):
        return given  # fetched where it is used
    found = base / os.path.expanduser(path)
    if not found.is_file():
        place = f"archives: {given}"
        raise BadInput(
            f"the archive {path} does not exist", place=place, mend=f"it is looked for in {base}", anchor="no-file"
        )
    return f"{found}{mark}{name}"


def _check_files(job: Job, base: Path) -> None:
    """Raise BadInput where a file that is named is not there, though this engine may ship none."""
    for source in job.files:
        path = source.partition("#")[0]
        if not os.path.lexists(base / os.path.expanduser(source)) and not os.path.lexists(
            base / os.path.expanduser(path)
        ):
            raise BadInput(
                f"{path} does not exist", place=f"files: {source}", mend=f"it is looked for in {base}", anchor="no-file"
            )


def _check_jars(job: Job, base: Path) -> None:
    """Raise BadInput where a jar of a Hadoop format is a file of ours, and is not there."""
    for kind, things in (("inputs", job.inputs), ("outputs", job.outputs)):
        for name, thing in things.items():
            for jar in (one.strip() for one in thing.options.get("jars", "").split(",")):
                if jar and not _URL.match(jar) and not (base / jar).is_file():
                    raise BadInput(
                        f"the jar {jar} does not exist", place=f"{kind}.{name}.options.jars: {jar}",
                        mend=f"it is looked for in {base}", anchor="no-file",
                    )  # fmt: skip


def new_id(name: str) -> str:
    """`<name>-<6 characters>`."""
    return f"{in_id(name) or 'job'}-{''.join(_ALPHABET[byte % 32] for byte in os.urandom(6))}"


def _absolute(url: str, base: Path) -> str:
    return (
        url
        if _URL.match(url)
        else os.path.normpath(base / os.path.expanduser(url)) + "/" * (url.endswith("/") and url != "/")
    )


def in_pods(url: str, engine: str) -> bool:
    """Whether it is a path on a volume of the job's pods, of which this machine knows nothing."""
    from trainmaster.data.stores import local_path

    return engine == "kubernetes" and local_path(url) is not None


def _check_schemes(job: Job) -> None:
    """Raise BadInput where a URL of the job can be opened by nothing that is installed; the master would find out later."""
    urls = {
        f"inputs.{name}.url": source.url for name, source in job.inputs.items() if not source.format.startswith(HADOOP)
    }
    urls |= {
        f"outputs.{name}.url": target.url
        for name, target in job.outputs.items()
        if not target.format.startswith(HADOOP)
    }
    urls |= {f"{key}[{number}]": url for key in ("cache", "archives") for number, url in enumerate(getattr(job, key))}
    urls |= {
        "storage": job.storage,
        "checkpoint.url": job.checkpoint.url if job.checkpoint is not None else "",
        "tensorboard.logs": job.tensorboard.logs if job.tensorboard is not None else "",
    }
    for key, url in urls.items():
        if _URL.match(url) and not url.lower().startswith(("file://", "local://")):
            from trainmaster.log.objects import check_scheme

            check_scheme(url, key)


def _check_inputs(job: Job, engine: str) -> None:
    if not job.inputs:
        return
    from trainmaster.data.stores import local_path

    for name, given in job.inputs.items():
        if in_pods(given.url, engine):
            continue
        if given.format.startswith(HADOOP) or given.options:
            from trainmaster.data.hadoop_formats import check

            check(given)
            continue
        if given.format != "auto":
            from trainmaster.data.formats import known

            known(given.format, f"inputs.{name}.format")
        # Others are listed by the master, which waits for nobody.
        if given.as_ == "mount" or local_path(given.url) is not None:
            from trainmaster.data.sources import list_input

            list_input(given)


def _take_id(name: str) -> tuple[str, Path]:
    """Return a new id for a job of this name, and its directory, which is made by that. Another job's directory is left alone."""
    while True:
        job = new_id(name)
        storage = job_storage(job)
        storage.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            storage.mkdir(mode=0o700)
            return job, storage


def _write(storage: Path, job: Job, facts: Mapping[str, Any], token: str) -> TextIO:
    """Keep what the job's commands need; returns its token, locked: while that is open, we are known to be submitting."""
    import fcntl

    from trainmaster.core.reading import job_to

    held = open(os.open(storage / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")  # noqa: SIM115  it is returned
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(held, fcntl.LOCK_EX)
    held.write(token)
    held.flush()
    (storage / "site.json").write_text(json.dumps(facts))
    (storage / JOB_FILE).write_text(json.dumps(job_to(job)))
    return held


def _key_file(key: str) -> Path:
    import hashlib

    return state_dir() / "keys" / hashlib.sha256(key.encode()).hexdigest()


def _same_job(key: str, job: Job, base: Path, engine: str) -> str:
    """Return the job that was submitted under `key` before, or "". Raises BadInput where it is not the same as `job`."""
    name = _submitted_under(key)
    if name:
        _refuse_another(key, name, _claim(job, base, engine))
    return name


def _submitted_under(key: str) -> str:
    """The job that was submitted under `key` before, or "". Who submitted it and died before its master began has submitted nothing; on a
    cluster, before the cluster had it. Raises BadInput, or EngineFailed, where the cluster cannot be asked.
    """
    from trainmaster.client.connect import beginning, submitting

    while name := _holder(key):
        found = site_of(name)
        distant = found.get("engine", LOCAL) != LOCAL
        if found.get("application") or (not distant and (job_storage(name) / "logs").exists()):
            return name
        if submitting(name) if distant else beginning(name):
            time.sleep(0.02)
        elif distant and _has_begun(name):
            return name
        else:
            _give_up(key, name)
    return ""


def _has_begun(name: str) -> bool:
    from trainmaster.client.distant import begun

    return begun(name)


def _holder(key: str) -> str:
    """The job that has taken `key`, or ""."""
    return _held_by(key)[0]


def _held_by(key: str) -> tuple[str, dict[str, Any] | None]:
    """The job that has taken `key`, and its claim; "" and None where there is none, None where an earlier version wrote it."""
    try:
        name, _, text = _key_file(key).read_text().partition("\n")
    except FileNotFoundError:
        return "", None
    claim = json.loads(text) if text.strip() else {}
    return name.strip(), claim if "job" in claim else None


def _claim(job: Job, base: Path, engine: str) -> dict[str, Any]:
    """Return what tells a job from another one: its description, where its relative paths lead, its engine. Secret values are covered: they
    may change.
    """
    from trainmaster.client.settings import covered

    return {"job": covered(job), "directory": os.path.realpath(base), "engine": engine}


def _rows(claim: Mapping[str, Any]) -> dict[str, str]:
    """Return a claim's values by key, with the defaults of this version for keys that the version that wrote it did not know."""
    from trainmaster.client.settings import explain
    from trainmaster.core.reading import job_from

    rows = {row.key: row.value for row in explain(job_from(claim["job"]), {})}
    return rows | {"--engine": claim["engine"], "directory": claim["directory"]}


def _refuse_another(key: str, name: str, claim: Mapping[str, Any]) -> None:
    """Raise BadInput where the job that has `key` is not the one that is submitted now: its user would take the old one for the new one."""
    earlier = _held_by(key)[1]
    if earlier is None or claim == earlier:
        return
    try:
        known = _rows(earlier)
    except BadInput:  # written by a later version, with keys that this one does not know
        return
    rows = _rows(claim)
    changed = sorted(path for path in {**rows, **known} if known.get(path) != rows.get(path))
    if not changed:
        return
    first = changed[0]
    more = f", and {len(changed) - 1} more keys" if len(changed) > 1 else ""
    raise BadInput(
        f"the idempotency key {key} belongs to {name}, which is another job",
        place=f"{first}: {rows.get(first, 'none')}, in {name}: {known.get(first, 'none')}{more}",
        mend=f"use another key for this job, or go on with that one: tm attach {name}",
        anchor="key-taken",
    )


def _give_up(key: str, name: str) -> None:
    """Free `key` where `name` still has it: of all who have waited for that job in vain, the first frees it, and then takes it."""
    import fcntl

    folder = os.open(_key_file(key).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if _holder(key) == name:
            _key_file(key).unlink()
    finally:
        os.close(folder)


def _take(key: str, name: str, claim: Mapping[str, Any]) -> bool:
    """Whether `key` is ours from now on."""
    path = _key_file(key)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(f".{name}")
    draft.write_text(f"{name}\n{json.dumps(claim)}\n")
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
