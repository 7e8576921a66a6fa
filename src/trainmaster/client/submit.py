"""From a job to a running master: everything that can be known to be wrong is said before anything is started.

A job's directory holds, from the beginning, the job without its secrets (`job.json`), what belongs to this place (`site.json`), its
token, and what a resumed job needs of its submitter. Making the directory takes the id; a key of idempotency is taken in the same way,
before, so that of two who submit under one key the second is given the first one's job.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Mapping
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
LARGEST = 2 * 2**30  # bytes that are shipped without a question: more is data, not program
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def submit(
    job: Job, *, base: Path | None = None, key: str = "", fork: bool = False, environ: Mapping[str, str] | None = None,
    engine: str = LOCAL,
) -> str:  # fmt: skip
    """Start `job`; returns its id. Relative paths and the programs' directory are those of `base` (default: the present one).

    `key`: a job that was submitted under it before is returned instead. `fork`: the master may be forked out of this process.
    """
    base = (base or Path.cwd()).absolute()
    taken = submitters() if environ is None else dict(environ)
    with kept("keep the job", state_dir()):
        if key and (known := _submitted_under(key)):
            return known
        state_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    plain, values = prepared(job, base, taken, engine)
    check(plain, engine=engine)
    if plain.environment != Environment() and engine == LOCAL:
        from trainmaster.client.environment import activated

        taken = activated(plain.environment, base, taken)
    from trainmaster.agent.kernel import Allowance
    from trainmaster.engines.local.places import check_sockets
    from trainmaster.master.launch import keep, launch

    elsewhere = _elsewhere(job, plain, base, engine, taken)
    name, token, allowance = new_id(plain.name), os.urandom(32).hex(), Allowance.present().to_json()
    if engine == LOCAL:
        check_sockets(name)
    storage = job_storage(name)
    with kept("keep the job", storage):
        try:
            held = _write(name, plain, site(plain, base, values) | {"engine": engine} | elsewhere, token)
            if not values and engine == LOCAL:
                keep(storage, taken, allowance)
            ours = not key or _take(key, name)
        except BaseException:
            _undo(storage, key, name)
            raise
    if not ours:
        import shutil

        held.close()
        shutil.rmtree(storage)
        return submit(job, base=base, key=key, fork=fork, environ=environ, engine=engine)
    if engine != LOCAL:
        from trainmaster.client.distant import start
        from trainmaster.interrupts import undisturbed

        with held:  # until nothing is left of it, where it fails
            try:
                start(engine, name, plain, values, token)
            except BaseException:
                with undisturbed():
                    _undo(storage, key, name)
                raise
        return name
    held.close()
    told = {"token": token, "secrets": values, "environ": taken, "allowance": allowance}
    launch(str(storage), told, fork=fork)
    return name


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


def _undo(storage: Path, key: str, name: str) -> None:
    """Nothing was started: leave nothing."""
    import shutil

    shutil.rmtree(storage, ignore_errors=True)
    if key and _key_file(key).parent.is_dir():
        _give_up(key, name)


def again(job: str, *, fork: bool = False) -> str:
    """Submit a job of this machine anew, as it was and from the directory it was submitted from; returns the new id."""
    from trainmaster.core.reading import job_from

    storage = job_storage(job)
    told = json.loads((storage / "site.json").read_bytes())
    try:
        described = job_from(json.loads((storage / JOB_FILE).read_bytes()))
        if told.get("carried"):
            from trainmaster.client.carried import restored

            described = restored(described, told["carried"])
        return submit(described, base=Path(told["cwd"]), fork=fork, engine=told.get("engine", LOCAL))
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
    client_of(engine, requests).check(job)
    if job.network and engine != LOCAL:
        from trainmaster.agent.interfaces import check as check_network

        check_network(job.network)
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


def site(job: Job, base: Path, values: Values) -> dict[str, Any]:
    """What the job is on this machine: its directory, its shipped files, the names of its secrets."""
    from trainmaster.client.secrets import names

    told: dict[str, Any] = {"cwd": str(base), "secret_names": names(values)}
    if any(role.workdir == COPIED for role in job.roles.values()):
        told["archive"] = _packed(job, base)
    if job.archives:
        told["archives"] = list(job.archives)
    return told


def _packed(job: Job, base: Path) -> str:
    """The archive of the job's files, named by its content."""
    from trainmaster.data.archives import pack

    shipped_files(job, base)
    packed = pack(job.files, str(state_dir() / "files"), str(base), _written(job))
    if packed.left_out:
        import sys

        from trainmaster.client.text import not_shipped

        print(not_shipped(packed.left_out), file=sys.stderr, flush=True)
    return packed.path


def shipped_files(job: Job, base: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """(name, bytes) of what is shipped, and the names of what cannot be. Raises BadInput where it is more than anybody ships on purpose."""
    from trainmaster.data.archives import listed

    members, left_out = listed(job.files, str(base), _written(job))
    found = [(member.name, member.size) for member in members]
    total = sum(size for _, size in found)
    if total > LARGEST:
        from trainmaster.core.quantities import format_bytes

        raise BadInput(
            f"the files to ship are {format_bytes(total)}, more than {format_bytes(LARGEST)}",
            place=f"files: {list(job.files)}",
            mend="name less in files, put data under inputs, or list it in .gitignore",
            anchor="files-too-large",
        )
    return found, sorted(left_out)


def _written(job: Job) -> list[str]:
    """Where the programs write outputs and the checkpoint: what lies there by now, of a run by hand, is not theirs to begin with."""
    places = [output.local or name for name, output in job.outputs.items() if output.as_ != "stream"]
    return places + ([job.checkpoint.path] if job.checkpoint is not None else [])


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


def _write(name: str, job: Job, told: Mapping[str, Any], token: str) -> TextIO:
    """Keep what the job's commands need; returns its token, locked: while that is open, we are known to be submitting."""
    import fcntl

    from trainmaster.core.reading import job_to

    storage = job_storage(name)
    storage.mkdir(mode=0o700, parents=True)
    held = open(os.open(storage / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")  # noqa: SIM115  it is returned
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(held, fcntl.LOCK_EX)
    held.write(token)
    held.flush()
    (storage / "site.json").write_text(json.dumps(told))
    (storage / JOB_FILE).write_text(json.dumps(job_to(job)))
    return held


def _key_file(key: str) -> Path:
    import hashlib

    return state_dir() / "keys" / hashlib.sha256(key.encode()).hexdigest()


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
    try:
        return _key_file(key).read_text().strip()
    except FileNotFoundError:
        return ""


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


def _take(key: str, name: str) -> bool:
    """Whether `key` is ours from now on."""
    path = _key_file(key)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(f".{name}")
    draft.write_text(name)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
