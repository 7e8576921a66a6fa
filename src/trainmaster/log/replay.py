"""The state that a log tells."""

from __future__ import annotations

import json
import logging

from trainmaster import __version__
from trainmaster.core.errors import StorageFailed
from trainmaster.core.fold.changes import fold
from trainmaster.core.machine import snapshot
from trainmaster.core.machine.events import decode
from trainmaster.core.machine.state import State
from trainmaster.log import snapshots
from trainmaster.log.reader import Reader
from trainmaster.log.storage import Storage

log = logging.getLogger(__name__)


def restart(storage: Storage, code: str) -> tuple[bytes | None, Reader]:
    """Return the state of the newest sound snapshot made by `code`, or None, and a reader that stands behind it."""
    looked = Reader(storage)
    looked.refresh()
    newest = snapshots.newest(storage, code, looked.holds)
    if newest is None:
        return None, Reader(storage)
    state, n, epoch = newest
    return state, Reader(storage, n, epoch)


def replayed(storage: Storage) -> tuple[State, Reader]:
    """The state as of now, and the reader that stands behind it. A snapshot spares what it can; where the events before it are there it is
    only a cache. Raises StorageFailed, also where they were dropped and no snapshot of this version is sound.
    """
    kept, reader = restart(storage, __version__)
    state = State()
    try:
        if kept is not None:
            state = snapshot.load(json.loads(kept))
    except Exception as error:  # noqa: BLE001  however another version's reads here
        log.warning("the snapshot is passed over, and the whole log is folded: %r", error)
        reader = Reader(storage)
    while batch := reader.poll():
        if batch.first <= state.n:  # a master that began beside us had not read what we have: once for each of them
            return replayed(storage)
        if batch.first > state.n + 1:
            raise StorageFailed(
                f"events {state.n + 1} to {batch.first - 1} were dropped, and no snapshot by this version of Trainmaster stands for them",
                place=storage.url, mend="use the version that ran the job", anchor="events-dropped",
            )  # fmt: skip
        fold(state, map(decode, batch.lines))
    return state, reader
