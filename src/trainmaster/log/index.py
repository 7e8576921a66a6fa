"""The jobs under a state directory, newest first, without reading their logs whole each time.

A job's *headline* is its line in a list: name, state, times. It comes from a few types of events alone, in the
table `HEADLINES`; the others are told apart by a look at their bytes. `index.json` keeps the headlines with the
number of the last event read, so the next look reads only newer events. The index is a cache: deleted, damaged or out
of date, it is made again.

A job whose storage is elsewhere has a directory here all the same. A storage that cannot be reached is tried once per list,
not once per job: each try may take long. The list shows the last known state of such a job. Commands that see the end of a job therefore
note it in that directory (`note_end`): how a job ended stays known on this machine, whatever becomes of its storage.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from trainmaster.core.errors import StorageFailed, TrainmasterError
from trainmaster.core.machine.events import Event, decode
from trainmaster.log.reader import Reader
from trainmaster.log.storage import LocalStorage, Storage, local_path, place_of, storage_for

JOBS = "jobs"
INDEX = "index.json"
UNSEEN = "unseen"  # in a job's directory: its cluster's report, where the job is over there and has no events that this machine sees
END = "end.json"  # in a job's directory: its headline, once a command of this machine has seen its end
BEGIN = 30.0  # seconds; a job younger than that may have no folder in its storage yet
_VERSION = 1


@attrs.frozen(slots=True)
class Headline:
    """One job in a list. Times are in seconds since 1970; `state` is waiting, running, ending or the final one, or that it was removed."""

    id: str
    name: str = ""
    state: str = "waiting"
    reason: str = ""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    n: int = 0  # the last event read
    epoch: int = -1  # the epoch that wrote it
    unreadable: str = ""  # why the log could not be read (further): then the state is the last one known

    @property
    def lost(self) -> bool:
        """Tell whether the present state is unknown."""
        return bool(self.unreadable) and self.ended is None

    @property
    def word(self) -> str:
        """Return the state as a list shows it."""
        return "unreadable" if self.lost else self.state


def _submitted(event: Event) -> dict[str, Any]:
    name, at = str((event.data.get("job") or {}).get("name", "")), event.at
    return {"name": name, "submitted": min(at, event.data.get("since", at))}


def _ended(event: Event) -> dict[str, Any]:
    reason = event.data.get("reason")
    return {"state": str(event.data.get("state", "ended")), "reason": str(reason or ""), "ended": event.at}


HEADLINES: dict[str, Callable[[Event], dict[str, Any]]] = {
    "submitted": _submitted,
    "generation-formed": lambda event: {"state": "running", "started": event.at},
    "member-joined": lambda event: {"state": "running", "started": event.at},  # where tasks start one by one
    "ending": lambda event: {"state": "ending", "reason": str(event.data.get("reason") or "")},
    "ended": _ended,
}
_TELLING = re.compile(b'"type":"(?:' + "|".join(map(re.escape, HEADLINES)).encode() + b')"')


def jobs(state: LocalStorage) -> list[Headline]:
    """Return the jobs under `state`, newest first. The cache is brought up to date where it can be written."""
    known = _read_index(state)
    headlines = []
    unreachable: dict[str, str] = {}  # where jobs keep their storages -> why nothing can be read there
    for entry in state.entries(JOBS):
        if entry.folder:
            directory = f"{state.root}/{JOBS}/{entry.name}"
            earlier = known.get(entry.name) or Headline(entry.name, submitted=_prepared_at(directory))
            headlines.append(headline(directory, earlier, unreachable))
    headlines.sort(key=lambda job: (job.submitted or 0.0, job.id), reverse=True)
    if {job.id: job for job in headlines} != known:
        _write_index(state, headlines)
    return headlines


def _prepared_at(directory: str) -> float | None:
    """Return the time at which a job whose log has not begun was prepared; None where that is unknown."""
    try:
        return os.stat(f"{directory}/job.json").st_mtime
    except OSError:
        return None


def headline(directory: str, known: Headline, unreachable: dict[str, str]) -> Headline:
    """Return the headline of the job of a directory; `known` is its headline as it was read earlier."""
    if known.ended is not None and not known.unreadable:
        return known
    if (end := _read_end(directory)) is not None:
        return end
    place = place_of(directory)
    root = place.rpartition("/")[0]
    why = unreachable.get(root)
    if why is None:
        try:
            storage, earlier = storage_for(place), known
            for newer in _read_log(storage, known):
                known = newer
            if not known.n and _is_removed(directory, storage):
                return attrs.evolve(known, state="removed", ended=time.time())
            unseen_note = "" if known.n else _read_unseen(directory)
            if not known.n and (earlier.n or unseen_note or _is_missing(root, known)):
                return attrs.evolve(earlier, unreadable=f"{place} has no events of it{unseen_note}")
            return known
        except (TrainmasterError, ValueError) as failure:
            why = str(failure).splitlines()[0]
            if isinstance(failure, StorageFailed) and failure.anchor != "log-damaged":
                unreachable[root] = why
    return attrs.evolve(known, unreadable=why)


def note_end(directory: str, status: Mapping[str, Any]) -> None:
    """Keep the final state of a job whose storage is elsewhere in its directory on this machine, where that can be written."""
    state = LocalStorage(directory)
    if place_of(directory) == directory or status.get("ended") is None or state.exists(END):
        return
    reason = str((status.get("reason") or {}).get("reason", ""))
    headline = Headline(
        status["job"], status["name"], status["state"], reason, status["submitted"], ended=status["ended"]
    )
    with contextlib.suppress(StorageFailed):
        state.replace(END, json.dumps(attrs.asdict(headline)).encode(), durable=False)


def note_unseen(directory: str, fate: str) -> None:
    """Keep a cluster's report of a job that is over there and whose events are not where this machine looks for them."""
    with contextlib.suppress(StorageFailed):
        LocalStorage(directory).replace(UNSEEN, fate.encode(), durable=False)


def _read_unseen(directory: str) -> str:
    content = LocalStorage(directory).read(UNSEEN)
    return f"; {content.decode()}" if content else ""


def _read_end(directory: str) -> Headline | None:
    try:
        with open(f"{directory}/{END}", "rb") as file:
            return Headline(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def _is_missing(root: str, known: Headline) -> bool:
    """Tell whether the folder of a job's storage is not there, long after its master made it: it is not mounted, say."""
    path = local_path(root)
    return path is not None and not os.path.isdir(path) and time.time() - (known.submitted or 0.0) > BEGIN


def _is_removed(directory: str, storage: Storage) -> bool:
    """Tell whether a job that was submitted to a cluster was deleted there, and its log with it."""
    try:
        with open(f"{directory}/site.json", "rb") as file:
            submitted = "application" in json.load(file)
    except (OSError, ValueError):
        return False
    return submitted and storage.gone()


def _read_log(storage: Storage, known: Headline) -> Iterator[Headline]:
    """Read the log and yield the headline after each step, for reading may fail at any."""
    reader = Reader(storage, after=known.n)
    reader.refresh()
    if known.n and not reader.holds(known.epoch, known.n):
        reader, known = Reader(storage), Headline(known.id)
    yield (known := attrs.evolve(known, unreadable=""))
    while batch := reader.poll():
        if batch.first <= known.n:  # meanwhile a later master began that did not read these events
            yield from _read_log(storage, Headline(known.id))
            return
        for line in batch.lines:
            if _TELLING.search(line):
                yield (known := _fold_event(known, decode(line)))
        yield (known := attrs.evolve(known, n=batch.last, epoch=batch.epoch))


def _fold_event(known: Headline, event: Event) -> Headline:
    tell = HEADLINES.get(event.type)
    if tell is None:
        return known  # the type's name stood elsewhere in the line
    news = tell(event)
    if known.started is not None:
        news.pop("started", None)
    return attrs.evolve(known, **news)


def _read_index(state: LocalStorage) -> dict[str, Headline]:
    content = state.read(INDEX)
    try:
        index: Mapping[str, Any] = json.loads(content or b"{}")
        if index.get("version") != _VERSION:
            return {}
        return {fields["id"]: Headline(**fields) for fields in index["jobs"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _write_index(state: LocalStorage, headlines: list[Headline]) -> None:
    content = json.dumps({"version": _VERSION, "jobs": [attrs.asdict(job) for job in headlines]}, separators=(",", ":"))
    try:
        state.replace(INDEX, content.encode() + b"\n", durable=False)
    except StorageFailed:
        return  # a cache: where the disk is full or not ours, the next list reads the logs again
