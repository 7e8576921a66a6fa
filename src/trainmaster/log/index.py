"""The jobs of a place, newest first, without reading their logs whole each time.

A place is a state directory, or any folder of a storage whose folders are jobs' storages.

A job's *headline* is its line in a list: name, state, times. It comes from a few types of events alone, in the
table `HEADLINES`; the others are recognized by a look at their bytes. `index.json` keeps the headlines with the number
of the last event read, so the next look reads only newer events. The index is a cache: deleted, damaged or out of date,
it is made again. Where it cannot be written beside the jobs, it is kept in a cache of the user.

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
from trainmaster.core.foreign import json_in
from trainmaster.core.machine.events import Event, decode
from trainmaster.core.machine.failure_words import error_line
from trainmaster.core.states import ENDING, PENDING, RUNNING
from trainmaster.log.documents.jobs import known_site, place_of
from trainmaster.log.reader import Reader
from trainmaster.log.storage import Damaged, LocalStorage, Storage, local_path, read_file, storage_for

JOBS = "jobs"
INDEX = "index.json"
UNSEEN = "unseen"  # in a job's directory: its cluster's report, where the job is over there and has no events that this machine sees
END = "end.json"  # in a job's directory: its headline, once a command of this machine has seen its end
BEGIN = 30.0  # seconds; a job younger than that may have no folder in its storage yet
_VERSION = 4
_PART = 500  # jobs of a first reading that are shown before it is done
_LONGEST = 200  # characters of a job's name, and of other texts that its log gives
_INDEX_EVERY = 30.0  # s between two writings of an index by one process


@attrs.frozen(slots=True)
class Headline:
    """One job in a list. Times are in seconds since 1970; `state` is of LISTED_STATES."""

    id: str
    name: str = ""
    state: str = PENDING
    reason: str = ""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    n: int = 0  # the last event read
    epoch: int = -1  # the epoch that wrote it
    unreadable: str = ""  # why the log could not be read (further): then the state is the last one known
    user: str = ""
    engine: str = ""
    tasks: int = 0  # at most
    error: str = ""  # the line of its failing program that says what went wrong

    @property
    def lost(self) -> bool:
        """Tell whether the present state is unknown."""
        return bool(self.unreadable) and self.ended is None

    @property
    def word(self) -> str:
        """Return the state as a list shows it."""
        return "unreadable" if self.lost else self.state

    @property
    def why(self) -> str:
        """Return why it ended, as a list shows it; "" where its state says as much."""
        return self.error or (self.reason if self.reason != self.state else "")


_TYPES = tuple(
    (field.name, (float, int, type(None)) if field.default is None else int if field.default in (0, -1) else str)
    for field in attrs.fields(Headline)
)


def _submitted(event: Event) -> dict[str, Any]:
    job, at = event.data.get("job") or {}, event.at
    facts = {
        "name": str(job.get("name", ""))[:_LONGEST],
        "submitted": min(at, event.data.get("since", at)),
        "tasks": _tasks(job),
    }
    return facts | {
        name: event.data[name][:_LONGEST] for name in ("user", "engine") if isinstance(event.data.get(name), str)
    }


def _tasks(job: Mapping[str, Any]) -> int:
    """Return how many tasks a job has at most, as its log writes it."""
    replicas = [(role.get("replicas") or 1) for role in (job.get("roles") or {}).values()]
    return sum(number.get("max", 1) if isinstance(number, Mapping) else number for number in replicas)


def _ended(event: Event) -> dict[str, Any]:
    reason = event.data.get("reason")
    return {
        "state": str(event.data.get("state", "ended"))[:_LONGEST],
        "reason": str(reason or "")[:_LONGEST],
        "ended": event.at,
    }


def _error(reason: Any, tail: Any) -> str:
    return (
        error_line(str(reason), tail)[:_LONGEST]
        if isinstance(tail, list) and all(isinstance(line, str) for line in tail)
        else ""
    )


HEADLINES: dict[str, Callable[[Event], dict[str, Any]]] = {
    "submitted": _submitted,
    "generation-formed": lambda event: {"state": RUNNING, "started": event.at},
    "member-joined": lambda event: {"state": RUNNING, "started": event.at},  # where tasks start one by one
    "ending": lambda event: {
        "state": ENDING,
        "reason": str(event.data.get("reason") or "")[:_LONGEST],
        "error": _error(event.data.get("reason"), event.data.get("tail")),
    },
    "ended": _ended,
}
_TELLING = re.compile(b'"type":"(?:' + "|".join(map(re.escape, HEADLINES)).encode() + b')"')


def jobs(state: LocalStorage) -> list[Headline]:
    """Return the jobs under a state directory, newest first. The cache is brought up to date where it can be written."""
    index = Jobs(OfMachine(state))
    headlines = index.refresh()
    index.write()
    return headlines


class OfMachine:
    """The jobs that this machine knows, each in a directory; its storage may be elsewhere."""

    def __init__(self, state: LocalStorage) -> None:
        self.root = state
        self._unreachable: dict[str, str] = {}  # where jobs keep their storages -> why nothing can be read there

    def names(self) -> list[str]:
        self._unreachable.clear()
        folder = LocalStorage(f"{self.root.root}/{JOBS}")  # which a user may keep elsewhere, behind a link
        return [entry.name for entry in folder.entries("") if entry.folder]

    def begin(self, job: str) -> Headline:
        """Return the headline of a job that was not read yet."""
        directory = f"{self.root.root}/{JOBS}/{job}"
        return Headline(job, submitted=_prepared_at(directory), user=_owner(directory), engine=_engine(directory))

    def headline(self, known: Headline) -> Headline:
        """Return the headline of a job; `known` is its headline as it was read earlier."""
        return headline(f"{self.root.root}/{JOBS}/{known.id}", known, self._unreachable)


class OfStorage:
    """The jobs whose storages are the folders of one place."""

    def __init__(self, root: Storage) -> None:
        self.root = root
        self._readers: dict[str, Reader] = {}  # of jobs that go on

    def names(self) -> list[str]:
        names = [
            entry.name for entry in self.root.entries("") if entry.folder and not entry.name.startswith((".", "_"))
        ]
        for removed in self._readers.keys() - set(names):
            del self._readers[removed]
        return names

    def begin(self, job: str) -> Headline:
        return Headline(job, user=_owner(f"{self.root.url}/{job}") if self.root.local else "")

    def storage(self, job: str) -> Storage:
        return storage_for(f"{self.root.url.rstrip('/')}/{job}")

    def headline(self, known: Headline) -> Headline:
        if known.ended is not None and not known.unreadable:
            self._readers.pop(known.id, None)
            return known
        try:
            for newer in _read_log(self.storage(known.id), known, self._readers):
                known = newer
        except (TrainmasterError, ValueError) as failure:
            self._readers.pop(known.id, None)  # it stands after what cannot be read
            return attrs.evolve(known, unreadable=str(failure).splitlines()[0])
        return known


class Jobs:
    """The jobs of one place, as lists show them, and their index. `cache`: where that is, if it cannot be beside the jobs."""

    def __init__(self, place: OfMachine | OfStorage, cache: LocalStorage | None = None) -> None:
        self._place, self._cache = place, cache
        self._known: dict[str, Headline] | None = None
        self._written: dict[str, Headline] = {}
        self._written_at = -_INDEX_EVERY
        self.headlines: list[Headline] = []

    def refresh(self) -> list[Headline]:
        """Return the jobs as they are now, newest first. Raises StorageFailed where the place cannot be read."""
        if self._known is None:
            self._known = self._written = self._read_index()
        known = {}
        is_first = not self.headlines
        for number, name in enumerate(self._place.names(), 1):
            known[name] = self._place.headline(self._known.get(name) or self._place.begin(name))
            if is_first and number % _PART == 0:
                self.headlines = _newest_first(known)
        self._known = known
        self.headlines = _newest_first(known)
        return self.headlines

    def write(self, now: float | None = None) -> None:
        """Write the index, where it has changed; with a time of a clock, not more often than is good."""
        if (
            self._known is None
            or self._known == self._written
            or (now is not None and now < self._written_at + _INDEX_EVERY)
        ):
            return
        self._written, self._written_at = self._known, now or 0.0
        if not _write_index(self._place.root, self.headlines) and self._cache is not None:
            _write_index(self._cache, self.headlines)

    def _read_index(self) -> dict[str, Headline]:
        return _read_index(self._place.root) or (_read_index(self._cache) if self._cache is not None else {})


def _newest_first(jobs: Mapping[str, Headline]) -> list[Headline]:
    return sorted(jobs.values(), key=lambda job: (job.submitted or 0.0, job.id), reverse=True)


def _owner(directory: str) -> str:
    """Return the user to whom a directory belongs; "" where that is unknown."""
    import pwd

    try:
        return pwd.getpwuid(os.stat(directory).st_uid).pw_name
    except (OSError, KeyError):
        return ""


def _engine(directory: str) -> str:
    """Return the engine that submitting noted; "" where it noted none."""
    try:
        return str(known_site(directory).get("engine") or "")
    except OSError:
        return ""


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
        return attrs.evolve(end, user=known.user, engine=known.engine)
    try:
        place = place_of(directory)
    except Damaged as failure:
        return attrs.evolve(known, unreadable=failure.message)
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
            if isinstance(failure, StorageFailed) and not isinstance(failure, Damaged):
                unreachable[root] = why
    return attrs.evolve(known, unreadable=why)


def note_end(directory: str, status: Mapping[str, Any]) -> None:
    """Keep the final state of a job whose storage is elsewhere in its directory on this machine, where that can be written."""
    state = LocalStorage(directory)
    if place_of(directory) == directory or status.get("ended") is None or state.exists(END):
        return
    reason = status.get("reason") or {}
    headline = Headline(
        status["job"], status["name"], status["state"], str(reason.get("reason", "")), status["submitted"], ended=status["ended"],
        error=str(reason.get("error", ""))[:_LONGEST],
    )  # fmt: skip
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
        return Headline(**json_in(read_file(f"{directory}/{END}")))
    except (OSError, ValueError, TypeError):
        return None


def _is_missing(root: str, known: Headline) -> bool:
    """Tell whether the folder of a job's storage is not there, long after its master made it: it is not mounted, say."""
    path = local_path(root)
    return path is not None and not os.path.isdir(path) and time.time() - (known.submitted or 0.0) > BEGIN


def _is_removed(directory: str, storage: Storage) -> bool:
    """Tell whether a job that was submitted to a cluster was deleted there, and its log with it."""
    return "application" in known_site(directory) and storage.gone()


def _read_log(storage: Storage, known: Headline, readers: dict[str, Reader] | None = None) -> Iterator[Headline]:
    """Read the log and yield the headline after each step, for reading may fail at any. `readers`: those that stand after what is known."""
    reader = (readers or {}).get(known.id) or Reader(storage, after=known.n)
    reader.refresh()
    if known.n and not reader.holds(known.epoch, known.n):
        reader, known = Reader(storage), _anew(known)
    if readers is not None:
        readers[known.id] = reader
    yield (known := attrs.evolve(known, unreadable=""))
    while batch := reader.poll():
        if batch.first <= known.n:  # meanwhile a later master began that did not read these events
            if readers is not None:
                del readers[known.id]
            yield from _read_log(storage, _anew(known), readers)
            return
        for line in batch.lines:
            if _TELLING.search(line):
                yield (known := _fold_event(known, decode(line)))
        yield (known := attrs.evolve(known, n=batch.last, epoch=batch.epoch))


def _anew(known: Headline) -> Headline:
    """Return the headline of a job of whose log nothing is known."""
    return Headline(known.id, user=known.user, engine=known.engine)


def _fold_event(known: Headline, event: Event) -> Headline:
    tell = HEADLINES.get(event.type)
    if tell is None:
        return known  # the type's name stood elsewhere in the line
    try:
        news = tell(event)
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"the event log is damaged: event {event.n} ({event.type}) has a field of a wrong type"
        ) from error
    if known.started is not None:
        news.pop("started", None)
    return attrs.evolve(known, **news)


def _read_index(storage: Storage) -> dict[str, Headline]:
    try:
        index: Mapping[str, Any] = json_in(storage.read(INDEX) or b"{}")
        if index.get("version") != _VERSION:
            return {}
        return {fields["id"]: _checked(Headline(**fields)) for fields in index["jobs"]}
    except (StorageFailed, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _checked(headline: Headline) -> Headline:
    """Return a headline of an index. Raises TypeError where a field is of a wrong type."""
    for name, types in _TYPES:
        if not isinstance(getattr(headline, name), types):
            raise TypeError(name)
    return headline


def _write_index(storage: Storage, headlines: list[Headline]) -> bool:
    """Write the index; return False where it cannot be written: a full disk, or one that is not ours."""
    names = [field.name for field in attrs.fields(Headline)]
    rows = [{name: getattr(job, name) for name in names} for job in headlines]
    content = json.dumps({"version": _VERSION, "jobs": rows}, separators=(",", ":"))
    try:
        storage.replace(INDEX, content.encode() + b"\n", durable=False)
    except TrainmasterError:
        return False
    return True
