"""Read the records of an input `as: shards`: each is read by one task, and counted once, however tasks come and go.

Shards are leased some at a time. A shard is done once the consumer has moved past its last record, that is, asked for
the next one; done shards are reported with the next lease, or at the next shard if the last report is a while ago.
Where the consumer stops early, the shards that it leased and did not finish go to others. When nothing is left to lease, the
reader waits until all others are done too, since somebody must read the shards that they lose. It may not wait for itself: where this
program has one thread and holds shards that are not done, that is an error.

A program that prefetches moves past records before it has used them: it takes `.shards(manual=True)` and calls
`done()` itself.

Elastic training reports by steps, as the others go on from the last one that was completed: at once (`report_at_once`), and where several
batches make a step, not before it is complete (`hold_reports`). Its work on shards is in a state that others have too (`kept_by`); the work
of other programs is lost if they end before their outputs are committed.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from time import monotonic

from . import forks
from .link import Link
from .mark import NOTHING, SEVERAL, Mark
from .reading import Reader, counted, cut_alone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_REPORT_EVERY = 0.5  # s between reports of their own, where shards take long
_BATCH, _BATCH_MOST = 10, 80  # shards of a lease where the program does not say: the first and the most
_BATCH_LASTS = (0.01, 1.0)  # s: leases grow where they last less, and shrink where they last longer
_OWN_WAIT = 60.0  # s that a reader waits, while its program holds shards, before it says so
_EXIT_LIMIT = 2.0  # s that the last report may take at the program's end


class Shard:
    """A part of the input that this task is to read. `number` is unique over all shards and epochs; `epoch` is its epoch.

    It is part of the file `path`: the row groups from `start` to `end` where `kind` is "rows", all of it where it is "whole", else the
    bytes. Then `kind` is "lines", or the format: "jsonl", "csv", "recordio" or "tfrecord". Where `kind` is "table", `path` is the URL of a
    table, and the shard has the rows with the keys from `start` to `end`.
    """

    __slots__ = ("_read", "_source", "end", "epoch", "kind", "number", "path", "start")

    def __init__(self, source: _Source, number: int, epoch: int, path: str, kind: str, start: int, end: int) -> None:
        self._source = source
        self._read: int | None = None
        self.number, self.epoch, self.path, self.kind, self.start, self.end = number, epoch, path, kind, start, end

    def __repr__(self) -> str:
        return f"<Shard {self.number}: {self.path} {self.kind} {self.start}-{self.end}>"

    def records(self) -> Iterator[Any]:
        """Yield its records: lines as str (bytes where `encoding` is None), rows of Parquet and tables as dictionaries, all others
        bytes.
        """
        read, began = 0, forks.count
        for record in self._source.reader.records(self.path, self.kind, self.start, self.end):
            read += 1
            yield record
            if forks.count != began:
                raise RuntimeError(forks.FORKED)
        self._read = read

    def done(self, records: int | None = None) -> None:
        """Count the shard as read. `records`: how many it had, where the program read them without `records()`."""
        self._source.done(self, self._read if records is None else records)


class Shards:
    """An input. Iterating gives its records, over all epochs; each iterator leases for itself, so threads and processes
    may have their own.
    """

    def __init__(
        self, name: str, default: str, epochs: int, encoding: str | None, errors: str, batch: int | None, wait: bool,
        format_name: str = "auto",
    ) -> None:  # fmt: skip
        if (batch is not None and batch < 1) or epochs < 0:
            raise ValueError("batch is at least 1, epochs at least 0")
        self.name = name
        self._default, self._epochs, self._encoding, self._errors = default, epochs, encoding, errors
        self._batch, self._wait, self._format = batch, wait, format_name

    def __iter__(self) -> Iterator[Any]:
        for shard in self.shards():
            yield from shard.records()

    def shards(self, *, manual: bool = False) -> Iterator[Shard]:
        """Yield the shards themselves. One that the consumer has moved past is done; with `manual` only those whose `done()`
        it called: before it asks for the next one, unless another thread does it meanwhile.
        """
        source, began = self._source(), forks.count
        source.by_shards = not manual
        source.is_manual = manual
        try:
            while (shard := source.next()) is not None:
                yield shard
                if forks.count != began:
                    raise RuntimeError(forks.FORKED)
                if not manual:
                    shard.done()
        finally:
            if forks.count == began:
                source.close()

    def epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yield (epoch, its records) for each epoch. A shard that another task lost late in an epoch may be read in the next
        one.
        """
        shards = self.shards()
        ahead = next(shards, None)
        while ahead is not None:
            epoch, part = ahead.epoch, _Part(ahead, shards)
            yield epoch, iter(part)
            part.finish()
            ahead = part.ahead

    def batches(self, size: int, *, shuffle: int = 0, seed: int = 0, drop_last: bool = False) -> Iterator[list[Any]]:
        """Yield lists of `size` records, over all epochs. A shard counts once all its records were used: when the batch after them is
        asked for.

        `shuffle`: records in the buffer from which the next one is drawn, by `seed`. Near the end of the data batches may be smaller,
        or, with `drop_last`, are left out.
        """
        from .batches import batches

        return batches(self._source(), size, shuffle, seed, drop_last)

    def _source(self) -> _Source:
        path = os.environ.get("TRAINMASTER_SOCKET")
        if path:
            if os.environ.get(self._variable, "").startswith("records://?") and not self._default.startswith(
                "records:"
            ):
                raise ValueError(
                    f'the program counts the input {self.name}: shards("{self.name}", default="records://COUNT/SIZE")'
                )
            return _Leased(self, path)
        return _Alone(self)

    def _reader(self) -> Reader:
        return Reader(self._encoding, self._errors)

    @property
    def _variable(self) -> str:
        return "TRAINMASTER_INPUT_" + "".join(c if c.isalnum() else "_" for c in self.name).upper()

    def _place(self) -> str:
        place = os.environ.get(self._variable) or self._default
        if not place:
            raise FileNotFoundError(f"input {self.name}: neither {self._variable} is set nor a default path given")
        return place


class _Part:
    """The shards of one epoch, taken from an iterator over all shards."""

    def __init__(self, first: Shard, shards: Iterator[Shard]) -> None:
        self.ahead: Shard | None = first
        self._epoch, self._shards = first.epoch, shards

    def __iter__(self) -> Iterator[Any]:
        while self.ahead is not None and self.ahead.epoch <= self._epoch:
            yield from self.ahead.records()
            self.ahead = next(self._shards, None)

    def finish(self) -> None:
        """Move past the shards that the consumer left of this epoch: they count as read, as after a `break` in a loop over
        epochs.
        """
        while self.ahead is not None and self.ahead.epoch <= self._epoch:
            self.ahead = next(self._shards, None)


class _Source(ABC):
    """The source of shards for one iterator."""

    # The consumer takes whole shards, which count once it moves past them; or it says itself which are done. Else it takes records.
    by_shards = is_manual = False

    def __init__(self, shards: Shards) -> None:
        self.reader = shards._reader()

    @abstractmethod
    def next(self, wait: bool | None = None) -> Shard | None:
        """Return the next shard, or None. `wait`: whether to wait for what others may lose; None: as the input was asked for."""

    @abstractmethod
    def done(self, shard: Shard, records: int | None) -> None: ...

    def close(self) -> None:
        self.reader.close()


class _Alone(_Source):
    """The source without an agent: all files, once per epoch, with no reports."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards)
        cuts = cut_alone(shards._place(), shards._format)
        self._remaining = (
            Shard(self, epoch * len(cuts) + i, epoch, *cut)
            for epoch in range(shards._epochs)
            for i, cut in enumerate(cuts)
        )

    def next(self, wait: bool | None = None) -> Shard | None:
        return next(self._remaining, None)

    def done(self, shard: Shard, records: int | None) -> None:
        pass


class _Leased(_Source):
    """The source that leases shards from the agent, over a connection of its own: when that closes, the agent takes back the
    shards that are not done.
    """

    def __init__(self, shards: Shards, path: str) -> None:
        super().__init__(shards)
        self._shards = shards
        self._want = shards._batch or _BATCH
        self._link = Link(path, self._greeting, self._on_frame)
        self._queue: deque[Shard] = deque()
        self._in_use: dict[int, Shard] = {}  # handed to the consumer and not done
        self._done: list[list[Any]] = []  # [number, records, state], to be reported
        self._held: list[list[Any]] = []  # to be reported once their step is complete
        self._is_held = False
        self._reported = monotonic()
        self._leased = 0.0  # when the last lease with any shards came
        self._mark = Mark()
        self._lock = threading.Lock()  # of `_in_use` and `_done`; done() may come from any thread
        self._fallback: _Alone | None = None
        _open.append(self)

    def next(self, wait: bool | None = None) -> Shard | None:
        if self._fallback is not None:
            return self._fallback.next()
        if self._queue:
            self._report_if_due()
        waits, says_at = self._shards._wait if wait is None else wait, monotonic() + _OWN_WAIT
        while not self._queue:
            answer = self._ask(waits)
            if answer.get("unknown"):  # not an input of shards: read what was staged for this task
                self._fallback = _Alone(self._shards)
                return self._fallback.next()
            if answer.get("end") or answer.get("none"):
                return None
            for number, epoch, path, kind, start, end in answer["shards"]:
                self._queue.append(Shard(self, number, epoch, path, kind, start, end))
            if waits and answer.get("taken"):
                says_at = self._check_own_wait(says_at)
        shard = self._queue.popleft()
        with self._lock:
            self._in_use[shard.number] = shard
            self._show()
        return shard

    def _check_own_wait(self, says_at: float) -> float:
        """Refuse to wait for shards that this program holds itself. Where another of its threads may call their `done()`, say so once, at
        `says_at`; return when to say it.
        """
        own = [source for source in _open if source._shards.name == self._shards.name]
        shards = [
            shard
            for source in own
            if source is not self or self.is_manual  # of records that are read, the last shards may be in use still
            for shard in (*source._in_use.values(), *source._queue)
        ]
        has_threads = any(thread is not threading.current_thread() for thread in threading.enumerate())
        if not shards or (has_threads and monotonic() < says_at):
            return says_at
        wait = (
            f"shards({self._shards.name!r}) waits for {', '.join(map(repr, shards[:3]))}{', ...' if shards[3:] else ''}"
        )
        if has_threads:
            import sys

            print(f"trainmaster: {wait}, which this program has not called done() on", file=sys.stderr, flush=True)
            return float("inf")
        for source in own:
            source._mark.show(SEVERAL)  # no shard is to blame
        raise RuntimeError(
            f"{wait}, which this program holds: call its done(), or end the loop that has it, before asking for the next one"
        )

    def done(self, shard: Shard, records: int | None) -> None:
        if self.is_manual and self not in _open:
            raise RuntimeError(
                f"shard {shard.number} of {self._shards.name} was given back when the loop over the shards ended: "
                "call done() within it"
            )
        with self._lock:
            if shard.number in self._in_use:
                del self._in_use[shard.number]
                (self._held if self._is_held else self._done).append([shard.number, records, _state])
                self._show()
        if _is_prompt:
            self._report()

    def settle(self) -> None:
        """Report what is done, the shard too that the consumer has read to its end, and return once the agent knows it.

        Raises RuntimeError where the consumer is in the middle of a shard.
        """
        for shard in [] if self.is_manual else list(self._in_use.values()):
            if not (self.by_shards and shard._read is not None):
                raise RuntimeError(
                    f"commit() in the middle of shard {shard.number} of {self._shards.name}: "
                    "read by .shards(), each to its end or to its done(), and commit between two"
                )
            shard.done()
        with self._lock:
            report = self._done[:]
        if report and self._link.ask({"op": "done", "input": self._shards.name, **_report_of(report)}) is not None:
            self._forget_reported(report)

    def hold_reports(self, is_held: bool) -> None:
        """Keep what is done from now on; or report all that was kept."""
        with self._lock:
            self._is_held = is_held
            if not is_held:
                self._done += [[number, records, _state] for number, records, _ in self._held]
                self._held.clear()
        self._report()

    def close(self) -> None:
        if self not in _open:  # it was closed; or the interpreter ends, and has dropped modules already
            return
        self.flush()
        _open.remove(self)
        self._link.end()
        self._mark.close()
        super().close()

    def flush(self) -> None:
        """Send the last report, where there is one."""
        self._report()
        self._link.flush(_EXIT_LIMIT)

    def _show(self) -> None:
        """Show the agent the shard that the consumer is in the middle of: where it has several, nobody knows which of them that is."""
        self._mark.show(SEVERAL if len(self._in_use) > 1 else next(iter(self._in_use), NOTHING))

    def _ask(self, wait: bool) -> dict[str, Any]:
        with self._lock:
            report = self._done[:]
        if self._shards._batch is None and self._leased:
            lease_seconds = monotonic() - self._leased
            if lease_seconds < _BATCH_LASTS[0]:
                self._want = min(self._want * 2, _BATCH_MOST)
            elif lease_seconds > _BATCH_LASTS[1]:
                self._want = max(self._want // 2, 1)
        frame = {"op": "lease", "input": self._shards.name, "want": self._want, "wait": wait}
        answer = self._link.ask({**frame, **_report_of(report)})
        if answer is None:  # another thread has closed this source
            return {"end": True}
        self._forget_reported(report)
        self._reported = monotonic()
        self._leased = self._reported if answer.get("shards") else 0.0
        return answer

    def _report_if_due(self) -> None:
        if monotonic() - self._reported > _REPORT_EVERY:
            self._report()

    def _report(self) -> None:
        with self._lock:
            report = self._done[:]  # `_done` keeps them until they are sent: `post` may have to greet the agent first
        self._reported = monotonic()
        if report and self._link.post({"op": "done", "input": self._shards.name, **_report_of(report)}):
            self._forget_reported(report)

    def _forget_reported(self, report: list[list[Any]]) -> None:
        """Forget the shards that the agent has the report of."""
        numbers = {number for number, *_ in report}
        with self._lock:
            self._done = [entry for entry in self._done if entry[0] not in numbers]

    def _greeting(self) -> dict[str, Any]:
        with self._lock:
            numbers = [
                *self._in_use,
                *(shard.number for shard in self._queue),
                *(number for number, *_ in [*self._done, *self._held]),
            ]
        greeting: dict[str, Any] = {} if self._mark.descriptor is None else {"mark": self._mark.descriptor}
        if numbers:
            greeting |= {"input": self._shards.name, "hold": numbers}
        if self._shards._default.startswith("records:"):
            count, size, epochs = counted(self._shards._default)
            greeting |= {"input": self._shards.name, "counts": [count, size, epochs or self._shards._epochs]}
        return greeting

    def _on_frame(self, frame: dict[str, Any]) -> None:
        if lost := set(frame.get("lost") or ()):  # this reader was away, and another reads them now
            self._queue = deque(shard for shard in self._queue if shard.number not in lost)
        if frame.get("op") == "warning":
            from .reports import warned

            warned(frame)


_open: list[_Leased] = []
_is_prompt = False  # shards are reported as soon as they are done
_kept_by = ""  # who keeps what this program makes of its shards; "": its outputs, or a checkpoint
_state: list[Any] | None = None  # the state that has what is done now, where members of a training keep it


def _report_of(done: list[list[Any]]) -> dict[str, Any]:
    return {"done": done, "kept_by": _kept_by} if _kept_by else {"done": done}


def report_at_once(kept_by: str, state: list[Any] | None = None) -> None:
    """Report what is done, and from now on each shard as soon as it is done: what a program has not reported when it dies is read again.

    `kept_by`: who has what was made of them when this program dies: the other "members", or "servers". `state`: [training, round, step] of
    the members' state that has it.
    """
    global _is_prompt, _kept_by, _state
    _is_prompt, _kept_by, _state = True, kept_by, state
    for source in list(_open):
        source.hold_reports(False)


def keep_in_outputs() -> None:
    """Say that this task's outputs hold what is made of its shards, also where the group has servers or a checkpoint."""
    global _kept_by
    _kept_by = "outputs"


def hold_reports() -> None:
    """Report nothing that is done from now on before `report_at_once`: the step of its records is not complete."""
    for source in list(_open):
        source.hold_reports(True)


_commits: dict[int, Link] = {}  # process -> its connection for commits


def commit() -> None:
    """Commit the new files at this task's outputs, with the shards that it has done: they are kept, whatever becomes of its attempt.

    Call it between shards, with every file closed or flushed that holds what was made of them, and write to new files afterwards: a file
    that is committed may not change. It returns once the files are stored and the master has them on its log; they are in their final
    place when the job ends. For one process that reads an input `as: shards` by `shards(name).shards()`; other processes of the task must
    not be writing. Alone it does nothing. Raises RuntimeError in the middle of a shard, and where nothing could be committed.
    """
    path = os.environ.get("TRAINMASTER_SOCKET")
    if not path:
        return
    for source in list(_open):
        source.settle()
    link = _commits.get(os.getpid()) or _commits.setdefault(os.getpid(), Link(path))
    answer = link.ask({"op": "commit"})
    if answer is not None and "error" in answer:
        raise RuntimeError(f"nothing was committed: {answer['error']}")


def _at_exit() -> None:
    while _open:
        _open.pop().flush()


def _after_fork() -> None:
    global _is_prompt, _kept_by, _state
    forks.count += 1
    _is_prompt, _kept_by, _state = False, "", None
    for source in _open:
        source._lock = threading.Lock()
    _open.clear()


def _arm() -> None:
    import atexit

    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork)


_arm()
