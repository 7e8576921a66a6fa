"""A job's life as one stream, whoever is its master: `follow`.

Items are {"event"}, {"status"}, {"log"} as they come, and {"end": status} last. The stream goes on over the death of a master. Its
successor is asked again; items that were handed out before are left out (events by their number, output by the bytes printed before it). If
the job ended in between, the rest comes from its storage, once what follows the end is done too. {"lost": seconds} says that no master
answers at present.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from trainmaster.client.jobs.backends import backend_of
from trainmaster.client.jobs.past import Facts, Past
from trainmaster.client.jobs.places import beginning, job_storage, site_of
from trainmaster.client.watch.connect import live, note_end
from trainmaster.client.watch.disconnected import Disconnected
from trainmaster.core.errors import BadInput, EngineFailed, NotFound, TrainmasterError
from trainmaster.log.storage import Damaged

if TYPE_CHECKING:
    from trainmaster.client.jobs.backend import Backend
    from trainmaster.client.watch.live import Live
    from trainmaster.core.machine.state import State
    from trainmaster.log.reader import Reader

LOOK = 0.005  # s between two looks for a master, at first; later a twentieth of the time it has taken
LOOK_MOST = 0.5
AT_ONCE = 16  # pieces of output of one task, before another one's turn
AGAIN = 0.1  # s until a master whose stream broke off at once is asked again: the reason may stay for a while
QUIET = 5.0  # s of waiting for a job's end that need no word
LOOK_ELSEWHERE = 3.0  # s between two looks at what a cluster says of a job whose master does not answer
RESUMED_MOST = 5  # masters that die of what follows the end: nobody will do it
OUTLASTED = 600.0  # s that a cluster, or a storage on it, may be away from whoever watches

Resume = Callable[[str], object]


def follow(
    job: str,
    *,
    logs: bool = False,
    tail: int | None = None,
    after: int = 0,
    resume: Resume = lambda job: None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Facts]:
    """Yield everything of `job` until its end. `tail`: of output printed before, only so many bytes of each task. `after`: the number of an
    event; those up to it are left out.

    `resume(job)` is called when no master has answered for a while; it may start one.
    """
    seen = _Seen(after)
    where = backend_of(job)
    stored = _Stored(job, seen, logs, tail, where.on_this_machine)
    alone = None  # since when no master answers
    looked = None  # the last look whether somebody must take the job up
    looks = _Looks(job, where, stored, resume)
    why, asked_at = "", -LOOK_ELSEWHERE  # what the backend says of the wait, and when it was asked
    away, met = None, False  # since when neither cluster nor storage could be asked; whether a master has answered
    while True:
        master = _reach(job, met)
        if master is not None:
            alone, looked, met = None, None, True
            looks.clear()
            begun = clock()
            if (yield from _relay(master, stored, seen, logs, tail, clock)):
                return
            if clock() - begun < AGAIN:
                wait(AGAIN)
            continue
        now = clock()
        alone = now if alone is None else alone
        # `nobody_left`: to do what follows the end. `has_more`: output that is there already.
        nobody_left = has_more = False
        try:
            has_more = yield from _with_output(stored.news())
            alone += clock() - now  # whoever reads slowly does not wait for a master
            if clock() - max(alone, looked or alone) > where.patience and (stored.begun or not beginning(job)):
                looked = clock()
                nobody_left = looks.find_nobody()
                yield from stored.news()
            if stored.closed or (nobody_left and stored.ended):
                yield from stored.end()
                return
            if clock() - asked_at > LOOK_ELSEWHERE:
                why, asked_at = where.waiting_reason(job), clock()
            away = None
        except TrainmasterError as error:
            if where.on_this_machine or not _passes(error, away) or clock() - (away or now) > OUTLASTED:
                raise
            away = now if away is None else away
            why, nobody_left = f"{error.message}; the job may go on meanwhile", False
        if nobody_left:
            raise where.gone(job) or no_process_left(job)
        yield {"lost": clock() - alone} | ({"why": why} if why else {})
        wait(0.0 if has_more else _pause(clock() - alone) if stored.quick else LOOK_MOST)


class _Looks:
    """Looks, in a row, whether anybody is left who brings a job that no master answers for to its end."""

    def __init__(self, job: str, where: Backend, stored: _Stored, resume: Resume) -> None:
        self._job, self._where, self._stored, self._resume = job, where, stored, resume
        self.clear()

    def clear(self) -> None:
        """Begin anew: a master has answered."""
        self._deserted = 0  # looks that saw nobody
        self._resumed = 0  # masters that were started after the job's end, and died

    def find_nobody(self) -> bool:
        """Look once more, and start a master where that may help; tell whether nobody is left."""
        is_resumed = bool(self._resume(self._job))
        self._resumed = self._resumed + 1 if is_resumed and self._stored.ended else 0
        is_deserted = not is_resumed and self._where.is_abandoned(self._job) and live(self._job) is None
        self._deserted = self._deserted + 1 if is_deserted else 0
        return self._deserted >= self._where.looks or self._resumed >= RESUMED_MOST


def _pause(alone: float) -> float:
    """Seconds until the next look for a master, after `alone` seconds without one."""
    return min(max(LOOK, alone / 20), LOOK_MOST)


def _with_output(items: Iterator[Facts]) -> Generator[Facts, None, bool]:
    """Hand the items on; returns whether there was output among them."""
    output = False
    for item in items:
        output = output or "log" in item
        yield item
    return output


def _reach(job: str, met: bool) -> Live | None:
    """Return the job's master, None where none answers. BadInput where we may not ask it, unless it was `met` before: an API server that
    is back knows no rights for a moment.
    """
    try:
        return live(job)
    except BadInput:
        if not met:
            raise
        return None


def _passes(error: TrainmasterError, away: float | None) -> bool:
    """Tell whether an error may pass by itself: a cluster or a storage is away; one that is back may refuse for a moment whom it knows."""
    if isinstance(error, (NotFound, Damaged)):
        return False
    return isinstance(error, EngineFailed) or away is not None


def no_process_left(job: str) -> EngineFailed:
    """Return the error of a job that nobody can go on with: its master died before it noted that it had begun, or was ended by force."""
    if site_of(job).get("shared"):
        return EngineFailed(
            f"{job} is over on its cluster, and its end is not written yet",
            mend="the next tm command where it was submitted writes it",
            anchor="job-elsewhere",
        )
    try:
        last = (
            (job_storage(job) / "logs" / "master" / "start.log").read_text(errors="replace").strip().splitlines()[-1:]
        )
    except OSError:  # the master died before it had a log
        last = []
    return EngineFailed(
        f"no process of {job} is left, and it has not ended" + (f": {last[0]}" if last else ""),
        place=str(job_storage(job) / "logs" / "master"),
        mend=f"submit it again: tm retry {job}   or have its log ended: tm kill --force {job}",
        anchor="master-gone",
    )


class _Seen:
    """The items that were handed out."""

    def __init__(self, event: int = 0) -> None:
        self.event = event
        self.positions: dict[tuple[str, int], int] = {}  # (task, attempt) -> end of the output handed out

    def news(self, item: Facts) -> Facts | None:
        """Return `item`, or the part of it that is new; None where nothing is."""
        if (event := item.get("event")) is not None:
            if event["n"] <= self.event:
                return None
            self.event = event["n"]
        elif (piece := item.get("log")) is not None:
            fresh = self._fresh(piece)
            return None if fresh is None else {"log": fresh}
        return item

    def _fresh(self, piece: Facts) -> Facts | None:
        from trainmaster.log.output import beyond

        key = (piece["task"], piece["attempt"])
        fresh = beyond(piece, self.positions.get(key, 0))
        self.positions[key] = max(piece["next"], self.positions.get(key, 0))
        return fresh


def _relay(
    master: Live, stored: _Stored, seen: _Seen, logs: bool, tail: int | None, clock: Callable[[], float]
) -> Generator[Facts, None, bool]:
    """Hand out the items of one master; returns whether the job ended. From the first event on: so the master sends each attempt's output.

    If the output is on this machine, the master says only how far it has come: through the master, 56 MB/s were seen.
    """
    heard = clock()
    try:
        for item in master.stream(0 if logs else seen.event, logs, tail, stored.bare):
            if "end" in item:
                note_end(master.job, item["end"])
                yield item
                return True
            if item.get("log", {}).get("bare"):
                yield from stored.up_to(item["log"])
            elif (fresh := seen.news(item)) is not None:
                yield fresh
            heard = clock()
    except Disconnected:  # the master is dead, or stands still
        yield {"lost": clock() - heard}
    return False


class _Stored:
    """The job's storage, read while no master answers: its log, folded as it grows, and its tasks' output.

    A master begins to listen only after the first programs have started, and one that has nothing else to do ends before.
    """

    def __init__(self, job: str, seen: _Seen, logs: bool, tail: int | None, on_this_machine: bool) -> None:
        self._past, self._seen, self._logs, self._tail = Past(job), seen, logs, tail
        self._reader: Reader | None = None
        self._state: State | None = None
        self.quick = self._past.storage.local  # a look costs next to nothing
        self.bare = self.quick and on_this_machine  # output that agents have written can be read here at once

    @property
    def begun(self) -> bool:
        return self._state is not None and self._state.n > 0

    @property
    def ended(self) -> bool:
        return self._state is not None and self._state.ended is not None

    @property
    def closed(self) -> bool:
        """Tell whether what follows the end is done too."""
        from trainmaster.core.decide.plan import closed

        return self._state is not None and closed(self._state)

    def news(self) -> Iterator[Facts]:
        """Yield new items. Output comes only from the present attempts; the rest follows at the end, or by the next master."""
        for line in self._read():
            if (fresh := self._seen.news({"event": json.loads(line)})) is not None:
                yield fresh
        if self._logs and self._tail is None and self.quick and self._state is not None:
            for task in self._state.tasks.values():
                if task.attempt and not task.left:
                    yield from itertools.islice(self._output(task.key, task.attempt, 0, growing=True), AT_ONCE)

    def end(self) -> Iterator[Facts]:
        """Yield all that was not handed out, and the final status."""
        from trainmaster.core.machine.report import status

        assert self._state is not None
        for task in self._past.printed() if self._logs else ():
            for attempt in self._past.attempts(task):
                begin = 0 if self._tail is None else max(0, self._past.size(task, attempt) - self._tail)
                yield from self._output(task, attempt, begin)
        end = status(self._state)
        note_end(self._past.job, end)
        yield {"end": end}

    def up_to(self, piece: Facts) -> Iterator[Facts]:
        """Yield the output that a bare piece stands for, as far as it was not handed out."""
        for item in self._output(piece["task"], piece["attempt"], piece["offset"], piece["growing"]):
            yield item
            if item["log"]["next"] >= piece["next"]:
                return

    def _output(self, task: str, attempt: int, begin: int, growing: bool = False) -> Iterator[Facts]:
        for piece in self._past.log(task, attempt, self._seen.positions.get((task, attempt), begin), growing):
            if (fresh := self._seen.news({"log": piece})) is not None:
                yield fresh

    def _read(self) -> list[bytes]:
        """Return the lines that came, after folding them."""
        from trainmaster.core.machine.state import State
        from trainmaster.log.reader import Reader
        from trainmaster.log.replay import fold_batch, replayed

        if self._reader is None or self._state is None:
            self._reader, self._state = Reader(self._past.storage), State()
        lines: list[bytes] = []
        last = self._reader.last
        while batch := self._reader.poll():
            if batch.first <= last:  # a later master did not read what was read here
                self._reader = self._state = None
                return self._read()
            if batch.first > self._state.n + 1:  # what was dropped is in a snapshot, and may be more than was read here
                self._state, _ = replayed(self._past.storage)
            fold_batch(self._state, self._reader, batch)
            lines += batch.lines
            last = batch.last
        return lines


def wait_for_end(
    job: str, timeout: float | None = None, resume: Resume = lambda job: None, tell: Callable[[str], None] = lambda why: None
) -> Facts | None:  # fmt: skip
    """Return the final status, None after `timeout` seconds. `tell`: called with what the job waits for, where that takes long."""
    limit = None if timeout is None else time.monotonic() + timeout
    loud, last_why = time.monotonic() + QUIET, ""
    for item in follow(job, resume=resume):
        if "end" in item:
            return dict(item["end"])
        why = (item.get("status") or {}).get("waiting") or item.get("why") or ""
        if why and why != last_why and time.monotonic() > loud:
            last_why = why
            tell(why)
        if limit is not None and time.monotonic() > limit:  # a living master says something each second
            return None
    return None
