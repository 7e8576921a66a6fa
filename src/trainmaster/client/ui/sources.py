"""Two ways to one job, both blocking: a job that this machine knows, with its master while that lives; and a job of a storage place."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from trainmaster.client.jobs.past import Facts, Past
from trainmaster.client.jobs.places import job_storage
from trainmaster.core.errors import NotFound, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.core.spec.job import Job
    from trainmaster.log.storage import Storage

POLL_LOCAL, POLL_ELSEWHERE = 0.25, 2.0  # s between two looks at a log that nobody tells us about


class Source(Protocol):
    """Blocking access to a job; each call may be made from any thread."""

    @property
    def past(self) -> Past:
        """Return the job by its storage."""
        ...

    def check(self) -> None:
        """Raise NotFound where the job is gone."""

    def description(self) -> Facts:
        """Return what `web.contract.Facts.description` promises."""
        ...

    def status(self) -> Facts:
        """Return the job's present status."""
        ...

    def items(self, after: int) -> Iterator[Facts]:
        """Yield {"event"} after number `after`, {"status"} and {"lost", "why"} as they come, {"end"} last; something each few seconds."""
        ...

    def pieces(self, task: str, attempt: int, offset: int, growing: bool) -> Iterator[Facts]:
        """Yield the output of an attempt as far as it has come. `growing`: its program may still print."""
        ...


class OfThisMachine:
    """A job that this machine knows."""

    def __init__(self, job: str) -> None:
        self.job, self.past = job, Past(job)

    def check(self) -> None:
        if not job_storage(self.job).exists():
            raise removed(self.job)

    def status(self) -> Facts:
        from trainmaster.client.watch.connect import status

        self.check()
        return status(self.job)

    def items(self, after: int) -> Iterator[Facts]:
        from trainmaster.client.jobs.sweep import resume
        from trainmaster.client.watch.follow import follow

        return follow(self.job, resume=resume, after=after)

    def pieces(self, task: str, attempt: int, offset: int, growing: bool) -> Iterator[Facts]:
        from trainmaster.client.jobs.backends import backend_of
        from trainmaster.client.watch.connect import live
        from trainmaster.client.watch.disconnected import Disconnected

        if growing and not backend_of(self.job).on_this_machine and (master := live(self.job)) is not None:
            try:
                for piece in master.log(task, attempt, offset):
                    offset = piece["next"]
                    yield piece
                return
            except Disconnected:  # what is stored follows
                pass
        yield from self.past.log(task, attempt, offset, growing)

    def description(self) -> Facts:
        return self.past.description() | {"id": self.job}


class Stored(Past):
    """A job by its storage alone, wherever that is. Nothing else of it is on this machine."""

    def __init__(self, job: str, storage: Storage) -> None:
        self.job, self.storage, self.directory = job, storage, storage

    @functools.cached_property
    def described(self) -> Job:
        job: Job = self.state().known_job
        return job


class OfPlace:
    """A job of a storage place: its log says all that is known, and is looked at again and again."""

    def __init__(self, job: str, storage: Storage) -> None:
        self.job = job
        self.past: Past = Stored(job, storage)

    def check(self) -> None:
        if not self.past.storage.entries("events"):
            raise removed(self.job)

    def status(self) -> Facts:
        self.check()
        return self.past.status()

    def items(self, after: int) -> Iterator[Facts]:
        from trainmaster.core.decide.plan import closed
        from trainmaster.core.machine.report import status
        from trainmaster.log.replay import fold_batch, replayed

        state, reader = replayed(self.past.storage)
        yield {"status": status(state)}
        while not closed(state):
            time.sleep(POLL_LOCAL if self.past.storage.local else POLL_ELSEWHERE)
            last, news = reader.last, False
            while batch := reader.poll():
                if batch.first <= last:  # a later master has not read what we have
                    state, reader = replayed(self.past.storage)
                else:
                    fold_batch(state, reader, batch)
                last, news = reader.last, True
            yield {"status": status(state)} if news else {"lost": 0.0}
        yield {"end": status(state)}

    def description(self) -> Facts:
        from trainmaster.core.spec.description import description
        from trainmaster.core.spec.reading import job_to

        try:
            job = job_to(self.past.described)
        except TrainmasterError:  # the job has no events yet, or its log is damaged, which its status says
            job = {}
        return description(job, {}, self.past.storage.url) | {"id": self.job}

    def pieces(self, task: str, attempt: int, offset: int, growing: bool) -> Iterator[Facts]:
        return self.past.log(task, attempt, offset, growing)


def removed(job: str) -> NotFound:
    return NotFound(
        f"{job} is not there any more: it was removed", mend="see the others: tm list", anchor="no-such-job"
    )
