"""A job's life as one stream, whoever is its master: `follow`.

Items are {"event"}, {"status"}, {"log"} as they come, and {"end": status} last. The stream goes on over the death of a master: its
successor is asked again, what was handed out before is left out (events by their number, output by its offset), and where the job ended in
between, the rest comes from its storage, once what follows the end is done too. {"lost": seconds} says that no master answers at present.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from trainmaster.client.connect import Disconnected, Facts, Live, Past, beginning, live
from trainmaster.client.places import job_storage
from trainmaster.client.sweep import abandoned
from trainmaster.core.errors import EngineFailed, NotFound

if TYPE_CHECKING:
    from trainmaster.core.state import State

LOOK = 0.005  # s between two looks for a master, at first; later a twentieth of the time it has taken
LOOK_MOST = 0.5
PATIENCE = 3.0  # s without a master before the job is taken up again

Resume = Callable[[str], object]


def follow(
    job: str,
    *,
    logs: bool = False,
    tail: int | None = None,
    resume: Resume = lambda job: None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Facts]:
    """Everything of `job` until its end. `tail`: of output printed before, only so many bytes of each task.

    `resume(job)` is called when no master has answered for a while; it may start one.
    """
    seen = _Seen()
    alone = None  # since when no master answers
    resumed = False
    while True:
        master = live(job)
        if master is not None:
            alone, resumed = None, False
            ended = yield from _relay(master, seen, logs, tail)
            if ended:
                return
            continue
        alone = clock() if alone is None else alone
        past, state = _past(job)
        left = False  # whether nobody is left to do what follows the end
        if clock() - alone > PATIENCE and not resumed and not beginning(job):
            resumed = True
            left = not resume(job) and abandoned(job) and live(job) is None
            past, state = _past(job)
        if state is not None and (_closed(state) or (left and state.ended is not None)):
            yield from _rest(past, seen, logs)
            return
        if left:
            raise _nobody(job)
        yield {"lost": clock() - alone}
        wait(min(max(LOOK, (clock() - alone) / 20), LOOK_MOST))


def _nobody(job: str) -> EngineFailed:
    """Nobody works for the job, and nobody can: its master died before it could note that it had begun, or was ended by force."""
    try:
        last = (
            (job_storage(job) / "logs" / "master" / "start.log").read_text(errors="replace").strip().splitlines()[-1:]
        )
    except OSError:  # it died before it had a log
        last = []
    return EngineFailed(
        f"no process of {job} is left, and it has not ended" + (f": {last[0]}" if last else ""),
        place=str(job_storage(job) / "logs" / "master"),
        mend=f"submit it again: tm retry {job}",
        anchor="master-gone",
    )


class _Seen:
    """What was handed out."""

    def __init__(self) -> None:
        self.event = 0
        self.offsets: dict[tuple[str, int], int] = {}  # (task, attempt) -> end of the output handed out

    def news(self, item: Facts) -> Facts | None:
        """`item`, or what of it is new."""
        if (event := item.get("event")) is not None:
            if event["n"] <= self.event:
                return None
            self.event = event["n"]
        elif (piece := item.get("log")) is not None:
            fresh = self._fresh(piece)
            return None if fresh is None else {"log": fresh}
        return item

    def _fresh(self, piece: Facts) -> Facts | None:
        key, end = (piece["task"], piece["attempt"]), self.offsets.get((piece["task"], piece["attempt"]), 0)
        if piece["next"] <= end:
            return None
        self.offsets[key] = piece["next"]
        if piece["offset"] >= end:
            return piece
        data = piece["data"].encode("utf-8", "replace")[end - piece["offset"] :].decode("utf-8", "replace")
        return {**piece, "offset": end, "data": data}


def _relay(master: Live, seen: _Seen, logs: bool, tail: int | None) -> Generator[Facts, None, bool]:
    """What one master tells; returns whether the job ended. From the first event on: so the master sends each attempt's output."""
    try:
        for item in master.stream(0 if logs else seen.event, logs, tail):
            if "end" in item:
                yield item
                return True
            if (fresh := seen.news(item)) is not None:
                yield fresh
    except Disconnected:
        return False
    return False


def _past(job: str) -> tuple[Past, State | None]:
    """The job by its storage, and its state; None where its master has not begun to write."""
    past = Past(job)
    try:
        return past, past.state()
    except NotFound:
        return past, None


def _closed(state: State) -> bool:
    from trainmaster.core.plan import closed  # not needed while a master answers

    return closed(state)


def _rest(past: Past, seen: _Seen, logs: bool) -> Iterator[Facts]:
    """What the storage has beyond what was handed out, and the end."""
    status = past.status()
    for event in past.events(seen.event):
        yield {"event": event}
    for task in status["tasks"] if logs else ():
        for attempt in past.attempts(task["task"]):
            offset = seen.offsets.get((task["task"], attempt), 0)
            for piece in past.log(task["task"], attempt, offset):
                yield {"log": piece}
    yield {"end": status}


def wait_for_end(job: str, timeout: float | None = None, resume: Resume = lambda job: None) -> Facts | None:
    """The final status, or None when `timeout` seconds passed before."""
    limit = None if timeout is None else time.monotonic() + timeout
    for item in follow(job, resume=resume):
        if "end" in item:
            return dict(item["end"])
        if limit is not None and time.monotonic() > limit:  # a living master says something each second
            return None
    return None
