"""The Python API, synchronous: describe a job, submit it, watch it, read it.

    run = submit(Job(name="digits", roles={"worker": {"command": "python train.py", "replicas": 2}}))
    for line in run.logs("worker:0", follow=True): print(line)
    run.wait()

A `Run` is a job that was submitted, by whomever; it is nothing but the job's id, so it may be made anew anywhere with `attach`. Nothing
here keeps a process or a thread of yours: the master lives in one of its own, and `submit` never forks your program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, cast, overload

import attrs

from trainmaster.client.jobs.handles import handle_of, resolve
from trainmaster.core.errors import JobFailed
from trainmaster.core.spec.job import Job as _Job
from trainmaster.core.spec.reading import job_from
from trainmaster.core.states import outputs_given_up

if TYPE_CHECKING:
    from typing import Literal

    from trainmaster.client.spec import keys
    from trainmaster.client.watch.printing import Choice
    from trainmaster.client.watch.results import Event, Listed, Status

P = ParamSpec("P")


def _refusing_unknown(init: Callable[P, None]) -> Callable[P, None]:
    """Have a misspelt key refused with the nearest one, as in a job file, where Python says less."""

    @functools.wraps(init)
    def checked(*args: P.args, **keys: P.kwargs) -> None:
        if "roles" not in keys or not set(keys) <= set(init.__annotations__):
            job_from(_keys(keys))
        init(*args, **keys)

    return checked


class Job(_Job):
    """A job out of the keys of a job file: `Job(name="digits", roles={"worker": {"command": "python train.py"}})`.

    Raises BadInput, naming the key, where something is wrong; keys that Python reserves are written `from_` and `as_`. A key that is None
    has its default. The reference of the job file says what each key means.
    """

    __slots__ = ()

    @_refusing_unknown
    def __init__(
        self, *,
        roles: Mapping[str, keys.Role],
        name: str | None = None,
        framework: str | None = None,
        environment: str | keys.Environment | None = None,
        files: str | Sequence[str] | None = None,
        archives: str | Sequence[str] | None = None,
        cache: str | Sequence[str] | None = None,
        inputs: Mapping[str, str | keys.Input] | None = None,
        outputs: Mapping[str, str | keys.Output] | None = None,
        checkpoint: str | keys.Checkpoint | None = None,
        tensorboard: str | keys.Tensorboard | None = None,
        timeouts: keys.Timeouts | None = None,
        completion: Literal["all"] | keys.Completion | None = None,
        stop_on: Literal["none", "nan"] | None = None,
        gang: bool | None = None,
        logs: keys.Logs | None = None,
        storage: str | None = None,
        saves: keys.Saves | None = None,
        scale: keys.Scale | None = None,
        network: str | keys.Network | None = None,
        secrets: Sequence[str] | Mapping[str, keys.Secret | None] | None = None,
        priority: int | None = None,
        links: Mapping[str, str | keys.Link] | None = None,
        pages: str | None = None,
        master: keys.Master | None = None,
        annotations: Mapping[str, str | int | float] | None = None,
        chaos: bool | None = None,
        engines: Mapping[str, Mapping[str, Any]] | None = None,
        version: str | None = None,
    ) -> None:  # fmt: skip
        keys = {
            name: value for name, value in locals().items() if name not in ("self", "__class__") and value is not None
        }
        job = job_from(_keys(keys))
        for field in attrs.fields(_Job):
            object.__setattr__(self, field.name, getattr(job, field.name))


def _keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {{"from_": "from", "as_": "as"}.get(name, name): _keys(part) for name, part in value.items()}
    return value


@attrs.frozen(slots=True)
class Run:
    """A submitted job; `id` is its id."""

    id: str

    @property
    def handle(self) -> str:
        """`engine://place/id`."""
        return str(handle_of(self.id))

    def status(self) -> Status:
        """Return how it is doing, or how it ended, as `tm status --json` has it: state, phase, waiting, tasks, outputs, reason."""
        from trainmaster.client.watch.connect import status

        return cast("Status", status(self.id))

    def wait(self, timeout: float | None = None, check: bool = True) -> Status:
        """Wait for the end; returns the final status. Raises TimeoutError after `timeout` seconds, which leaves the job running. `check`:
        raises JobFailed where it did not succeed, and warns where its outputs are not whole. Outputs of a job on a cluster that belong on
        this machine are there by then.
        """
        import warnings

        from trainmaster.client.jobs.sweep import resume
        from trainmaster.client.submit.carried import bring_outputs
        from trainmaster.client.watch.follow import wait_for_end

        status = wait_for_end(self.id, timeout, resume)
        if status is None:
            raise TimeoutError(f"{self.id} has not ended after {timeout} s")
        status = bring_outputs(self.id, status)
        if check and status["state"] != "succeeded":
            raise failed(status)
        if check and (why := outputs_given_up(status)):
            warnings.warn(f"{self.id} succeeded, and its outputs are not whole: {why}", JobWarning, stacklevel=2)
        return cast("Status", status)

    def events(self, follow: bool = False) -> Iterator[Event]:
        """Yield its events, oldest first; with `follow` those to come too, until the end."""
        from trainmaster.client.jobs.past import Past
        from trainmaster.client.jobs.sweep import resume
        from trainmaster.client.watch.follow import follow as follow_job

        if not follow:
            return cast("Iterator[Event]", Past(self.id).events())
        return (item["event"] for item in follow_job(self.id, resume=resume) if "event" in item)

    def logs(self, task: str | None = None, attempt: int | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a task printed; where none is named, those of all tasks, each line led by its task."""
        from trainmaster.client.jobs.past import Past, copied_tasks
        from trainmaster.client.watch.lines import Lines
        from trainmaster.client.watch.logs import pieces
        from trainmaster.client.watch.printing import Choice

        lines, choice = Lines(), Choice(prefix=task is None, copied=copied_tasks(Past(self.id).described))
        for piece in pieces(self.id, task, attempt, follow):
            yield from _prefixed_lines(choice, lines.add(piece))
        yield from _prefixed_lines(choice, lines.close())

    def kill(self, why: str = "") -> None:
        """Ask for its end; `wait(check=False)` tells when it has come."""
        from trainmaster.client.jobs.actions import kill

        kill(self.id, why)

    def kill_task(self, task: str, why: str = "") -> None:
        """End the present attempt of a task, like `worker:1`; it restarts by the rules of its role."""
        from trainmaster.client.jobs.actions import kill_task

        kill_task(self.id, task, why)

    def signal(self, task: str, name: str) -> None:
        """Send a signal, like "USR1", to the program of a task: to the main process of each of its copies.

        Raises BadInput where the program does not run.
        """
        from trainmaster.client.jobs.actions import signal

        signal(self.id, task, name)

    def dump(self, task: str) -> None:
        """Have the stacks of all processes of a task's program written to its log."""
        from trainmaster.client.jobs.actions import dump

        dump(self.id, task)

    def scale(self, role: str, size: int | None) -> None:
        """Have a role with `replicas: {min, max}` grow or shrink to `size` members; None: as many as the job's own rules say, again.

        Raises BadInput where it cannot.
        """
        from trainmaster.client.jobs.actions import scale

        scale(self.id, role, size)

    def save(self) -> dict[str, Any]:
        """Save its outputs as they are; figures by task, once it is done."""
        from trainmaster.client.jobs.actions import save, saved

        return saved(self.id, save(self.id))


def _prefixed_lines(choice: Choice, blocks: Iterable[tuple[str, str]]) -> Iterator[str]:
    from trainmaster.log.output import readable

    for task, block in blocks:
        yield from choice.led(task, block, readable)[:-1].split("\n")


def failed(status: Mapping[str, Any]) -> JobFailed:
    """Return the error that says how a job ended."""
    from trainmaster.words.text import ended_lines

    first, *rest = ended_lines(status)
    return JobFailed("\n".join([first, *rest]), mend=f"see all of it: tm logs {status['job']}", anchor="job-failed")


class JobWarning(UserWarning):
    """Something in a job is likely not meant, or changes nothing here: `submit` warns of it before anything is started."""


@overload
def submit(
    job: _Job | Mapping[str, Any], *, engine: str = ..., directory: str | Path | None = ..., idempotency_key: str = ...,
    dry_run: Literal[False] = ...,
) -> Run: ...  # fmt: skip
@overload
def submit(
    job: _Job | Mapping[str, Any], *, engine: str = ..., directory: str | Path | None = ..., idempotency_key: str = ...,
    dry_run: Literal[True],
) -> dict[str, Any]: ...  # fmt: skip
def submit(
    job: _Job | Mapping[str, Any],
    *,
    engine: str = "local",
    directory: str | Path | None = None,
    idempotency_key: str = "",
    dry_run: bool = False,
) -> Run | dict[str, Any]:
    """Start a job; returns at once. Relative paths and the programs' directory are those of `directory` (default: the present one).

    `engine`: "local" is this machine, "yarn" the Hadoop cluster that HADOOP_CONF_DIR leads to, "kubernetes" the cluster of the kubeconfig,
    "spark" a running Spark application (`trainmaster.spark`).

    A job that was submitted before under the same `idempotency_key` is returned instead of being started again; a different job under that
    key is refused. A warning of `tm submit` is a JobWarning here; where warnings are errors, nothing is started.

    `dry_run`: start nothing; return what `--dry-run --json` prints: the job as understood, what is asked of the engine, what is shipped.
    """
    described = check_job(job, engine)
    if dry_run:
        return preview_job(described, engine, directory)
    return start_job(described, engine, directory, idempotency_key)


def preview_job(job: _Job, engine: str, directory: str | Path | None) -> dict[str, Any]:
    """Return what submitting would do. Raises BadInput as submitting would."""
    from trainmaster.client.submit.preview import preview
    from trainmaster.engines import registry

    registry.engine(engine)  # raises BadInput where there is none
    return preview(job, Path(directory or "").absolute(), engine)


def check_job(job: _Job | Mapping[str, Any], engine: str) -> _Job:
    """Return the job, and warn whoever called our caller of its doubtful points."""
    import warnings

    from trainmaster.client.spec.describe import job_warnings

    fields = {field.name: getattr(job, field.name) for field in attrs.fields(_Job)} if isinstance(job, _Job) else {}
    described = _Job(**fields) if isinstance(job, _Job) else job_from(_keys(job))  # a plain one, which attrs can evolve
    roles = {} if isinstance(job, _Job) else job.get("roles") or {}
    written = [("roles", name, key) for name, role in roles.items() if isinstance(role, Mapping) for key in role]
    for text in job_warnings(described, engine, written):
        warnings.warn(text, JobWarning, stacklevel=3)
    return described


def start_job(job: _Job, engine: str, directory: str | Path | None, key: str) -> Run:
    """Start a job that `check_job` has returned."""
    from trainmaster.client.submit.submit import submit
    from trainmaster.engines import registry

    registry.engine(engine)  # raises BadInput where there is none
    return Run(submit(job, base=Path(directory) if directory is not None else None, key=key, engine=engine))


def attach(job: str) -> Run:
    """A job by its id, an unambiguous beginning of it, its name (the one that runs, else the newest), or its handle. Raises NotFound."""
    return Run(resolve(job))


def wait(job: str | Run, timeout: float | None = None, check: bool = True) -> Status:
    """`Run.wait` by name."""
    return _run(job).wait(timeout, check)


def logs(job: str | Run, task: str | None = None, attempt: int | None = None, follow: bool = False) -> Iterator[str]:
    """`Run.logs` by name."""
    return _run(job).logs(task, attempt, follow)


def status(job: str | Run) -> Status:
    """`Run.status` by name."""
    return _run(job).status()


def jobs(engine: str = "") -> list[Listed]:
    """List your jobs, newest first: id, name, engine, state, reason and times.

    They are those that this machine knows, whatever engine they are on, and those that were submitted from elsewhere to a cluster at hand,
    which HADOOP_CONF_DIR or a kubeconfig names; a JobWarning says which cluster could not be asked. `engine`: those of this one alone; no
    other cluster is asked, and an error of its own is raised.
    """
    import warnings

    from trainmaster.client.jobs.listing import adopt_at_hand, headlines, plain
    from trainmaster.engines import registry

    if engine:
        registry.engine(engine)  # raises BadInput where there is none
    for error in adopt_at_hand(engine).values():
        if engine:
            raise error
        warnings.warn(f"a cluster could not be asked: {error.message}", JobWarning, stacklevel=2)
    return cast("list[Listed]", [row for row in map(plain, headlines()) if engine in ("", row["engine"])])


def _run(job: str | Run) -> Run:
    return job if isinstance(job, Run) else attach(job)
