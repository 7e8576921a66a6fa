"""A job by its storage: its state, events and output, as its log tells them. It works when the master is gone, and years after the end."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.client.jobs.places import job_storage, master_trouble
from trainmaster.core.errors import NotFound

if TYPE_CHECKING:
    from trainmaster.core.metrics import Series
    from trainmaster.core.spec.job import Job
    from trainmaster.core.timeline import Timeline
    from trainmaster.log.history.course import Course
    from trainmaster.log.output import Printed
    from trainmaster.log.storage import Storage

Facts = dict[str, Any]


def described(job: str) -> Job:
    """Return the job as it was submitted."""
    from trainmaster.core.spec.reading import job_from
    from trainmaster.log.documents.jobs import read_job

    return job_from(read_job(job_storage(job)))


def own_outputs(job: str) -> dict[str, str]:
    """Return the URLs of a job's outputs, by name, as this user described the job; none of a job that others may have described.

    A command that reads or copies outputs acts by these alone: the log may be in a storage that others write.
    """
    from trainmaster.client.jobs.places import site_of

    return {} if site_of(job).get("shared") else {name: output.url for name, output in described(job).outputs.items()}


def check_is_there(job: str) -> None:
    """Raise NotFound where a job that this machine knew was removed."""
    if not job_storage(job).exists():
        raise removed(job)


def removed(job: str) -> NotFound:
    return NotFound(
        f"{job} is not there any more: it was removed", mend="see the others: tm list", anchor="no-such-job"
    )


class Past:
    """A job by its storage."""

    def __init__(self, job: str) -> None:
        from trainmaster.log.documents.jobs import place_of
        from trainmaster.log.storage import LocalStorage, storage_for

        self.job = job
        self.storage = storage_for(place_of(job_storage(job)))
        self.directory: Storage = LocalStorage(job_storage(job))

    def state(self) -> Any:
        """Return the folded state. Raises NotFound where the log has not begun."""
        from trainmaster.log.replay import replayed

        state, _ = replayed(self.storage)
        if state.job is None:
            why = master_trouble(self.job) or "its master never wrote, or its log was emptied"
            raise NotFound(
                f"{self.job} has no events: {why}",
                place=str(job_storage(self.job)),
                mend=f"submit it again: tm retry {self.job}",
                anchor="no-events",
            )
        return state

    def status(self) -> Facts:
        from trainmaster.core.machine.report import status

        return status(self.state())

    def events(self, after: int = 0) -> Iterator[Facts]:
        from trainmaster.core.machine.events import decode
        from trainmaster.core.spec.description import shown_event
        from trainmaster.log.reader import Reader, replay

        def known(line: bytes) -> Facts:
            decode(line)  # refuses an event of another major version
            return shown_event(json.loads(line))

        yield from replay(Reader(self.storage, after), known)

    def metrics(
        self, tasks: Collection[str] | None = None, names: Collection[str] | None = None, since: float = 0.0
    ) -> Sequence[Series]:
        """Return what was measured, of some tasks ("" is the whole job) and names, or of all, after a time in seconds since 1970."""
        from trainmaster.log.metrics.files import read_metrics

        return read_metrics(self.storage).series(tasks, names, since)

    def timeline(self) -> Timeline:
        """Return the course of the job so far: its attempts, generations, masters and marks. A later call reads the newer events only."""
        return self._course.read()

    @functools.cached_property
    def _course(self) -> Course:
        from trainmaster.log.history.course import Course

        return Course(self.storage)

    def description(self) -> Facts:
        """Return what is known of the job from its beginning: see `web.contract.Facts`."""
        from trainmaster.client.jobs.places import site_of
        from trainmaster.core.spec.description import description
        from trainmaster.log.documents.jobs import read_job

        return description(read_job(job_storage(self.job)), site_of(self.job), self.storage.url)

    def log(self, task: str, attempt: int | None = None, offset: int = 0, growing: bool = False) -> Iterator[Facts]:
        """Yield pieces {task, attempt, offset, next, data} of a task's output so far, of its latest attempt where None."""
        number = attempt or max(self.attempts(task), default=1)
        for piece in self._printed(task, number).pieces(offset, growing):
            yield {"task": task, "attempt": number, **piece}

    def size(self, task: str, attempt: int) -> int:
        """Return the bytes that an attempt has printed."""
        return self._printed(task, attempt).size

    def printed(self) -> list[str]:
        """Return the tasks of the log whose output is there, in order."""
        from trainmaster.log.output import folder, folders

        printed = folders(self.storage, self.directory)
        return [task for task in self.tasks() if folder(task) in printed]

    def attempts(self, task: str) -> list[int]:
        """Return the attempts whose output is there, in order."""
        from trainmaster.log.output import attempts

        return attempts(self.storage, self.directory, task)

    def tasks(self) -> list[str]:
        """Return the tasks that the job has at most; known before its log begins."""
        return task_names(self.described)

    def _printed(self, task: str, attempt: int) -> Printed:
        from trainmaster.log.output import Printed

        return Printed(self.storage, self.directory, task, attempt, self.described.logs)

    @functools.cached_property
    def described(self) -> Job:
        """The job as it was submitted."""
        return described(self.job)


def task_names(job: Job) -> list[str]:
    """Return the tasks that a job has at most."""
    return [f"{role.name}:{index}" for role in job.roles.values() for index in range(role.replicas.max)]


def copied_tasks(job: Job) -> list[str]:
    """Return the tasks of a job that run several copies of their program, or one for each GPU, if it does not say how many."""
    from trainmaster.core.machine.ranks import copies

    roles = [role for role in job.roles.values() if copies(role.processes, role.resources.gpus or 2) > 1]
    return [f"{role.name}:{index}" for role in roles for index in range(role.replicas.max)]
