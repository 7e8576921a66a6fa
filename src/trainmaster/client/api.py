"""The Python API, synchronous: describe a job, submit it, watch it, read it.

    run = submit(Job(name="digits", roles={"worker": {"command": "python train.py", "replicas": 2}}))
    for line in run.logs("worker:0", follow=True): print(line)
    run.wait()

A `Run` is a job that was submitted, by whomever; it is nothing but the job's id, so it may be made anew anywhere with `attach`. Nothing
here keeps a process or a thread of yours: the master lives in one of its own, and `submit` never forks your program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.client.handles import here, resolve
from trainmaster.core.errors import JobFailed

if TYPE_CHECKING:
    from trainmaster.core.job import Job as _Job


def Job(**keys: Any) -> _Job:
    """A job out of the keys of a job file: `Job(name="digits", roles={"worker": {"command": "python train.py"}})`.

    Raises BadInput, naming the key, where something is wrong; keys that Python reserves are written `from_` and `as_`.
    """
    from trainmaster.core.reading import job_from

    return job_from(_keys(keys))


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
        return str(here(self.id))

    def status(self) -> dict[str, Any]:
        """How it is doing, or how it ended, as `tm status --json` has it: state, phase, waiting, tasks, outputs, reason."""
        from trainmaster.client.connect import status

        return status(self.id)

    def wait(self, timeout: float | None = None, check: bool = True) -> dict[str, Any]:
        """Wait for the end; returns the final status. Raises TimeoutError after `timeout` seconds, which leaves the job running, and with
        `check` JobFailed where it did not succeed. Outputs of a job on a cluster that are to be on this machine are then here.
        """
        from trainmaster.client.carried import brought
        from trainmaster.client.follow import wait_for_end
        from trainmaster.client.sweep import resume

        status = wait_for_end(self.id, timeout, resume)
        if status is None:
            raise TimeoutError(f"{self.id} has not ended after {timeout} s")
        status = brought(self.id, status)
        if check and status["state"] != "succeeded":
            raise failed(status)
        return status

    def events(self, follow: bool = False) -> Iterator[dict[str, Any]]:
        """Its events, oldest first; with `follow` those to come too, until the end."""
        from trainmaster.client.connect import Past
        from trainmaster.client.follow import follow as follow_job
        from trainmaster.client.sweep import resume

        if not follow:
            return Past(self.id).events()
        return (item["event"] for item in follow_job(self.id, resume=resume) if "event" in item)

    def logs(self, task: str | None = None, attempt: int | None = None, follow: bool = False) -> Iterator[str]:
        """What a task printed, line by line; of all tasks, each line led by its task, where none is named."""
        from trainmaster.client.lines import Lines
        from trainmaster.client.logs import pieces

        lines = Lines()
        for piece in pieces(self.id, task, attempt, follow):
            yield from (_led(task, *line) for line in lines.add(piece))
        yield from (_led(task, *line) for line in lines.close())

    def kill(self, why: str = "") -> None:
        """Ask for its end; `wait(check=False)` tells when it has come."""
        from trainmaster.client.actions import kill

        kill(self.id, why)

    def save(self) -> dict[str, Any]:
        """Save its outputs as they are; figures by task, once it is done."""
        from trainmaster.client.actions import save, saved

        return saved(self.id, save(self.id))


def _led(wanted: str | None, task: str, line: str) -> str:
    return line if wanted is not None else f"{task} {line}"


def failed(status: Mapping[str, Any]) -> JobFailed:
    """The error that says how a job ended."""
    from trainmaster.client.text import ended_lines

    first, *rest = ended_lines(status)
    return JobFailed("\n".join([first, *rest]), mend=f"see all of it: tm logs {status['job']}", anchor="job-failed")


class JobWarning(UserWarning):
    """Something in a job is likely not meant, or changes nothing here: `submit` warns of it before anything is started."""


def submit(
    job: _Job | Mapping[str, Any],
    *,
    engine: str = "local",
    directory: str | Path | None = None,
    idempotency_key: str = "",
) -> Run:
    """Start a job; returns at once. Relative paths and the programs' directory are those of `directory` (default: the present one).

    `engine`: "local" is this machine, "yarn" the Hadoop cluster that HADOOP_CONF_DIR leads to.

    A job that was submitted before under the same `idempotency_key` is returned instead of being started again. What `tm submit` warns of
    is a JobWarning here; where warnings are errors, nothing is started.
    """
    return started(looked_over(job, engine), engine, directory, idempotency_key)


def looked_over(job: _Job | Mapping[str, Any], engine: str) -> _Job:
    """The job. Whoever called our caller is warned of its doubtful points."""
    import warnings

    from trainmaster.client.describe import doubts

    made = Job(**job) if isinstance(job, Mapping) else job
    for text in doubts(made, engine):
        warnings.warn(text, JobWarning, stacklevel=3)
    return made


def started(job: _Job, engine: str, directory: str | Path | None, key: str) -> Run:
    """The run of a job that was looked over."""
    from trainmaster.client.describe import check_engine
    from trainmaster.client.submit import submit

    check_engine(engine)
    return Run(submit(job, base=Path(directory) if directory is not None else None, key=key, engine=engine))


def attach(job: str) -> Run:
    """A job by its id, an unambiguous beginning of it, its name (the one that runs, else the newest), or its handle. Raises NotFound."""
    return Run(resolve(job))


def wait(job: str | Run, timeout: float | None = None, check: bool = True) -> dict[str, Any]:
    """`Run.wait` by name."""
    return _run(job).wait(timeout, check)


def logs(job: str | Run, task: str | None = None, attempt: int | None = None, follow: bool = False) -> Iterator[str]:
    """`Run.logs` by name."""
    return _run(job).logs(task, attempt, follow)


def status(job: str | Run) -> dict[str, Any]:
    """`Run.status` by name."""
    return _run(job).status()


def jobs() -> list[dict[str, Any]]:
    """The jobs of this machine, newest first: id, name, state, reason and times."""
    from trainmaster.client.places import state_dir
    from trainmaster.log.index import jobs
    from trainmaster.log.storage import LocalStorage

    return [attrs.asdict(job) for job in jobs(LocalStorage(state_dir()))]


def _run(job: str | Run) -> Run:
    return job if isinstance(job, Run) else attach(job)
