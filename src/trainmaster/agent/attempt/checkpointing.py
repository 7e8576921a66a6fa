"""Store a checkpoint path in the background of training, as sets (see `data.checkpoints` and `data.watch`).

The path is examined each `LOOK` seconds. It is stored once `every` has passed since the last set, it has changed, and nobody writes it.
Each look carries the marks of that moment, or those that the program sent with a checkpoint of its own; a set has the marks from before its
first change. When a program has ended, the path is stored at once: the next attempt begins from the checkpoint that was saved in the grace.
After an end by force, only files that had been still before count as whole. A program that reports when it begins and finishes writing is
believed: nothing is stored between the two, however still the path is, nor after an end between them.

A set that is due waits `PATIENCE` for the path to be still; then the files that were renamed into place are stored as they come. Where
`LATE` times `every` pass without a set although the path has changed, a warning gives the job the reason.

The master names the set to restore, and knows only sets whose reports reached it. Old sets are therefore removed only once the report of a
new set was acknowledged; a set that the master has not heard of replaces none. While we are cut off, sets pile up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from trainmaster.agent.attempt.failure import words
from trainmaster.core.spec.quantities import format_seconds

LOOK = 2.0  # s
PATIENCE = 5.0  # s
LATE = 3
LAST_WITHIN = 60.0  # s for the set of a program that has ended

log = logging.getLogger(__name__)


class Checkpointing:
    """The checkpointing of one attempt.

    `marks()` returns how far the inputs are read, `pids()` the processes that may be writing. `report(kind, **fields)` sends a report;
    `acknowledged()` waits until the master has stored all reports durably.
    """

    def __init__(
        self, checkpoint: Mapping[str, Any], folder: str, task: str, attempt: int, marks: Callable[[], Any],
        pids: Callable[[], list[int]], report: Callable[..., None], acknowledged: Callable[[], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._url, self._every, self._keep = checkpoint["url"], float(checkpoint["every"]), int(checkpoint["keep"])
        self._path = os.path.join(folder, checkpoint["path"])
        self._task, self._attempt = task, attempt
        self._marks, self._pids, self._report, self._acknowledged = marks, pids, report, acknowledged
        self._watch: Any = None
        self._own_marks: Any = None  # marks that the program sent with its own checkpoint
        self._whole = threading.Event()  # cleared while the program writes a checkpoint
        self._whole.set()
        self._saved = asyncio.Event()
        self._busy = asyncio.Lock()
        self._pruning: set[asyncio.Task[None]] = set()  # goes on behind the attempt's end
        self._halt = threading.Event()
        self._stored_at = asyncio.get_running_loop().time()
        self._late = False  # the warning about a late set was reported
        self._faults: list[str] = []  # of the store, as the thread that stores a set meets them
        self._warned: set[str] = set()  # faults that were reported
        self._left_out: dict[str, str] = {}  # paths already reported as not stored

    def note_state(self, state: str, marks: Any) -> None:
        """Note the program's message about a checkpoint that it writes itself."""
        if state != "saved":
            self._whole.clear()
            return
        self._whole.set()
        self._own_marks = marks
        self._saved.set()

    async def begin(self) -> None:
        """Take a first look before the program starts: files that exist by now are not new."""
        await self._look(False)

    async def run(self) -> None:
        """Look and store until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK, self._every)):
                    await self._saved.wait()
            settled = self._saved.is_set()
            self._saved.clear()
            async with self._busy:
                await self._store(settled, due=self._every)

    async def last(self, whole: bool) -> None:
        """Store the last set of a program that has ended. `whole`: it ended by itself, so its files are complete."""
        try:
            async with asyncio.timeout(LAST_WITHIN), self._busy:
                await self._store(whole, due=0.0)
            if unstorable := self._watch.unstorable:
                self._report("warned", what="checkpoint", detail=unstorable)
        except TimeoutError:
            self._halt.set()
            self._report("warned", what="checkpoint", detail=f"the last set was not stored within {LAST_WITHIN:.0f} s")

    def halt(self) -> None:
        """Make a thread that stores a set give up."""
        self._halt.set()

    async def _store(self, settled: bool, due: float) -> None:
        try:
            whole = self._whole.is_set()
            ready = await self._look(settled)
            if ready is not None and not (whole and self._whole.is_set()):
                ready, self._watch.why = None, "the program has begun to write it, and has not said that it is whole"
            now = asyncio.get_running_loop().time()
            if ready is None or now - self._stored_at < due:
                self._warn_late(now)
                return
            self._stored_at = now
            stored = await asyncio.to_thread(self._save, ready.mark)
        except Exception as error:  # noqa: BLE001  training goes on without this set; the next one is tried in its time
            log.warning("a checkpoint could not be stored: %s", words(error))
            self._report("warned", what="checkpoint", detail=words(error))
            return
        self._warn_faults()
        self._watch.stored()
        self._late = False
        self._warn_left_out(self._watch.left_out)
        if stored is not None:
            self._report("checkpoint", **stored.report_fields())
            pruning = asyncio.create_task(self._prune(stored))
            self._pruning.add(pruning)
            pruning.add_done_callback(self._pruning.discard)

    def _warn_faults(self) -> None:
        """Report each fault of the store that a set met, once."""
        for fault in dict.fromkeys(self._faults):
            if fault not in self._warned:
                self._warned.add(fault)
                self._report("warned", what="checkpoint", detail=fault)
        self._faults.clear()

    def _warn_left_out(self, left_out: Mapping[str, str]) -> None:
        from trainmaster.data.store.trees import naming

        if left_out.keys() - self._left_out:
            self._left_out |= left_out
            self._report("warned", what="checkpoint sets", detail=f"not stored: {naming(left_out)}")

    def _warn_late(self, now: float) -> None:
        """Report, once, why a path that has changed gives no set."""
        waited = now - max(self._stored_at, self._watch.changed)
        if self._watch.why and not self._late and waited >= max(LATE * self._every, 2 * PATIENCE):
            self._late = True
            detail = f"the checkpoint has changed, and gave no set for {format_seconds(waited)}: {self._watch.why}"
            self._report("warned", what="checkpoint", detail=detail)

    async def _prune(self, newest: Any) -> None:
        """Remove old sets, once the master knows `newest`."""
        from trainmaster.data.checkpoints import prune

        await self._acknowledged()
        async with self._busy:  # a set in progress refers to bytes of earlier sets
            try:
                await asyncio.to_thread(prune, self._url, newest, self._keep)
            except Exception as error:  # noqa: BLE001  they stay, and are removed after the next set
                log.warning("old checkpoints could not be removed: %s", words(error))
                self._report("warned", what="old checkpoints stay", detail=words(error))

    async def _look(self, settled: bool) -> Any:
        from trainmaster.data.watch import Watch

        marks, self._own_marks = (self._own_marks if self._own_marks is not None else self._marks()), None
        if self._watch is None:
            self._watch = await asyncio.to_thread(Watch, self._path, mark=marks)
            return None
        now = asyncio.get_running_loop().time()
        pressed = now - max(self._stored_at + self._every, self._watch.changed) >= PATIENCE
        return await asyncio.to_thread(self._watch.look, now, marks, self._pids(), settled, pressed)

    def _save(self, marks: Any) -> Any:
        from trainmaster.data.checkpoints import save_set

        whole = partial(
            self._whole.wait, PATIENCE
        )  # of the next checkpoint, where it is begun before this one is stored
        return save_set(
            self._url, self._path, self._task, self._attempt,
            marks=marks, whole=whole, stop=self._halt, tell_fault=self._faults.append,
        )  # fmt: skip


def restore(checkpoint: Mapping[str, Any], folder: str, tell: Callable[[int, int], None], stop: threading.Event) -> Any:
    """Put the named set back at its path. Return its {set, task, attempt}, and the `faults` met; None without a set. Blocks.

    Without a set, members that restart together begin anew together: a checkpoint that only one of them left is removed (`anew`).
    """
    from trainmaster.data import checkpoints
    from trainmaster.data.store.trees import remove

    path = os.path.join(folder, checkpoint["path"])
    if checkpoint.get("set") is None:
        if checkpoint.get("anew"):
            remove(path)
        return None
    faults: list[str] = []
    restored = checkpoints.restore(
        checkpoint["url"], path, int(checkpoint["set"]), tell=tell, stop=stop, tell_fault=faults.append
    )
    return {"set": restored.number, "task": restored.task, "attempt": restored.attempt, "faults": faults}
