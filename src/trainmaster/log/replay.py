"""Rebuild the state of a job from its log."""

from __future__ import annotations

import json
import logging

import attrs

from trainmaster import __version__
from trainmaster.core.errors import StorageFailed, TrainmasterError
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine import snapshot
from trainmaster.core.machine.events import decode, wrong_shape
from trainmaster.core.machine.phases import IllegalTransition
from trainmaster.core.machine.state import State
from trainmaster.log import snapshots
from trainmaster.log.reader import Batch, Reader, decoded
from trainmaster.log.storage import Storage

log = logging.getLogger(__name__)


def restart(storage: Storage, code: str) -> tuple[bytes | None, Reader]:
    """Return the state of the newest sound snapshot made by `code`, or None, and a reader that stands after it."""
    probe = Reader(storage)
    probe.refresh()
    newest = snapshots.newest(storage, code, probe.holds)
    if newest is None:
        return None, Reader(storage)
    state, n, epoch = newest
    return state, Reader(storage, n, epoch)


def replayed(storage: Storage) -> tuple[State, Reader]:
    """Return the state as of now, and the reader that stands after it. A snapshot saves reading the events before it; while those are kept,
    it is only a cache. Raises StorageFailed, also where they were dropped and no snapshot of this version is sound.
    """
    content, reader = restart(storage, __version__)
    state = State()
    try:
        if content is not None:
            state = snapshot.load(json.loads(content))
    except Exception as error:  # noqa: BLE001  another version's snapshot may fail in any way
        log.warning("the snapshot is passed over, and the whole log is folded: %r", error)
        reader = Reader(storage)
    while batch := reader.poll():
        if batch.first <= state.n:  # another master began that had not read what we have: once for each such master
            return replayed(storage)
        if batch.first > state.n + 1:
            raise StorageFailed(
                f"events {state.n + 1} to {batch.first - 1} were dropped, and no snapshot by this version of Trainmaster stands for them",
                place=storage.url, mend="use the version that ran the job", anchor="events-dropped",
            )  # fmt: skip
        fold_batch(state, reader, batch)
    return state, reader


def fold_batch(state: State, reader: Reader, batch: Batch) -> None:
    """Fold a batch of lines into the state, except those that it has. Raises StorageFailed at a line that is not an event, or at an event
    that cannot follow: then the state is of no use.
    """
    new = attrs.evolve(
        batch, first=max(batch.first, state.n + 1), lines=batch.lines[max(0, state.n + 1 - batch.first) :]
    )
    try:
        fold(state, decoded(reader, new, decode))
    except TrainmasterError:
        raise
    except Exception as error:
        raise reader.damaged(f"event {state.n + 1} cannot follow: {_problem(state, new, error)}") from error


def _problem(state: State, batch: Batch, error: Exception) -> str:
    """Return what is wrong with the decision that could not be folded: the fields of one of its events, or what folding it raised."""
    events = [decode(line) for line in batch.lines[: state.n + 2 - batch.first]]
    for event in reversed(events):
        if wrong := wrong_shape(event):
            return wrong
        if event is not events[-1] and "rest" not in event.data:
            break
    return f"{events[-1].type}: {error}" if isinstance(error, IllegalTransition) else f"{events[-1].type}: {error!r}"
