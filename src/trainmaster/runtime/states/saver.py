"""Saving behind training: a state is copied into shared memory while the program waits, and stored while it trains.

    save -> pack -> a free slot (memory_slots) -> the storing thread -> a process of idle priority (persister) -> the place (stored_states)

The thread only waits: for a state to store, then for the process. If states come faster than they are stored, the newest is next.
Numbers rise with each state, over programs and restarts too, so the newest of memory and place is the one with the highest number. In a
group the member that saves may change. The next one begins a new *term*, at the next multiple of `TERM`: above all numbers of the members
before, whose memory it cannot see. A state that one of these still stores is older, and is removed.

In a job with shards a set must tell which records its content has seen. There the agent offers no memory, each state is stored, and a state
waits for the one before, so that the agent hears at each copy which set begins. A restart then begins from the set that the master
named, whose records are accounted for.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from time import monotonic

from .. import reports
from . import stored_states
from .memory_slots import VARIABLE, NoRoom, Slot, Slots
from .persister import Persister
from .ranks import is_grouped, is_rank_zero, share
from .state_format import pack, put_back, unpack, view_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from .state_format import Leaf

_IDLE_LIMIT = 60.0  # s that the process of idle priority may take for a set
TERM = 1_000_000  # numbers of one member's turn to save
_RETRY = 5.0  # s after a failure, at least


class Loaded(dict):  # type: ignore[type-arg]
    """A state that was loaded: by name, as it was saved. `step`: of the state. `source`: "memory" or "stored"."""

    def __init__(self, state: Mapping[str, Any], step: int, source: str) -> None:
        super().__init__(state)
        self.step, self.source = step, source


class Saver:
    """The states of one place."""

    def __init__(self, at: str) -> None:
        self._at = at
        self._place = stored_states.place_at(at)
        self._slots = Slots(at)
        self._is_exact = bool(os.environ.get("TRAINMASTER_CHECKPOINT")) and not os.environ.get(VARIABLE)
        self._keep, self._every = 3, 0.0
        self._saving = threading.Lock()  # of the slots that are filled or made larger
        self._changed = threading.Condition()  # of all that follows
        self._busy: Slot | None = None
        self._stored = next((header["number"] for header in stored_states.headers(self._place)), 0)  # of the newest set
        self._newest = self._slots.newest.number if self._slots.newest else 0
        self._is_writer = False  # this program saved last, as far as it knows
        self._next_at = 0.0  # when the next state may be stored
        self._has_warning = False
        self._waiting = 0  # callers of `wait`
        self._error = ""
        self._process: Persister | None = None
        self._thread: threading.Thread | None = None
        self._warned: set[str] = set()
        self._is_cramped = False  # a warning has said that there is no room

    # -- for the program --

    def save(self, step: int, state: Mapping[str, Any], keep: int, every: float, rank: int | None = None) -> None:
        if rank or (rank is None and not is_rank_zero()):
            self._is_writer = False
            return
        self._keep, self._every = keep, every
        header, leaves = pack(step, dict(state))
        if self._is_exact:
            self._wait_idle()  # not under the lock, which the storing thread takes too
            reports.begin_checkpoint()
        with self._saving:
            if not self._is_writer:
                self._take_over(in_group=rank is not None or is_grouped())
            number = self._newest + 1
            slot = self._slots.free(self._busy)
            try:
                slot.fill(number, self._slots.place, header, leaves)
            except NoRoom as error:
                self._store_now({**header, "number": number}, leaves, error)
                return
            with self._changed:
                self._newest = number
                self._changed.notify_all()
        self._start()

    def _take_over(self, in_group: bool) -> None:
        """Number states above those of programs that saved before; where the place cannot be read now, again at the next state."""
        with contextlib.suppress(OSError):  # the storing of the state says so
            self._newest = max([self._newest, *stored_states.numbers(self._place)])
            if in_group and self._newest:
                self._newest += TERM - self._newest % TERM
            self._is_writer = True

    def load(self, into: Mapping[str, Any], memory: bool | None) -> Loaded | None:
        if is_grouped() and memory is not False and (shared := share(lambda: self._load(True))) is not None:
            loaded = None if shared.state is None else Loaded(shared.state, shared.step, shared.source)
        else:
            loaded = self._load(memory is True or (memory is None and not is_grouped()))
        if loaded is None:
            return None
        for name, target in into.items():
            if name not in loaded:
                raise KeyError(f"nothing was saved under {name!r}; there is: {', '.join(map(str, loaded))}")
            put_back(target, loaded[name], name)
        return loaded

    def wait(self) -> None:
        """Return once the newest state is stored. Raises OSError."""
        with self._changed:
            self._waiting += 1
            if self._thread is not None:  # else nobody stores it, for the reason that is known
                self._error = ""
            self._changed.notify_all()
            try:
                while self._thread is not None and not self._error and (self._pending or self._busy):
                    self._changed.wait()
            finally:
                self._waiting -= 1
            if self._error and self._pending:
                raise OSError(f"the state of step {self._pending_step} cannot be stored at {self._at}: {self._error}")

    def hurry(self, warned: object = None) -> None:
        """Store the newest state at once, and those that come from now on: the container will be taken back."""
        with self._changed:
            self._has_warning = True
            self._changed.notify_all()

    # -- loading --

    def _load(self, memory: bool) -> Loaded | None:
        slot = self._slots.newest if memory and is_rank_zero() else None
        if slot is not None:
            self._start()
        stored = newest_stored(self._place, self._at, slot.number if slot is not None else 0, self._warn)
        if slot is None or stored is not None:
            return stored
        header = slot.header
        state = unpack(header, lambda index, view: slot.read(header["buffers"][index][0], view))
        return Loaded(state, header["step"], "memory")

    # -- storing --

    def _start(self) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trainmaster-checkpoints", daemon=True)
                self._thread.start()
                reports.warning(self.hurry)

    @property
    def _is_urgent(self) -> bool:
        return self._has_warning or self._waiting > 0

    @property
    def _pending(self) -> Slot | None:
        newest = self._slots.newest
        return newest if newest is not None and newest.number > self._stored else None

    @property
    def _pending_step(self) -> int:
        return int(self._pending.header["step"]) if self._pending is not None else 0

    def _run(self) -> None:
        try:
            self._store_for_ever()
        except Exception as error:  # noqa: BLE001  a fault of ours must not leave anybody waiting; the next save begins a new thread
            with self._changed:
                self._thread, self._busy, self._error = None, None, f"{type(error).__name__}: {error}"
                self._changed.notify_all()
            self._warn(f"states are not stored at {self._at}: {self._error}")

    def _store_for_ever(self) -> None:
        while True:
            self._warm()
            with self._changed:
                while (slot := self._pending) is None or not self._is_due():
                    self._changed.wait(None if slot is None else max(0.01, self._next_at - monotonic()))
                self._busy = slot
            began = monotonic()
            error = self._store(slot)
            with self._changed:
                self._busy, self._error = None, error
                self._next_at = began + self._every if not error else monotonic() + max(self._every, _RETRY)
                if not error:
                    self._stored = max(self._stored, slot.number)
                self._changed.notify_all()
            if error:
                self._warn(f"a state could not be stored at {self._at}: {error}")

    def _is_due(self) -> bool:
        return self._is_exact or (self._is_urgent and not self._error) or monotonic() >= self._next_at

    def _warm(self) -> None:
        """Make the slot for the next state ahead of it: a first copy takes several times as long as the others."""
        with self._saving:
            newest, slot = self._slots.newest, self._slots.free(self._busy)
            if newest is not None and slot.size < newest.used:
                slot.clear(self._slots.place)
                try:
                    slot.reserve(newest.used, warm=True)
                    slot.lock(newest.gpu)
                except OSError:  # the save that needs it says so
                    return

    def _store(self, slot: Slot) -> str:
        """Have a state stored. Return what went wrong, "" for nothing."""
        if not self._is_exact:
            reports.begin_checkpoint()
        order = {"slot": slot.descriptor, "header": slot.header, "at": self._at, "keep": self._keep}
        try:
            answer = self._have_stored(order)
        except (OSError, ValueError) as error:
            self._end_process()
            answer = {"error": str(error)}
        reports.end_checkpoint("error" not in answer)
        return str(answer.get("error", ""))

    def _have_stored(self, order: dict[str, Any]) -> dict[str, Any]:
        deadline, answer = monotonic() + _IDLE_LIMIT, None
        while answer is None:
            is_urgent = self._is_urgent or monotonic() > deadline
            if self._process is not None and self._process.is_urgent != is_urgent:
                self._end_process()
            process = self._process = self._process or Persister(is_urgent, self._at, self._slots.descriptors)
            answer = process.store(order, lambda: not is_urgent and (self._is_urgent or monotonic() > deadline))  # noqa: B023
        return answer

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _wait_idle(self) -> None:
        with self._changed:
            while self._busy is not None or (
                self._pending is not None and not self._error and self._thread is not None
            ):
                self._changed.wait()

    def _store_now(self, header: dict[str, Any], leaves: list[Leaf], why: NoRoom) -> None:
        """Store a state for which memory has no room, while the program waits."""
        if not self._is_cramped:
            self._warn(
                f"{why}: states are stored while training waits, and not kept in memory; give the task more memory"
            )
        self._is_cramped = True
        with self._changed:
            while self._busy is not None:  # one at a time writes to the place
                self._changed.wait()

        def pieces(index: int) -> Iterable[memoryview]:
            address, keep = leaves[index].source()
            view = view_of(address, leaves[index].size) if leaves[index].size else memoryview(b"")
            for begin in range(0, len(view), stored_states.PIECE):
                yield view[begin : begin + stored_states.PIECE]
            del keep

        if not self._is_exact:
            reports.begin_checkpoint()
        well = False
        try:
            stored_states.store(self._place, header, pieces, self._keep)
            well = True
        finally:
            reports.end_checkpoint(well)
        with self._changed:
            self._newest = self._stored = header["number"]

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            print(f"trainmaster: {text}", file=sys.stderr, flush=True)


def newest_stored(place: stored_states.Place, at: str, beyond: int, warn: Callable[[str], None]) -> Loaded | None:
    """Return the newest usable state whose number is above `beyond`, or None. `at`: the place in words. `warn` gets the words for each that
    is passed over.
    """
    for header in stored_states.headers(place, lambda fault: warn(f"in {at}, {fault}")):
        if header["number"] <= beyond:
            break
        try:
            with stored_states.reading(place, header) as read:
                return Loaded(unpack(header, read), header["step"], "stored")
        except (OSError, EOFError, ValueError, LookupError) as error:
            warn(f"the set of step {header['step']} in {at} cannot be used, so an older one is: {error}")
    return None


_savers: dict[str, Saver] = {}
_making = threading.Lock()


def saver_at(at: str) -> Saver:
    """Return this process's saver for a directory or URL; "": the job's checkpoint path."""
    at = at or os.environ.get("TRAINMASTER_CHECKPOINT") or "checkpoint"
    at = at if "://" in at else os.path.abspath(at)
    with _making:
        if at not in _savers:
            _savers[at] = Saver(at)
        return _savers[at]


def wait() -> None:
    """Return once the newest state of each place is stored. Raises OSError."""
    for saver in list(_savers.values()):
        saver.wait()


def _at_exit() -> None:
    for saver in list(_savers.values()):
        try:
            saver.wait()
        except OSError as error:
            print(f"trainmaster: {error}", file=sys.stderr, flush=True)


def _after_fork() -> None:
    _savers.clear()  # the parent stores what it saved


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
