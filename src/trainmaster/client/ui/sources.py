"""Two ways to one job, both blocking: a job that this machine knows, with its master while that lives; and a job of a storage place."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from trainmaster.client.jobs.past import Facts, Past, check_is_there
from trainmaster.client.jobs.places import JOB_FILE, SITE_FILE
from trainmaster.core.errors import NotFound, TrainmasterError
from trainmaster.log.documents.files import parse
from trainmaster.log.storage import Damaged

if TYPE_CHECKING:
    from trainmaster.core.machine.state import State
    from trainmaster.core.metrics import Series
    from trainmaster.core.spec.job import Job
    from trainmaster.log.reader import Reader
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

    def master_metrics(
        self, tasks: Collection[str] | None, names: Collection[str] | None, since: float
    ) -> Sequence[Series] | None:
        """Return what the job's master has measured; None where no master answers, or the storage has as much."""
        ...


def secret_values(source: Source) -> tuple[str, ...]:
    """Return the secret values that a job's own description has; none where it cannot be read."""
    from trainmaster.core.spec.description import secret_values
    from trainmaster.core.spec.reading import job_to

    try:
        return secret_values(job_to(source.past.described))
    except (TrainmasterError, OSError):
        return ()


class OfThisMachine:
    """A job that this machine knows."""

    def __init__(self, job: str) -> None:
        self.job, self.past = job, Past(job)

    def check(self) -> None:
        check_is_there(self.job)

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

    def master_metrics(
        self, tasks: Collection[str] | None, names: Collection[str] | None, since: float
    ) -> Sequence[Series] | None:
        from trainmaster.client.watch.connect import live

        if self.past.storage.local:  # it has them a second later
            return None
        try:
            master = live(self.job)
            return None if master is None else master.metrics(tasks, names, since)
        except TrainmasterError:  # its status says why; what is stored may be read
            return None

    def description(self) -> Facts:
        return self.past.description() | {"id": self.job}


class Stored(Past):
    """A job by its storage alone, wherever that is. Nothing else of it is on this machine.

    Its state is folded once, and then brought forward by the events that came: a log of a million events takes seconds to fold.
    """

    def __init__(self, job: str, storage: Storage) -> None:
        self.job, self.storage, self.directory = job, storage, storage
        self._folding = threading.Lock()
        self._folded: tuple[State, Reader] | None = None

    def look(self) -> tuple[int, Facts, bool]:
        """Return the last event's number, the status, and whether all that follows the end is done too."""
        from trainmaster.core.decide.plan import closed
        from trainmaster.core.machine.report import status

        with self._folding:
            try:
                state = self._forward()
            except TrainmasterError:
                self._folded = None  # the reader stands after lines that could not be read
                raise
            if state.job is None:
                raise NotFound(f"{self.job} has no events yet", mend="look again", anchor="no-events")
            return state.n, status(state), closed(state)

    def status(self) -> Facts:
        return self.look()[1]

    def _forward(self) -> State:
        from trainmaster.log.replay import fold_batch, replayed

        if self._folded is None:
            self._folded = replayed(self.storage)
            return self._folded[0]
        state, reader = self._folded
        last = reader.last
        while batch := reader.poll():
            if (
                batch.first <= last or batch.first > state.n + 1
            ):  # a later master has not read what we have; or events were dropped
                self._folded = replayed(self.storage)
                return self._folded[0]
            fold_batch(state, reader, batch)
            last = batch.last
        return state

    @functools.cached_property
    def described(self) -> Job:
        from trainmaster.core.spec.reading import job_from

        content = self.storage.read(
            JOB_FILE
        )  # beside its log; an old one may lack it, or it is damaged: the log has the job
        with contextlib.suppress(Damaged):
            if content is not None:
                return job_from(parse(content, JOB_FILE))
        job: Job = self.state().known_job
        return job


class OfPlace:
    """A job of a storage place: its log says all that is known, and is looked at again and again."""

    def __init__(self, job: str, storage: Storage) -> None:
        self.job = job
        self.past: Stored = Stored(job, storage)

    def check(self) -> None:
        if not self.past.storage.entries("events"):
            problem = f"{self.job} has no events in {self.past.storage.url}: it has not begun yet, or it was removed"
            raise NotFound(problem, mend="look again, or see the list", anchor="no-such-job")

    def status(self) -> Facts:
        self.check()
        return self.past.status()

    def items(self, after: int) -> Iterator[Facts]:
        last, over, due = -1, False, 0.0
        while not over:
            n, status, over = self.past.look()
            if n == last:
                self.check()  # a log that is gone has no more events either
            if n != last or time.monotonic() >= due:  # samples are news too
                last, due = n, time.monotonic() + POLL_ELSEWHERE
                yield {"status": status}
            else:
                yield {"lost": 0.0}
            if not over:
                time.sleep(POLL_LOCAL if self.past.storage.local else POLL_ELSEWHERE)
        yield {"end": status}

    def description(self) -> Facts:
        from trainmaster.core.spec.description import description
        from trainmaster.core.spec.reading import job_to

        try:
            job = job_to(self.past.described)
        except TrainmasterError:  # the job has no events yet, or its log is damaged, which its status says
            job = {}
        try:
            site = parse(self.past.storage.read(SITE_FILE) or b"{}", SITE_FILE)
        except TrainmasterError:
            site = {}
        return description(job, site, self.past.storage.url) | {"id": self.job}

    def pieces(self, task: str, attempt: int, offset: int, growing: bool) -> Iterator[Facts]:
        return self.past.log(task, attempt, offset, growing)

    def master_metrics(
        self, tasks: Collection[str] | None, names: Collection[str] | None, since: float
    ) -> Sequence[Series] | None:
        return None
